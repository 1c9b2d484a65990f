"""A model description as a person writes it: one YAML file a model, every key with one meaning.

The published JSON Schema comes from these classes (``shardwright schema model``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from planner.errors import listed
from planner.frontends.fields import Description, slip
from planner.units import Json

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

MOST = 10**8


def _count(value: Json, least: int = 1, most: int = MOST) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise slip("U02", "", " must be a whole number")
    if not least <= value <= most:
        shown = value if abs(value) < 10**20 else "so large"
        raise slip("U02", f" {shown}", f" must be at least {least} and at most {most}")
    return value


def _one_of(names: tuple[str, ...], value: Json) -> str:
    if value not in names:
        raise slip(
            "U02", f" '{value}'" if isinstance(value, str) else "", f" must be {listed(names)}"
        )
    return str(value)


def _several(value: Json) -> Json:
    return [value] if isinstance(value, str) else value


Size: TypeAlias = Annotated[
    int, BeforeValidator(_count), WithJsonSchema({"type": "integer", "minimum": 1})
]
"""A whole number of at least 1."""
Rows: TypeAlias = Annotated[
    int,
    BeforeValidator(partial(_count, least=0)),
    WithJsonSchema({"type": "integer", "minimum": 0}),
]
"""A whole number, 0 for none."""
Norm: TypeAlias = Annotated[
    Literal["rms", "layer", "layer-no-bias", "none"],
    BeforeValidator(partial(_one_of, ("rms", "layer", "layer-no-bias", "none"))),
]
QkNorm: TypeAlias = Annotated[
    Literal["none", "head", "all", "plain"],
    BeforeValidator(partial(_one_of, ("none", "head", "all", "plain"))),
]


class AttentionPart(Description):
    """Multi-head or grouped-query attention."""

    heads: Size
    kv_heads: Size
    """Key/value heads; as many as ``heads`` for multi-head attention."""
    head_dim: Size
    window: Size | None = None
    """Tokens a query sees to its left; leave out for all."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNorm = "none"
    """Norm of queries and keys: ``head`` (one weight of head_dim), ``all`` (one over all heads), ``plain`` (none)."""
    sinks: bool = False
    """One learned logit a head in the softmax."""
    output_gate: bool = False
    rotary: bool = True
    causal: bool = True
    """False where a token sees those behind it too, as in an encoder."""


class LatentPart(Description):
    """Multi-head latent attention."""

    heads: Size
    q_latent: Size | None = None
    """Rank of the query compression; leave out where queries are projected directly."""
    kv_latent: Size
    nope_dim: Size
    """Head size of queries and keys without position."""
    rope_dim: Size
    value_dim: Size


class MlpPart(Description):
    """A dense feed-forward layer."""

    width: Size
    gated: bool = True
    bias: bool = False


class ExpertsPart(Description):
    """A mixture of experts."""

    count: Size
    top_k: Size
    width: Size
    """Width of one expert."""
    shared_width: Rows = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    one_hot: Rows = 0
    """Tokens of a group, where products with one-hot matrices bring tokens to experts; 0 where rows are copied."""


class _NumberOrRuns:
    """What ``layers`` may be, told when a schema is asked for."""

    @staticmethod
    def __get_pydantic_json_schema__(
        _core: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        number: JsonSchemaValue = {"type": "integer", "minimum": 1}
        return {"anyOf": [number, {"type": "array", "items": Run.model_json_schema()}]}


class KindPart(Description):
    """One kind of layer; what it leaves out stands at the top of the file."""

    attention: AttentionPart | None = None
    latent_attention: LatentPart | None = None
    mlp: MlpPart | None = None
    experts: ExpertsPart | None = None
    post_norms: bool = False
    """Norms also after attention and after the MLP."""
    parallel: bool = False
    """Attention and MLP read the same normed input."""
    parallel_norms: Annotated[int, BeforeValidator(partial(_count, most=2))] = 1
    """Norms before the parallel pair."""
    encodes: bool = False
    """A layer of the encoder, which runs over the source; these come first."""
    cross: bool = False
    """A second attention, to what the encoder made."""


class Run(Description):
    """Layers in order: the kinds ``of`` one after the other, ``times`` over."""

    of: Annotated[
        list[str],
        BeforeValidator(_several),
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        ),
    ]
    times: Annotated[int, BeforeValidator(partial(_count, most=10_000))] = 1


class ModelDescription(KindPart):
    """A language model: a decoder, or an encoder and the decoder that reads its result.

    A model with layers of one kind describes that kind at the top and gives ``layers`` as a number.
    """

    name: str
    aliases: list[str] = Field(default_factory=list)
    """Other spellings of the name, on one line."""
    source: str = ""
    """Where the numbers come from."""
    params: Annotated[float, Field(gt=0)] | None = None
    """The published parameter count; the description must agree with it to half a per cent."""
    hidden: Size
    vocab: Size
    max_seq: Annotated[int, BeforeValidator(partial(_count, most=10**9))]
    """Longest sequence the model card states."""
    kinds: dict[str, dict[str, Json]] = Field(default_factory=dict)
    """Kinds of layers by name, each with what KindPart has."""
    layers: Annotated[list[Run], _NumberOrRuns]
    """The number of layers, or runs such as ``{of: dense, times: 3}`` or ``{of: [window, full], times: 12}``."""
    norm: Norm = "rms"
    tied: bool = False
    """Output projection shares the embedding table."""
    positions: Rows = 0
    """Rows of a learned position table."""
    buckets: Rows = 0
    """Rows of a table of relative positions (T5)."""
    embedding_norm: bool = False
    final_norm: bool = True
    """A norm behind the last layer, of the encoder too."""
    head_bias: bool = False
    dropout: bool = False
    mtp: Rows = 0
    """Multi-token-prediction modules."""
    source_seq: Rows = 0
    """Tokens of the source that an encoder reads; 0 for as many as the sequence has."""
