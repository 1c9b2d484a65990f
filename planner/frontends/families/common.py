"""What most decoders share: sizes, heads, and a list of layers folded into kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from planner.frontends.families.config import MAX_LAYERS, Config
from planner.graph.architecture import STATED, Architecture, Attention, Experts, Layer, NormKind
from planner.units import Json

Family: TypeAlias = Callable[[Config], Architecture]
"""Reads one configuration; the name and source are filled in by the caller."""

ATTENTION_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
RESIDUAL_DROPOUTS = (
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "dropout",
    "hidden_dropout_prob",
    "dropout_rate",
)
WINDOWED = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that every decoder states."""

    hidden: int
    layers: int
    vocab: int
    max_seq: int
    assumed: str
    tied: bool


def shape(
    c: Config,
    *,
    hidden: tuple[str, ...] = ("hidden_size",),
    layers: tuple[str, ...] = ("num_hidden_layers",),
    vocab: tuple[str, ...] = ("vocab_size",),
    seq: tuple[str, ...] = ("max_position_embeddings", "seq_length", "model_max_length"),
    tied: bool = False,
    default_seq: int = 2048,
    default_vocab: int | None = None,
) -> Shape:
    """Width, depth, vocabulary and longest sequence; the defaults are the family's own."""
    c.agree(*hidden)
    c.agree(*layers)
    return Shape(
        hidden=c.size(*hidden),
        layers=c.size(*layers, most=MAX_LAYERS),
        vocab=c.size(*vocab, default=default_vocab),
        max_seq=c.size(*seq, default=default_seq, most=10**9),
        assumed=STATED if c.states(*seq) else f"usual for the family; no {seq[0]}",
        tied=c.flag("tie_word_embeddings", default=tied),
    )


def attention(
    c: Config,
    hidden: int,
    *,
    heads: tuple[str, ...] = ("num_attention_heads",),
    kv: tuple[str, ...] = ("num_key_value_heads",),
    default_heads: int | None = None,
    default_kv: int | None = None,
    default_head_dim: int | None = None,
    **facts: Json,
) -> Attention:
    """Heads and their size. Missing key/value heads mean the family's default, or one for every query head."""
    c.agree(*heads)
    c.agree(*kv)
    count = c.size(*heads, default=default_heads)
    usual = count if default_kv is None else default_kv
    groups = c.size(*kv, default=usual) if kv else usual
    if not kv and c.data.get("num_key_value_heads") == groups:
        c.known("num_key_value_heads")
    head_dim = c.maybe("head_dim") or default_head_dim
    if head_dim is None:
        if not c.faults and hidden % count:
            c.impossible(
                f"has a width of {hidden} that {count} heads do not divide, and states no head_dim."
            )
        head_dim = max(hidden // count, 1)
    if not c.faults and count % groups:
        c.impossible(f"has {count} query heads that {groups} key/value heads do not divide.")
    return Attention(heads=count, kv_heads=groups, head_dim=head_dim, **facts)


def mixture(
    c: Config, count: tuple[str, ...], top_k: tuple[str, ...], width: int, **facts: Json
) -> Experts:
    """Experts of one width, and how many of them a token meets."""
    number, chosen = c.size(*count), c.size(*top_k)
    if not c.faults and chosen > number:
        c.impossible(f"sends a token to {chosen} of only {number} experts.")
    return Experts(count=number, top_k=chosen, width=width, **facts)


def architecture(
    c: Config, base: Shape, layers: Sequence[Layer], norm: NormKind = "rms", **facts: Json
) -> Architecture:
    """Fold the layers into their kinds; the name is the caller's."""
    mixed = {window(layer) for layer in layers} != {window(layers[0])}
    names: dict[Layer, str] = {}
    for layer in layers:
        if layer not in names:
            names[layer] = _kind_name(layer, mixed, set(names.values()))
    indices = {layer: index for index, layer in enumerate(names)}
    return Architecture(
        name="",
        hidden=base.hidden,
        vocab=base.vocab,
        max_seq=base.max_seq,
        assumed=base.assumed,
        kinds=tuple(replace(layer, name=name) for layer, name in names.items()),
        layers=tuple(indices[layer] for layer in layers),
        norm=norm,
        tied=base.tied,
        dropout=c.rate(*ATTENTION_DROPOUTS, *RESIDUAL_DROPOUTS) > 0,
        **facts,
    )


def window(layer: Layer) -> int | None:
    """The layer's attention window, if any."""
    return layer.attention.window if isinstance(layer.attention, Attention) else None


def layer_types(c: Config, layers: int, default: Callable[[int], bool]) -> list[bool]:
    """For every layer, whether its attention is windowed: from ``layer_types``, or by the family's rule."""
    types = c.items("layer_types", str, layers)
    if types is None:
        return [default(index) for index in range(layers)]
    strange = sorted({kind for kind in types if kind not in (*WINDOWED, "full_attention")})
    for kind in strange[:3]:
        c.refuse(f"has layers of type '{kind[:40]}': that kind of attention is not described yet.")
    return fit([kind in WINDOWED for kind in types], layers)


def fit(flags: Sequence[bool], layers: int) -> list[bool]:
    """One flag a layer even where the list, already reported as wrong, has another length."""
    return [*flags, *[False] * layers][:layers]


def windowed(plain: Attention, size: int | None, where: Sequence[bool]) -> list[Attention]:
    """One attention a layer, those marked limited to ``size`` tokens."""
    narrow = replace(plain, window=size)
    return [narrow if here else plain for here in where]


def _kind_name(layer: Layer, mixed: bool, taken: set[str]) -> str:
    name = "moe" if isinstance(layer.mlp, Experts) else "dense"
    name = "encoder" if layer.encodes else "decoder" if layer.cross else name
    if mixed:
        name += "-full" if window(layer) is None else "-window"
    if name not in taken:
        return name
    return next(f"{name}-{n}" for n in range(2, MAX_LAYERS) if f"{name}-{n}" not in taken)
