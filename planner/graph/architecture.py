"""Decoder architectures in our own words: what a frontend reads into, and what blocks are built from.

Plain numbers, one meaning each. Foreign key names stay in the frontends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

NormKind: TypeAlias = Literal["rms", "layer", "layer-no-bias", "none"]
"""``rms`` has a weight, ``layer`` weight and bias, ``layer-no-bias`` a weight, ``none`` (non-parametric) neither."""
STATED = "model's maximum"
"""What the longest sequence is where the model states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Multi-head or grouped-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """Tokens a query sees to its left (sliding window or chunk); None for all."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "all", "plain"] = "none"
    """Norm of queries and keys: one weight of ``head_dim`` each, one over all heads each, or no weight (``plain``)."""
    sinks: bool = False
    """One learned logit a head in the softmax's denominator."""
    output_gate: bool = False
    """A second query-sized projection gates the output."""
    rotary: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1)."""

    heads: int
    q_latent: int | None
    """Rank of the query compression; None projects queries directly."""
    kv_latent: int
    nope_dim: int
    """Head size of queries and keys without position."""
    rope_dim: int
    """Head size of the rotated part; its key is shared by all heads."""
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Feed-forward layer of one or (gated) two input projections."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Mixture of experts, with experts that every token meets."""

    count: int
    top_k: int
    width: int
    shared_width: int = 0
    """Total width of the shared experts; 0 for none."""
    shared_gate: bool = False
    """A one-number gate on the shared expert."""
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    """A trained or adjusted bias for every expert in the router."""
    one_hot: int = 0
    """Tokens of a group, where products with one-hot matrices bring its tokens to experts and back; 0 where rows are
    copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of layer."""

    name: str
    attention: Attention | LatentAttention
    mlp: Mlp | Experts
    post_norms: bool = False
    """Norms also after attention and after the MLP (four a layer)."""
    parallel: bool = False
    """Attention and MLP read the same normed input."""
    parallel_norms: int = 1
    """Norms before the parallel pair: 1 shared, or 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder-only language model."""

    name: str
    hidden: int
    vocab: int
    max_seq: int
    """Longest sequence the model card states; the default of ``--seq-len``."""
    assumed: str = STATED
    """What ``max_seq`` is, in words."""
    kinds: tuple[Layer, ...]
    layers: tuple[int, ...]
    """For every layer in order, the index of its kind."""
    norm: NormKind = "rms"
    tied: bool = False
    """Output projection shares the embedding table."""
    positions: int = 0
    """Rows of a learned position table; 0 for rotary, ALiBi or none."""
    embedding_norm: bool = False
    head_bias: bool = False
    dropout: bool = False
    """Residual and attention dropout during training (classic GPT)."""
    mtp: int = 0
    """Multi-token-prediction modules."""
    source: str = ""
