"""From an architecture to a model: one block for every distinct layer kind."""

from __future__ import annotations

from planner.graph import attention as attn
from planner.graph.architecture import Architecture, Experts, LatentAttention, Layer
from planner.graph.builder import STREAM, TOKENS, Builder
from planner.graph.mlp import experts, mlp
from planner.graph.model import Model
from planner.graph.operator import Block, DimName, Operator

EMBEDDING = "embedding.table"
OUTPUT = "head.table"


def build_model(arch: Architecture, seq: int, *, fused: bool = True) -> Model:
    """The graph of a decoder for one sequence length.

    Args:
        arch: the architecture.
        seq: tokens a sequence.
        fused: whether attention runs as one fused kernel or as separate operators that keep the scores.
    """
    blocks = tuple(layer_block(arch, kind, seq, fused=fused) for kind in arch.kinds)
    last = arch.kinds[arch.layers[-1]]
    module = _mtp_block(arch, last, seq, fused=fused)
    return Model(
        name=arch.name,
        seq=seq,
        blocks=blocks,
        layers=arch.layers,
        embedding=_embedding(arch, seq),
        head=_head(arch, seq),
        mtp=(module,) * arch.mtp,
        source=arch.source,
    )


def layer_block(
    arch: Architecture, layer: Layer, seq: int, *, fused: bool, keys: int | None = None
) -> Block:
    """One layer: norms, attention, feed-forward, residual additions; over so many keys each where not all."""
    b = _builder(arch, layer, seq, layer.name)
    b.sizes["keys"] = seq if keys is None else keys
    b.tensor("x", *STREAM)
    out = _layer(b, arch, layer, "x", fused=fused)
    return b.finish(("x",), (out,))


def _layer(b: Builder, arch: Architecture, layer: Layer, x: str, *, fused: bool) -> str:
    normed = b.norm("norm1", x, "normed1")
    core = attn.latent if isinstance(layer.attention, LatentAttention) else attn.grouped_query
    out = core(b, normed, layer.attention, fused=fused, dropout=arch.dropout)  # type: ignore[arg-type]
    if layer.parallel:
        source = b.norm("norm2", x, "normed2") if layer.parallel_norms == 2 else normed
        return b.memory("add", (x, out, _feed_forward(b, layer, source)), "y", STREAM)
    if layer.post_norms:
        out = b.norm("post_norm1", out, "attn_normed")
    if arch.dropout:
        out = b.dropout("attn.out_dropout", out, "attn_dropped")
    middle = b.memory("add1", (x, out), "x_middle", STREAM)
    out = _feed_forward(b, layer, b.norm("norm2", middle, "normed2"))
    if layer.post_norms:
        out = b.norm("post_norm2", out, "mlp_normed")
    if arch.dropout:
        out = b.dropout("mlp.out_dropout", out, "mlp_dropped")
    return b.memory("add2", (middle, out), "y", STREAM)


def _feed_forward(b: Builder, layer: Layer, source: str) -> str:
    if isinstance(layer.mlp, Experts):
        return experts(b, source, layer.mlp)
    return mlp(b, source, layer.mlp)


def _builder(arch: Architecture, layer: Layer | None, seq: int, name: str) -> Builder:
    sizes: dict[DimName, float] = {
        "batch": 1,
        "seq": seq,
        "embed": arch.hidden,
        "vocab": arch.vocab,
        "parts": 3,
        "one": 1,
    }
    per_token: dict[DimName, float] = {}
    if layer is not None:
        sizes |= _attention_sizes(layer) | {"keys": seq, "pair": 2, "gates": 2}
        if isinstance(layer.mlp, Experts):
            e = layer.mlp
            sizes |= {
                "experts": e.count,
                "expert_ffn": e.width,
                "shared_ffn": e.shared_width,
                "capacity": seq * e.top_k / e.count,
            }
            per_token["experts"] = e.top_k / e.count
        else:
            sizes["ffn"] = layer.mlp.width
    return Builder(name, sizes, arch.norm, per_token=per_token)


