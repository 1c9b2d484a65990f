"""From the shape that a row states to an architecture in our own words."""

from __future__ import annotations

import re

from planner.calibrate.runs import ModelFacts, Run, WindowFacts
from planner.calibrate.software import Software
from planner.graph.architecture import (
    Architecture,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mlp,
    NormKind,
)

SUPPORTED = ("llama", "gpt", "moe")
KNOWN_WINDOWS = (
    ("mistral 7b", WindowFacts(size=4096)),
    ("gemma2", WindowFacts(size=4096, every=2)),
    ("gemma 2", WindowFacts(size=4096, every=2)),
    ("gemma3", WindowFacts(size=1024, all_but_every=6)),
    ("gemma 3", WindowFacts(size=1024, all_but_every=6)),
)
ASSUMED_WORDS: tuple[tuple[str, int], ...] = (("2401.10241", 32_000),)
"""Words of the models of sources whose rows only assume theirs, by what the source's name holds.
Source: 2401.10241 trains with the SentencePiece model of its sample data (pretrain_zero_bubble.sh of
sail-sg/zero-bubble-pipeline-parallelism); its models are called 6.2B and 14.6B, which 25 to 33 thousand words make."""
PACKED = WindowFacts(size=256)
"""Tokens that one attends to in a sequence packed from samples of some hundred tokens each, as SQuAD's are."""
NEEDED = ("layers", "hidden", "heads", "ffn", "vocab", "seq")
ALPA_GROUP = 2048
"""Tokens of a group in Alpa's mixtures. Source: its benchmark/alpa/suite_manual_moe.py, ``expert_group_size``."""


class NotPricedError(Exception):
    """Why a row cannot be priced: a fact that is missing, or a model that we do not describe."""


def architecture(run: Run, software: Software) -> Architecture:
    """The model of a row.

    Raises:
        NotPricedError: no decoder, or a part of its shape is missing.
    """
    model = run.model
    _check(run)
    kinds, layers = _layers(model, software, PACKED if "packed to" in run.remarks else None)
    gpt = model.type == "gpt"
    return Architecture(
        name=model.name,
        hidden=_known(model.hidden),
        vocab=_words(run),
        max_seq=_known(model.seq),
        kinds=kinds,
        layers=layers,
        norm=_norm(model, software),
        tied=bool(model.tied_embeddings),
        positions=_known(model.seq) if gpt and software.classic and not _alibi(run) else 0,
        embedding_norm=_alibi(run),
        dropout=gpt and software.dropout,
        mtp=model.mtp_layers or 0,
        source=run.source,
    )


def _check(run: Run) -> None:
    model = run.model
    if not model.type:
        raise NotPricedError("missing fact: model type")
    if model.type not in SUPPORTED:
        raise NotPricedError(f"unsupported model: {model.type} is no decoder we describe")
    for key in ("mamba", "image"):
        if model.other(key):
            raise NotPricedError(f"unsupported model: {key} layers")
    missing = [key for key in NEEDED if getattr(model, key) is None]
    if _num_experts(model) and model.ffn is None and model.moe_ffn:
        missing.remove("ffn")
    if model.type == "moe" and not _num_experts(model):
        missing.append("experts")
    if missing:
        raise NotPricedError(f"missing fact: model {', '.join(missing)}")
    _check_sizes(model)


def _check_sizes(model: ModelFacts) -> None:
    """A mixture's sizes, of which -1 is how some files write that one is left to a formula."""
    if _num_experts(model) and model.moe_ffn == -1:
        raise NotPricedError("missing fact: model moe_ffn is -1, which is no width")
    if (model.dense_layers or 0) > _known(model.layers):
        raise NotPricedError(
            f"missing fact: model dense_layers {model.dense_layers} of {model.layers} layers"
        )


def _known(value: int | None) -> int:
    assert value is not None
    return value


def _words(run: Run) -> int:
    """The vocabulary: what the row states, or what is known where the row says that it only assumes one."""
    known = next((words for name, words in ASSUMED_WORDS if name in run.source), None)
    if known is not None and re.search(r"vocabulary \(\d+\).* assumed", run.remarks.lower()):
        return known
    return _known(run.model.vocab)


def _num_experts(model: ModelFacts) -> int:
    return model.experts if model.experts and model.experts > 1 else 0


def _alibi(run: Run) -> bool:
    """BLOOM: ALiBi and a norm behind the embedding."""
    return "bloom" in f"{run.model.name} {run.source}".lower()


def _norm(model: ModelFacts, software: Software) -> NormKind:
    if model.type == "gpt":
        return "layer" if software.classic else "layer-no-bias"
    return "rms"


def _layers(
    model: ModelFacts, software: Software, packed: WindowFacts | None
) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
    """Kinds of layers and their order: windows alternate, dense layers come first or alternate with sparse ones."""
    count = _known(model.layers)
    sparse = _num_experts(model)
    dense = max(model.dense_layers or 0, 0) if sparse else count
    alternate = bool(sparse) and dense * 2 == count
    window = model.window or _known_window(model) or packed
    wanted = [
        (
            index % 2 == 0 if alternate else index < dense,
            window.size if window and _is_windowed(window, index) else None,
        )
        for index in range(count)
    ]
    kinds = list(dict.fromkeys(wanted))
    named = [
        Layer(
            name=f"layer{position or ''}",
            attention=_attention(model, software, reach),
            mlp=_mlp(model, software, dense=is_dense),
            parallel=bool(model.parallel_block),
        )
        for position, (is_dense, reach) in enumerate(kinds)
    ]
    return tuple(named), tuple(kinds.index(kind) for kind in wanted)


def _is_windowed(window: WindowFacts, index: int) -> bool:
    whole = window.all_but_every
    return index % window.every == 0 if whole is None else (index + 1) % whole != 0


def _known_window(model: ModelFacts) -> WindowFacts | None:
    """Windows that rows do not state. Source: the models' config.json (Mistral 7B v0.1, Gemma 2, Gemma 3)."""
    return next((w for name, w in KNOWN_WINDOWS if model.name.lower().startswith(name)), None)


def _attention(
    model: ModelFacts, software: Software, window: int | None
) -> Attention | LatentAttention:
    mla, heads = model.mla, _known(model.heads)
    if mla:
        return LatentAttention(
            heads=heads,
            q_latent=mla.q_lora,
            kv_latent=mla.kv_lora,
            nope_dim=mla.qk_nope,
            rope_dim=mla.qk_rope,
            value_dim=mla.v_head,
        )
    classic = model.type == "gpt"
    return Attention(
        heads=heads,
        kv_heads=model.kv_heads or heads,
        head_dim=model.head_dim or _known(model.hidden) // heads,
        window=window,
        qkv_bias=classic and software.classic,
        out_bias=classic and software.classic,
        sinks="gpt-oss" in model.name.lower(),
        rotary=not classic,
    )


def _mlp(model: ModelFacts, software: Software, *, dense: bool) -> Mlp | Experts:
    gated = model.type != "gpt" if model.gated is None else model.gated
    wide = model.ffn or model.moe_ffn
    if dense:
        bias = model.type == "gpt" and software.classic
        return Mlp(width=_known(wide), gated=gated, bias=bias)
    return Experts(
        count=_num_experts(model),
        top_k=max(model.top_k or 1, 1),
        width=_known(model.moe_ffn or wide),
        shared_width=max(model.shared_ffn or 0, 0),
        gated=gated,
        one_hot=ALPA_GROUP if software.name.startswith("alpa") else 0,
    )
