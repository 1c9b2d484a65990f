"""The model of a plan in the words that trainers describe models with: widths, heads, experts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from planner.export.view import View
from planner.plan.schema import BlockPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder. Those that it has none of are 0."""

    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of dense feed-forward layers."""
    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int
    router_bias: bool
    dense: tuple[bool, ...]
    """For every layer, whether its feed-forward part is dense."""
    gated: bool
    biased: bool
    norm: str
    """``rms``, ``layer`` or ``layer-no-bias``."""
    qk_norm: bool
    rotary: bool
    positions: int
    """Rows of a learned position table."""
    tied: bool
    mtp: int
    q_latent: int
    kv_latent: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    odd: tuple[str, ...]
    """Features that have no usual argument."""

    @property
    def latent(self) -> bool:
        return self.kv_latent > 0


def shape_of(view: View) -> Shape:
    """The sizes of a plan's model, read from its blocks."""
    blocks = view.layer_blocks
    head, embedding = view.block("head"), view.block("embedding")
    assert head is not None
    assert embedding is not None
    names = {op.name for op in view.operators()}
    mtp = view.block("mtp")
    latent = _size(blocks, "kv_latent") > 0
    value = _size(blocks, "value_dim")
    return Shape(
        layers=view.plan.model.num_layers,
        hidden=int(head.sizes["embed"]),
        vocab=int(head.sizes["vocab"]),
        heads=_size(blocks, "heads"),
        kv_heads=_size(blocks, "kv_heads") or _size(blocks, "heads"),
        head_dim=_size(blocks, "head_dim"),
        ffn=_size(blocks, "ffn"),
        experts=_size(blocks, "experts"),
        top_k=_top_k(blocks),
        expert_ffn=_size(blocks, "expert_ffn") if view.experts else 0,
        shared_ffn=_size(blocks, "shared_ffn"),
        router_bias=any(name.endswith("router.bias") for name in _weights(view)),
        dense=tuple("experts" not in block.sizes for block in blocks),
        gated=any("gates" in op.shape for op in view.operators() if op.name.endswith(".up")),
        biased=any(name.endswith("attn.out.bias") for name in _weights(view)),
        norm=_norm(view),
        qk_norm="attn.k_norm" in names,
        rotary="attn.rotary_q" in names,
        positions=int(embedding.sizes.get("positions", 0)),
        tied=view.plan.model.tied,
        mtp=mtp.count if mtp else 0,
        q_latent=_size(blocks, "q_latent"),
        kv_latent=_size(blocks, "kv_latent"),
        nope_dim=_size(blocks, "nope_value") - value if latent else 0,
        rope_dim=_size(blocks, "rope_dim") if latent else 0,
        value_dim=value if latent else 0,
        odd=_odd(view, names),
    )


def _size(blocks: tuple[BlockPlan, ...], dim: str) -> int:
    return int(max((block.sizes.get(dim, 0) for block in blocks), default=0))


def _top_k(blocks: tuple[BlockPlan, ...]) -> int:
    """Experts a token meets: a sequence's tokens times that, over all experts, is an expert's capacity."""
    sparse = next((block.sizes for block in blocks if "experts" in block.sizes), None)
    if sparse is None:
        return 0
    return round(sparse["capacity"] * sparse["experts"] / sparse["seq"])


def _weights(view: View) -> set[str]:
    return {name for op in view.operators() for name in op.weights}


def _norm(view: View) -> str:
    norm = next(op for op in view.operators() if op.name == "norm1")
    biased = any(name.endswith(".bias") for name in norm.weights)
    wide = len(norm.weights) == 1
    return "layer" if biased else "rms" if wide else "none"


def _windowed(view: View) -> bool:
    """Whether some attention sees less than the causal half of the sequence; only its FLOPs say so."""
    for block in view.layer_blocks:
        seq, value = block.sizes["seq"], block.sizes.get("value_dim", block.sizes["head_dim"])
        causal = 2.0 * (1.0 + value / block.sizes["head_dim"]) * (seq + 1) / (2 * seq)
        core = [op for op in block.operators if op.name == "attn.core"]
        if any(op.flops < 0.99 * causal * prod(op.shape.values()) for op in core):
            return True
    return False


def _odd(view: View, names: set[str]) -> tuple[str, ...]:
    """Features for which a person has to look up the trainer's own argument."""
    weights = _weights(view)
    found = {
        "attention sinks": any(name.endswith("attn.sinks") for name in weights),
        "gated attention output": "attn.gating" in names,
        "norms after attention and MLP": "post_norm1" in names,
        "attention and MLP in parallel": "add" in names,
        "a gate on the shared expert": "shared.gate" in names,
        "a norm behind the embedding": any(
            op.name == "norm" for op in (view.block("embedding") or view.plan.blocks[0]).operators
        ),
        "windowed attention": _windowed(view),
    }
    return tuple(name for name, there in found.items() if there)
