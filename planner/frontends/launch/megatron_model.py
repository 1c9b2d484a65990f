"""The model that Megatron-LM's and MindSpeed's arguments describe."""

from __future__ import annotations

import re

from planner.frontends.launch.decoder import Decoder, needed
from planner.frontends.launch.decoder import architecture as architecture
from planner.frontends.launch.found import Reader

_RUN = re.compile(r"\[([01])\](?:\*(\d+))?")


def read(reader: Reader) -> Decoder:
    """The sizes; what is left out has Megatron's defaults. No layers where the arguments describe no model."""
    r = reader
    if r.get("num-layers") is None and r.get("hidden-size") is None:
        return _decoder(r, 0)
    idle = [
        part for part in r.text("noop-layers").strip("'\"").split(",") if part.strip().isdigit()
    ]
    layers = r.number("num-layers", default=0) - len(idle)
    found = _decoder(r, layers)
    needed(
        r,
        {
            "--num-layers": layers,
            "--hidden-size": found.hidden,
            "--num-attention-heads": found.heads,
            "--vocab-size": found.vocab,
            "--seq-length": found.seq,
        },
    )
    return found


def _decoder(r: Reader, layers: int) -> Decoder:
    hidden, heads = r.number("hidden-size"), r.number("num-attention-heads")
    gated = r.flag("swiglu") or r.flag("geglu")
    ffn = r.number("ffn-hidden-size", default=4 * hidden)
    learned = r.text("position-embedding-type", default="learned_absolute") == "learned_absolute"
    latent = r.flag("multi-latent-attention")
    rotary = not learned or r.flag("use-rotary-position-embeddings") or gated
    experts = max(r.number("num-experts"), 0)
    expert_ffn = r.number("moe-ffn-hidden-size", default=ffn)
    return Decoder(
        name=r.text("model-name", default="model of the launch script"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=r.number("num-query-groups", default=heads)
        if r.flag("group-query-attention")
        else heads,
        head_dim=r.number("kv-channels", default=hidden // max(heads, 1)),
        ffn=ffn,
        vocab=r.number("vocab-size", "padded-vocab-size"),
        seq=r.number("max-position-embeddings", "seq-length"),
        gated=gated,
        norm="rms" if r.text("normalization") == "RMSNorm" or gated else "layer",
        biased=not r.flag("disable-bias-linear") and not gated,
        qk_norm=r.flag("qk-layernorm"),
        rotary=rotary,
        positions=r.number("max-position-embeddings") if not rotary else 0,
        tied=not r.flag("untie-embeddings-and-output-weights"),
        mtp=max(r.number("mtp-num-layers"), 0),
        dense=_dense(r, layers) if experts > 1 else (),
        experts=experts if experts > 1 else 0,
        top_k=r.number("moe-router-topk", default=2),
        expert_ffn=expert_ffn,
        shared_ffn=r.number(
            "moe-shared-expert-intermediate-size",
            default=max(r.number("n-shared-experts"), 0) * expert_ffn,
        ),
        router_bias=r.flag("moe-router-enable-expert-bias"),
        q_latent=r.number("q-lora-rank") if latent else 0,
        kv_latent=r.number("kv-lora-rank", default=32) if latent else 0,
        nope_dim=r.number("qk-head-dim", "qk-nope-head-dim", default=128),
        rope_dim=r.number("qk-pos-emb-head-dim", "qk-rope-head-dim", default=64),
        value_dim=r.number("v-head-dim", default=128),
        source=r.path,
    )


def _dense(r: Reader, layers: int) -> tuple[bool, ...]:
    """Which layers have no experts: a list expression, every n-th layer, or the first few."""
    first = max(r.number("first-k-dense-replace"), 0)
    text = r.text("moe-layer-freq", default="1").replace(" ", "").strip("'\"")
    if "[" in text:
        found = [kind == "0" for kind, count in _RUN.findall(text) for _ in range(int(count or 1))]
        if len(found) != layers:
            r.fault("W03", f"moe-layer-freq names {len(found)} layers, and the model has {layers}.")
        return tuple(found)
    every = int(text) if text.isdigit() and int(text) else 1
    return tuple(layer < first or layer % every != 0 for layer in range(layers))
