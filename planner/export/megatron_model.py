"""A model as Megatron-LM's arguments describe it."""

from __future__ import annotations

from itertools import groupby

from planner.export.shape import Shape
from planner.units import Json

MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this times tp, and names it so that a reader sees it."""


def model_pairs(shape: Shape, seq: int) -> list[tuple[str, Json]]:
    """Options of the model, those of its parts that Megatron has words for."""
    grouped = not shape.latent and shape.kv_heads != shape.heads
    return [
        ("--num-layers", shape.layers),
        ("--hidden-size", shape.hidden),
        ("--num-attention-heads", shape.heads),
        ("--group-query-attention", grouped),
        ("--num-query-groups", shape.kv_heads if grouped else None),
        ("--kv-channels", None if shape.latent else shape.head_dim),
        ("--ffn-hidden-size", shape.ffn or shape.expert_ffn),
        ("--swiglu", shape.gated),
        ("--normalization", "RMSNorm" if shape.norm == "rms" else "LayerNorm"),
        ("--disable-bias-linear", not shape.biased),
        ("--qk-layernorm", shape.qk_norm),
        ("--position-embedding-type", _positions(shape)),
        ("--untie-embeddings-and-output-weights", not shape.tied),
        ("--make-vocab-size-divisible-by", MULTIPLE),
        ("--vocab-size", shape.vocab),
        ("--seq-length", seq),
        ("--max-position-embeddings", max(seq, shape.positions)),
        *_latent(shape),
        *_experts(shape),
        ("--mtp-num-layers", shape.mtp or None),
    ]


def _positions(shape: Shape) -> str:
    if shape.positions:
        return "learned_absolute"
    return "rope" if shape.rotary or shape.latent else "none"


def _latent(shape: Shape) -> list[tuple[str, Json]]:
    if not shape.latent:
        return []
    return [
        ("--multi-latent-attention", True),
        ("--q-lora-rank", shape.q_latent or None),
        ("--kv-lora-rank", shape.kv_latent),
        ("--qk-head-dim", shape.nope_dim),
        ("--qk-pos-emb-head-dim", shape.rope_dim),
        ("--v-head-dim", shape.value_dim),
    ]


def _experts(shape: Shape) -> list[tuple[str, Json]]:
    if not shape.experts:
        return []
    return [
        ("--num-experts", shape.experts),
        ("--moe-router-topk", shape.top_k),
        ("--moe-ffn-hidden-size", shape.expert_ffn),
        ("--moe-shared-expert-intermediate-size", shape.shared_ffn or None),
        ("--moe-router-score-function", "sigmoid" if shape.router_bias else None),
        ("--moe-router-enable-expert-bias", shape.router_bias),
        ("--moe-layer-freq", frequency(shape.dense)),
    ]


def frequency(dense: tuple[bool, ...]) -> str:
    """Which layers have experts, as the list expression that Megatron evaluates.

    >>> frequency((True, False, False))
    '([0]*1+[1]*2)'
    """
    runs = [(int(not kind), len(list(group))) for kind, group in groupby(dense)]
    return "(" + "+".join(f"[{kind}]*{count}" for kind, count in runs) + ")"
