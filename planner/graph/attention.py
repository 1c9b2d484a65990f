"""Attention as operators: projections, the core (fused or not), and latent attention."""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.architecture import Attention, LatentAttention
from planner.graph.builder import TOKENS, Builder
from planner.graph.operator import DimName, Operator

CORE = frozenset({"core"})
TURNED: frozenset[DimName] = frozenset({"head_dim"})
"""Rotary embedding turns one half of a head with the other, so that a rank needs whole heads."""
HEADS: tuple[DimName, ...] = (*TOKENS, "heads", "head_dim")


@dataclass(frozen=True, slots=True)
class _Span:
    """What an attention looks at."""

    name: str = "attn"
    """What its operators' names begin with."""
    tensors: str = ""
    """What its tensors' names begin with."""
    written: DimName = "seq"
    """The dim along which keys and values were written."""
    keys: DimName = "keys"
    """The dim under which the core reads them."""


OWN = _Span()
CROSS = _Span("cross", "cross_", "source", "source_keys")
"""Attention to the tokens of a source."""
KEYS = (OWN.keys, CROSS.keys)
"""Dims over which attention sums."""


def attended(seq: float, window: int | None, *, causal: bool = True) -> float:
    """Share of the seq × seq score matrix that a causal (and windowed) mask leaves; all where there is none.

    >>> attended(4, None), attended(4, 2), attended(4, None, causal=False)
    (0.625, 0.4375, 1.0)
    """
    if not causal:
        return 1.0
    reach = min(window or seq, seq)
    return (reach * (reach + 1) / 2 + (seq - reach) * reach) / seq**2


def grouped_query(
    b: Builder,
    source: str,
    attention: Attention,
    *,
    fused: bool,
    dropout: bool,
    table: tuple[str, ...] = (),
) -> str:
    """Attention from the normed stream to the projected output.

    Args:
        b: the block.
        source: the normed stream.
        attention: its heads.
        fused: as one kernel.
        dropout: of the scores.
        table: a weight of relative positions that it reads; empty for none.
    """
    q = b.linear("attn.q", source, ("embed",), ("heads", "head_dim"), "q", bias=attention.qkv_bias)
    into: tuple[DimName, ...] = ("pair", "kv_heads", "head_dim")
    kv = b.linear("attn.kv", source, ("embed",), into, "kv", bias=attention.qkv_bias)
    if attention.qk_norm != "none":
        q, kv = _qk_norms(b, q, kv, attention.qk_norm)
    step = "rotary" if attention.rotary else "layout"
    whole = TURNED if attention.rotary else frozenset()
    q = b.memory(f"attn.{step}_q", (q,), "q_placed", HEADS, tags=frozenset({step}), whole=whole)
    tags = frozenset({f"{step}_pair"})
    kv = b.memory(f"attn.{step}_kv", (kv,), "kv_placed", (*TOKENS, *into), tags=tags, whole=whole)
    share = attended(b.sizes["seq"], attention.window, causal=attention.causal)
    sinks = (b.tensor(f"{b.name}.attn.sinks", "heads", kind="weight"),) if attention.sinks else ()
    weights = (*table, *sinks)
    if fused:
        out = _fused_core(b, q, (kv,), "head_dim", 4.0 * share, weights)
    else:
        out = _unfused_core(b, q, kv, dropout=dropout, weights=weights)
    if attention.output_gate:
        gate = b.linear("attn.gate", source, ("embed",), ("heads", "head_dim"), "attn_gate")
        out = b.memory("attn.gating", (out, gate), "o_gated", HEADS, saves=(out, gate))
    return b.linear(
        "attn.out", out, ("heads", "head_dim"), ("embed",), "attn_out", bias=attention.out_bias
    )


