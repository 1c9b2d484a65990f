"""Names and shapes of parameters of MindFormers' Llama-like models: which dims of the plan each of their dims is."""

from __future__ import annotations

from typing import TypeAlias

Named: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""Parameters of an operator, and for each of their dims the plan's: outputs before inputs, experts before both."""

_HEADS, _KV, _EMBED, _FFN = ("heads", "head_dim"), ("kv_heads", "head_dim"), ("embed",), ("ffn",)
_EXPERTS, _WIDE, _SHARED = ("experts",), ("expert_ffn",), ("shared_ffn",)
LAYER: dict[str, Named] = {
    "attn.q": (("attention.wq.weight",), (_HEADS, _EMBED)),
    "attn.kv": (("attention.wk.weight", "attention.wv.weight"), (_KV, _EMBED)),
    "attn.out": (("attention.wo.weight",), (_EMBED, _HEADS)),
    "mlp.up": (("feed_forward.w1.weight", "feed_forward.w3.weight"), (_FFN, _EMBED)),
    "mlp.down": (("feed_forward.w2.weight",), (_EMBED, _FFN)),
    "norm1": (("attention_norm.weight",), (_EMBED,)),
    "norm2": (("ffn_norm.weight",), (_EMBED,)),
    "moe.router": (("{routed}.router.dense.weight",), (_EXPERTS, _EMBED)),
    "moe.up": (("{routed}.ffn.w1.weight", "{routed}.ffn.w3.weight"), (_EXPERTS, _WIDE, _EMBED)),
    "moe.down": (("{routed}.ffn.w2.weight",), (_EXPERTS, _EMBED, _WIDE)),
    "shared.up": (
        ("feed_forward.shared_experts.w1.weight", "feed_forward.shared_experts.w3.weight"),
        (_SHARED, _EMBED),
    ),
    "shared.down": (("feed_forward.shared_experts.w2.weight",), (_EMBED, _SHARED)),
}
"""Operators of a layer."""
ENDS: dict[str, Named] = {
    "lookup": (("model.tok_embeddings.embedding_weight",), (("vocab",), _EMBED)),
    "norm": (("model.norm_out.weight",), (_EMBED,)),
    "project": (("lm_head.weight",), (("vocab",), _EMBED)),
}


AGAIN: dict[str, tuple[str, ...]] = {
    "norm1": ("attention_norm",),
    "norm2": ("ffn_norm",),
    "mlp.act": ("feed_forward.mul", "feed_forward.w1.activation.silu"),
    "moe.act": ("{routed}.ffn.mul", "{routed}.ffn.w1.activation.silu"),
    "shared.act": ("feed_forward.shared_experts.mul", "feed_forward.shared_experts.w1.activation.silu"),
}  # fmt: skip
"""Cells and primitives of a layer that compute an operator, for recompute of it alone."""


def computed_by(operator: str, *, shared: bool) -> tuple[str, ...]:
    """What of a layer computes an operator."""
    routed = "feed_forward.routed_experts" if shared else "feed_forward"
    return tuple(name.format(routed=routed) for name in AGAIN[operator])


def in_layer(operator: str, *, shared: bool) -> Named:
    """Parameters of an operator of a layer; beside shared experts the routed ones have a cell of their own."""
    names, dims = LAYER[operator]
    routed = "feed_forward.routed_experts" if shared else "feed_forward"
    return tuple(name.format(routed=routed) for name in names), dims
