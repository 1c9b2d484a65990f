"""Names and shapes that MindFormers' Llama-like models give to parameters: which dims are rows, which columns."""

from __future__ import annotations

ROWS_FIRST = {
    "attn.q": (("attention.wq.weight",), ("heads", "head_dim"), ("embed",)),
    "attn.kv": (("attention.wk.weight", "attention.wv.weight"), ("kv_heads", "head_dim"), ("embed",)),
    "attn.out": (("attention.wo.weight",), ("embed",), ("heads", "head_dim")),
    "mlp.up": (("feed_forward.w1.weight", "feed_forward.w3.weight"), ("ffn",), ("embed",)),
    "mlp.down": (("feed_forward.w2.weight",), ("embed",), ("ffn",)),
    "norm1": (("attention_norm.weight",), ("embed",), ()),
    "norm2": (("ffn_norm.weight",), ("embed",), ()),
}  # fmt: skip
"""Operator to its parameters in a layer, and the dims of their rows and columns."""
ENDS = {
    "lookup": (("model.tok_embeddings.embedding_weight",), ("vocab",), ("embed",)),
    "norm": (("model.norm_out.weight",), ("embed",), ()),
    "project": (("lm_head.weight",), ("vocab",), ("embed",)),
}