def cross(
    b: Builder, source: str, encoded: str, attention: Attention, *, fused: bool, dropout: bool
) -> str:
    """Attention of the normed stream to what the encoder made of the source, to the projected output.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.3.
    """
    bias = attention.qkv_bias
    into: tuple[DimName, ...] = ("pair", "kv_heads", "head_dim")
    q = b.linear("cross.q", source, ("embed",), ("heads", "head_dim"), "cross_q", bias=bias)
    kv = b.linear("cross.kv", encoded, ("embed",), into, "cross_kv", bias=bias)
    if fused:
        out = _fused_core(b, q, (kv,), "head_dim", 4.0, (), CROSS)
    else:
        out = _unfused_core(b, q, kv, dropout=dropout, weights=(), span=CROSS)
    return b.linear(
        "cross.out", out, ("heads", "head_dim"), ("embed",), "cross_out", bias=attention.out_bias
    )


def _qk_norms(b: Builder, q: str, kv: str, kind: str) -> tuple[str, str]:
    """Queries and keys normed by head: a weight a head size, one over all heads, or none."""
    weights: tuple[tuple[DimName, ...], tuple[DimName, ...]] = {
        "head": (("head_dim",), ("head_dim",)),
        "all": (("heads", "head_dim"), ("kv_heads", "head_dim")),
    }.get(kind, ((), ()))
    if kind != "plain":
        q = b.norm("attn.q_norm", q, "q_normed", ("head_dim",), weights[0])
        return q, b.norm("attn.k_norm", kv, "kv_normed", ("head_dim",), weights[1])
    for source, target, name in ((q, "q_normed", "q_norm"), (kv, "kv_normed", "k_norm")):
        b.memory(
            f"attn.{name}",
            (source,),
            target,
            b.tensors[source].dims,
            saves=(source,),
            tags=frozenset({"norm"}),
            whole=frozenset({"head_dim"}),
        )
    return "q_normed", "kv_normed"


def latent(
    b: Builder, source: str, attention: LatentAttention, *, fused: bool, dropout: bool
) -> str:
    """Multi-head latent attention, expanded form as used in training.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C.
    """
    up = frozenset({"mla_up"})
    if attention.q_latent is None:
        q = b.linear("attn.q", source, ("embed",), ("heads", "head_dim"), "q_flat")
    else:
        narrow = b.linear("attn.q_down", source, ("embed",), ("q_latent",), "q_narrow")
        normed = b.norm("attn.q_norm", narrow, "q_latent_normed", ("q_latent",))
        q = b.linear("attn.q_up", normed, ("q_latent",), ("heads", "head_dim"), "q_flat", tags=up)
    narrow = b.linear("attn.kv_down", source, ("embed",), ("kv_rope_latent",), "kv_narrow")
    normed = b.tensor("kv_latent_normed", *TOKENS, "kv_latent")
    k_rope = b.tensor("k_rope", *TOKENS, "rope_dim")
    weight = b.tensor(f"{b.name}.attn.kv_norm.weight", "kv_latent", kind="weight")
    b.add(
        Operator(
            name="attn.kv_norm",
            kind="memory",
            dims=(*TOKENS, "kv_rope_latent"),
            reads=(b.use(narrow),),
            writes=(normed, k_rope),
            weights=(weight,),
            saves=(narrow,),
            tags=frozenset({"norm"}),
            whole=frozenset({"kv_rope_latent"}),
        )
    )
    kv = b.linear("attn.kv_up", normed, ("kv_latent",), ("heads", "nope_value"), "kv", tags=up)
    q = b.memory("attn.rotary_q", (q,), "q_rotated", HEADS, tags=up, whole=TURNED)
    k = b.memory("attn.build_k", (kv, k_rope), "k", HEADS, tags=up, whole=TURNED)
    v = b.memory("attn.split_v", (kv,), "v", (*TOKENS, "heads", "value_dim"), tags=up)
    heads = attention.nope_dim + attention.rope_dim
    if not fused:
        return _latent_unfused(b, q, k, v, dropout=dropout)
    flops = 2.0 * (1.0 + attention.value_dim / heads) * attended(b.sizes["seq"], None)
    out = _fused_core(b, q, (k, v), "value_dim", flops, ())
    return b.linear("attn.out", out, ("heads", "value_dim"), ("embed",), "attn_out")


