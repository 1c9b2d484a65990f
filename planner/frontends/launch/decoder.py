"""Decoders of the kind that launch scripts describe: widths and heads, with experts in some layers."""

from __future__ import annotations

from dataclasses import dataclass

from planner.frontends.launch.found import Reader
from planner.graph.architecture import (
    Architecture,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mlp,
    NormKind,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Sizes as a trainer's file states them; 0 for what it has none of."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq: int
    gated: bool
    norm: NormKind
    biased: bool = False
    qk_norm: bool = False
    rotary: bool = True
    positions: int = 0
    tied: bool = False
    mtp: int = 0
    dense: tuple[bool, ...] = ()
    """For every layer, whether it has no experts; empty where none has."""
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    router_bias: bool = False
    q_latent: int = 0
    kv_latent: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    source: str = ""


def needed(reader: Reader, sizes: dict[str, int]) -> None:
    """Reports sizes without which there is no model, by the file's own keys."""
    missing = [key for key, size in sizes.items() if size < 1]
    if missing:
        reader.fault(
            "M02",
            f"does not say {', '.join(missing)}, so the model is not known.",
            "Name the model: --model llama-3-8b, or a config.json.",
        )


def architecture(d: Decoder) -> Architecture:
    """Our own description; layers with equal parts share a kind."""
    dense = d.dense if d.experts and d.dense else (d.experts == 0,) * d.layers
    kinds = [_layer(d, kind) for kind in dict.fromkeys(dense)]
    order = list(dict.fromkeys(dense))
    return Architecture(
        name=d.name,
        hidden=d.hidden,
        vocab=d.vocab,
        max_seq=d.seq,
        kinds=tuple(kinds),
        layers=tuple(order.index(kind) for kind in dense),
        norm=d.norm,
        tied=d.tied,
        positions=d.positions,
        mtp=d.mtp,
        source=d.source,
    )


def _layer(d: Decoder, dense: bool) -> Layer:
    attention: Attention | LatentAttention
    if d.kv_latent:
        attention = LatentAttention(
            heads=d.heads,
            q_latent=d.q_latent or None,
            kv_latent=d.kv_latent,
            nope_dim=d.nope_dim,
            rope_dim=d.rope_dim,
            value_dim=d.value_dim,
        )
    else:
        attention = Attention(
            heads=d.heads,
            kv_heads=d.kv_heads,
            head_dim=d.head_dim,
            qkv_bias=d.biased,
            out_bias=d.biased,
            qk_norm="head" if d.qk_norm else "none",
            rotary=d.rotary,
        )
    if dense:
        return Layer(
            name="dense", attention=attention, mlp=Mlp(width=d.ffn, gated=d.gated, bias=d.biased)
        )
    experts = Experts(
        count=d.experts,
        top_k=max(d.top_k, 1),
        width=d.expert_ffn,
        shared_width=d.shared_ffn,
        gated=d.gated,
        router_bias=d.router_bias,
    )
    return Layer(name="moe", attention=attention, mlp=experts)
