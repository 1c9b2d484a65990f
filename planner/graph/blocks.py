"""From an architecture to a model: one block for every distinct layer kind."""

from __future__ import annotations

from planner.graph import attention as attn
from planner.graph.architecture import Architecture, Attention, Experts, LatentAttention, Layer
from planner.graph.builder import SOURCE, STREAM, TOKENS, Builder
from planner.graph.mlp import experts, mlp
from planner.graph.model import Model
from planner.graph.operator import Block, DimName, Operator

EMBEDDING = "embedding.table"
OUTPUT = "head.table"


def build_model(arch: Architecture, seq: int, *, fused: bool = True) -> Model:
    """The graph of a model for one sequence length.

    Args:
        arch: the architecture.
        seq: tokens a sequence; those of the source too unless the architecture says how many that has.
        fused: whether attention runs as one fused kernel or as separate operators that keep the scores.
    """
    blocks, layers = _layers(arch, seq, fused=fused)
    last = arch.kinds[arch.layers[-1]]
    module = _mtp_block(arch, last, seq, fused=fused)
    return Model(
        name=arch.name,
        seq=seq,
        blocks=blocks,
        layers=layers,
        embedding=_embedding(arch, seq),
        head=_head(arch, seq),
        mtp=(module,) * arch.mtp,
        source=arch.source,
    )


def _layers(
    arch: Architecture, seq: int, *, fused: bool
) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """A block for every kind of layer, and for a first one that has more than its like; and the order of them all."""
    encoders = arch.num_encoder_layers
    starts = {encoders} if encoders else set()
    starts |= {0, encoders} if arch.buckets else set()
    order = [(kind, index in starts) for index, kind in enumerate(arch.layers)]
    wanted = sorted(set(order), key=lambda pair: (pair[0], not pair[1]))
    blocks = tuple(
        layer_block(arch, arch.kinds[kind], seq, fused=fused, first=first) for kind, first in wanted
    )
    return blocks, tuple(wanted.index(pair) for pair in order)


def layer_block(
    arch: Architecture,
    layer: Layer,
    seq: int,
    *,
    fused: bool,
    keys: int | None = None,
    first: bool = False,
) -> Block:
    """One layer: norms, attention, feed-forward, residual additions.

    Args:
        arch: the model's.
        layer: its kind.
        seq: tokens of the model's sequence.
        fused: as one kernel.
        keys: those that each token looks at, where not all.
        first: the first of the encoder or of the decoder: it has the table of relative positions, and a decoder's reads
            its tokens and norms what the encoder made.
    """
    source = arch.source_seq or seq
    tokens = source if layer.encodes else seq
    b = _builder(arch, layer, tokens, f"{layer.name}_first" if first else layer.name)
    b.sizes |= {"keys": tokens if keys is None else keys, "source": source, "source_keys": source}
    table: tuple[str, ...] = ()
    if first and arch.buckets:
        b.sizes["buckets"] = arch.buckets
        table = (b.tensor(f"{b.name}.attn.positions", "buckets", "heads", kind="weight"),)
    if not layer.cross:
        b.tensor("x", *STREAM)
        return b.finish(("x",), (_layer(b, arch, layer, "x", fused=fused, table=table),))
    encoded = b.tensor("encoded", *SOURCE)
    if not first:
        b.tensor("x", *STREAM)
        out = _layer(b, arch, layer, "x", fused=fused, encoded=encoded)
        return b.finish(("x", encoded), (out,))
    if arch.final_norm:
        encoded = b.norm("source_norm", encoded, "encoded_normed")
    x = _placed(b, arch, _lookup(b))
    b.tied |= {EMBEDDING}
    out = _layer(b, arch, layer, x, fused=fused, encoded=encoded, table=table)
    return b.finish(("encoded", "tokens"), (out, encoded))


def _layer(
    b: Builder,
    arch: Architecture,
    layer: Layer,
    x: str,
    *,
    fused: bool,
    encoded: str = "",
    table: tuple[str, ...] = (),
) -> str:
    how = {"fused": fused, "dropout": arch.dropout}
    normed = b.norm("norm1", x, "normed1")
    if isinstance(layer.attention, LatentAttention):
        out = attn.latent(b, normed, layer.attention, **how)
    else:
        out = attn.grouped_query(b, normed, layer.attention, **how, table=table)
    if layer.parallel:
        source = b.norm("norm2", x, "normed2") if layer.parallel_norms == 2 else normed
        return b.memory("add", (x, out, _feed_forward(b, layer, source)), "y", STREAM)
    if layer.post_norms:
        out = b.norm("post_norm1", out, "attn_normed")
    if arch.dropout:
        out = b.dropout("attn.out_dropout", out, "attn_dropped")
    middle = b.memory("add1", (x, out), "x_middle", STREAM)
    if encoded and isinstance(layer.attention, Attention):
        normed = b.norm("cross_norm", middle, "cross_normed")
        out = attn.cross(b, normed, encoded, layer.attention, **how)
        if arch.dropout:
            out = b.dropout("cross.out_dropout", out, "cross_dropped")
        middle = b.memory("add_cross", (middle, out), "x_crossed", STREAM)
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
    tokens = arch.source_seq or seq if arch.num_encoder_layers else seq
    b = _builder(arch, None, tokens, "embedding")
    out = _placed(b, arch, _lookup(b))
    return b.finish(("tokens",), (out,))


def _placed(b: Builder, arch: Architecture, out: str) -> str:
    """What was looked up, with learned positions, norm and dropout where the model has them."""
    if arch.positions:
        b.sizes["positions"] = arch.positions
        table = b.tensor(f"{b.name}.positions", "positions", "embed", kind="weight")
        out = b.memory("positions", (out,), "x_placed", STREAM, weights=(table,))
    if arch.embedding_norm:
        out = b.norm("norm", out, "x_normed")
    return b.dropout("dropout", out, "x_dropped") if arch.dropout else out


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
    normed = b.norm("norm", x, "x_normed") if arch.final_norm else x
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