def _fused_core(
    b: Builder,
    q: str,
    keys: tuple[str, ...],
    value: DimName,
    flops: float,
    weights: tuple[str, ...],
    span: _Span = OWN,
) -> str:
    """Fused attention keeps its inputs, its output and one statistic a row (FlashAttention, section 3.1)."""
    out = b.tensor(f"{span.tensors}o", *TOKENS, "heads", value)
    rows = b.tensor(f"{span.tensors}softmax_rows", *TOKENS, "heads", kind="statistic")
    b.add(
        Operator(
            name=f"{span.name}.core",
            kind="attention",
            dims=(*TOKENS, span.keys, "heads", "head_dim"),
            reads=(b.use(q), *(b.use(key, **{span.written: span.keys}) for key in keys)),
            writes=(out, rows),
            weights=weights,
            flops=flops,
            backward=2.5,
            saves=(q, *keys, out, rows),
            whole=frozenset({"head_dim", "value_dim"}),
            tags=CORE,
        )
    )
    return out


def _unfused_core(
    b: Builder, q: str, kv: str, *, dropout: bool, weights: tuple[str, ...], span: _Span = OWN
) -> str:
    """Scores, softmax, dropout and context as separate operators; keeps the score matrices."""
    scores = _scores(b, q, kv, span)
    probabilities = _softmax(b, scores, dropout=dropout, weights=weights, span=span)
    return _context(b, probabilities, kv, "head_dim", span)


def _latent_unfused(b: Builder, q: str, k: str, v: str, *, dropout: bool) -> str:
    probabilities = _softmax(b, _scores(b, q, k), dropout=dropout, weights=())
    out = _context(b, probabilities, v, "value_dim")
    return b.linear("attn.out", out, ("heads", "value_dim"), ("embed",), "attn_out")


def _scores(b: Builder, q: str, k: str, span: _Span = OWN) -> str:
    scores = b.tensor(f"{span.tensors}scores", *TOKENS, span.keys, "heads")
    b.add(
        Operator(
            name=f"{span.name}.scores",
            kind="matmul",
            dims=(*TOKENS, span.keys, "heads", "head_dim"),
            reads=(b.use(q), b.use(k, **{span.written: span.keys})),
            writes=(scores,),
            flops=2.0,
            saves=(q, k),
            tags=CORE,
        )
    )
    return scores


def _softmax(
    b: Builder, scores: str, *, dropout: bool, weights: tuple[str, ...], span: _Span = OWN
) -> str:
    dims = b.tensors[scores].dims
    out = b.tensor(f"{span.tensors}probabilities", *dims)
    b.add(
        Operator(
            name=f"{span.name}.softmax",
            kind="memory",
            dims=dims,
            reads=(b.use(scores),),
            writes=(out,),
            weights=weights,
            backward=1.5,
            saves=(out,),
            tags=CORE,
            whole=frozenset({span.keys}),
        )
    )
    dropped = f"{span.tensors}probabilities_dropped"
    return b.dropout(f"{span.name}.dropout", out, dropped) if dropout else out


def _context(b: Builder, probabilities: str, v: str, value: DimName, span: _Span = OWN) -> str:
    out = b.tensor(f"{span.tensors}o", *TOKENS, "heads", value)
    b.add(
        Operator(
            name=f"{span.name}.context",
            kind="matmul",
            dims=(*TOKENS, span.keys, "heads", value),
            reads=(b.use(probabilities), b.use(v, **{span.written: span.keys})),
            writes=(out,),
            flops=2.0,
            saves=(probabilities, v),
            tags=CORE,
        )
    )
    return out
