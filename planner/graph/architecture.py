"""Decoders, encoders before decoders, in our own words: what a frontend reads into, and what blocks are built from.

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
    causal: bool = True
    """A token sees those before it only; false where it sees all, as in an encoder."""


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
    encodes: bool = False
    """A layer of the encoder, which runs over the source; all of these come before the others."""
    cross: bool = False
    """A second attention, of the same heads, whose keys and values come from what the encoder made of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A language model: a decoder, or an encoder and the decoder that reads its result."""

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
    buckets: int = 0
    """Rows of a table of relative positions, a column a head, which the first layers of encoder and decoder have."""
    embedding_norm: bool = False
    final_norm: bool = True
    """A norm behind the last layer, of the encoder too."""
    head_bias: bool = False
    dropout: bool = False
    """Residual and attention dropout during training (classic GPT)."""
    mtp: int = 0
    """Multi-token-prediction modules."""
    source_seq: int = 0
    """Tokens of the source that an encoder reads; 0 for as many as the sequence has."""
    source: str = ""

    @property
    def num_encoder_layers(self) -> int:
        """Layers that run over the source."""
        return sum(self.kinds[index].encodes for index in self.layers)


def misplaced(arch: Architecture) -> str:
    """What is wrong with the order of encoder and decoder, in words; empty where nothing is."""
    kinds = [arch.kinds[index] for index in arch.layers]
    encoders = arch.num_encoder_layers
    reads = {kind.cross for kind in kinds[encoders:]}
    if not all(kind.encodes for kind in kinds[:encoders]):
        return "layers that encode must come before all others"
    if any(kind.cross for kind in kinds[:encoders]):
        return "a layer that encodes has no cross-attention"
    if any(isinstance(k.attention, Attention) and not k.attention.causal for k in kinds[encoders:]):
        return "only layers that encode see tokens behind (causal: false)"
    if reads == {True, False} or (encoders and reads != {True}) or (not encoders and True in reads):
        return "layers behind an encoder have cross-attention, all of them and no others"
    if any(
        kind.cross and (kind.parallel or not isinstance(kind.attention, Attention))
        for kind in kinds
    ):
        return "a layer with cross-attention has heads of one size, and attention before its MLP"
    if arch.mtp and encoders:
        return "multi-token prediction behind an encoder is not described"
    return ""