def _attention_sizes(layer: Layer) -> dict[DimName, float]:
    a = layer.attention
    if isinstance(a, LatentAttention):
        return {
            "heads": a.heads,
            "head_dim": a.nope_dim + a.rope_dim,
            "value_dim": a.value_dim,
            "nope_value": a.nope_dim + a.value_dim,
            "kv_latent": a.kv_latent,
            "rope_dim": a.rope_dim,
            "kv_rope_latent": a.kv_latent + a.rope_dim,
            "q_latent": a.q_latent or 0,
        }
    return {"heads": a.heads, "kv_heads": a.kv_heads, "head_dim": a.head_dim}


def _embedding(arch: Architecture, seq: int) -> Block:
    b = _builder(arch, None, seq, "embedding")
    out = _lookup(b)
    if arch.positions:
        b.sizes["positions"] = arch.positions
        table = b.tensor("embedding.positions", "positions", "embed", kind="weight")
        out = b.memory("positions", (out,), "x_placed", STREAM, weights=(table,))
    if arch.embedding_norm:
        out = b.norm("norm", out, "x_normed")
    if arch.dropout:
        out = b.dropout("dropout", out, "x_dropped")
    return b.finish(("tokens",), (out,))


def _lookup(b: Builder) -> str:
    tokens = b.tensor("tokens", *TOKENS, kind="index")
    table = b.tensor(EMBEDDING, "vocab", "embed", kind="weight")
    out = b.tensor("x", *STREAM)
    b.add(
        Operator(
            name="lookup",
            kind="lookup",
            dims=(*STREAM, "vocab"),
            reads=(b.use(tokens),),
            writes=(out,),
            weights=(table,),
            saves=(tokens,),
        )
    )
    return out


def _head(arch: Architecture, seq: int) -> Block:
    b = _builder(arch, None, seq, "head")
    b.tensor("x", *STREAM)
    _project_and_loss(b, arch, "x", first=not arch.tied)
    return b.finish(("x",), ("loss",))


def _project_and_loss(b: Builder, arch: Architecture, x: str, *, first: bool) -> None:
    """Final norm, logits and the cross-entropy over a vocabulary that may be split.

    The loss writes three numbers a token (largest logit, sum of exponentials, the target's logit); where an axis splits
    the vocabulary they are partial, and their reduction is the loss's only communication
    (Megatron-LM, arXiv 1909.08053, section 3).
    """
    normed = b.norm("norm", x, "x_normed")
    table = EMBEDDING if arch.tied else OUTPUT
    logits = b.linear(
        "project", normed, ("embed",), ("vocab",), "logits", bias=arch.head_bias, tied=table
    )
    if not first:
        b.tied.add(table)
    loss = b.tensor("loss", *TOKENS, "parts", kind="statistic")
    b.add(
        Operator(
            name="loss",
            kind="loss",
            dims=(*TOKENS, "vocab"),
            reads=(b.use(logits),),
            writes=(loss,),
            saves=(logits,),
            tags=frozenset({"loss"}),
        )
    )


def _mtp_block(arch: Architecture, layer: Layer, seq: int, *, fused: bool) -> Block:
    """One multi-token-prediction module: joins stream and next embedding, one layer, the shared head.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    """
    b = _builder(arch, layer, seq, "mtp")
    hidden = b.tensor("stream", *STREAM)
    embedded = _lookup(b)
    left = b.norm("hidden_norm", hidden, "hidden_normed")
    right = b.norm("embed_norm", embedded, "embed_normed")
    b.sizes["joined"] = 2 * arch.hidden
    joined = b.memory("join", (left, right), "joined", (*TOKENS, "joined"))
    start = b.linear("mtp.project", joined, ("joined",), ("embed",), "x_joined")
    out = _layer(b, arch, layer, start, fused=fused)
    _project_and_loss(b, arch, out, first=False)
    b.tied |= {EMBEDDING}
    return b.finish(("stream", "tokens"), (out, "loss"))
