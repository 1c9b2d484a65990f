"""A recipe as a YAML file: batch, sequence, precision, optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from planner.errors import PlannerError
from planner.frontends.fields import Description, checked, slip
from planner.frontends.yaml_source import load_yaml
from planner.units import Json

MOST = 10**9
Positive = Annotated[int, Field(ge=1, le=MOST)]


def _batch(value: Json) -> Json:
    """One sentence for both forms, where a union would complain about each."""
    number = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST
    if value is None or number or isinstance(value, str):
        return value
    rest = " must be sequences as a whole number from 1 up, or tokens as in 4Mtok"
    raise slip("U02", f" {value!r}", rest)


_BATCH = WithJsonSchema(
    {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": MOST},
            {"type": "string"},
            {"type": "null"},
        ]
    }
)


Target: TypeAlias = Literal[
    "attention", "mlp", "experts", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
    "down_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
]  # fmt: skip


class LoraFile(Description):
    """Low-rank adapters beside weights that do not train."""

    rank: Annotated[int, Field(ge=1, le=4096)] = 16
    """Columns of the first, rows of the second matrix of an adapter."""
    targets: Annotated[list[Target], Field(min_length=1)] = Field(
        default_factory=lambda: list[Target](("attention",))
    )
    """Products that have an adapter: all of a group, or single ones as PEFT names them."""
    bits: Literal[16, 8, 4] = 16
    """In which the frozen weights are stored: 16, 8, or 4 as QLoRA does."""


class RecipeFile(Description):
    """What training asks for; what is left out takes its default."""

    global_batch: Annotated[int | str | None, BeforeValidator(_batch), _BATCH] = None
    """Sequences in one optimizer step, or tokens as in ``4Mtok``."""
    base_batch: Positive | None = None
    """Sequences in the batch for which the learning rate was tuned; another global batch then comes with hints."""
    seq_len: Positive | None = None
    """Tokens in one sequence."""
    precision: Literal["bf16", "fp8", "fp16", "fp32"] | None = None
    """Of matrix products; fp8 keeps bf16 weights."""
    optimizer: (
        Literal["adamw", "sgd", "adafactor", "lion", "muon", "adamw-8bit", "adamw-bf16"] | None
    ) = None
    """Decides the bytes of optimizer states."""
    fused_attention: bool | None = None
    """Attention as one fused kernel; true by default."""
    lora: LoraFile | None = None
    """Train adapters only; left out where all weights train."""
    master_weights: bool | None = None
    """Keep fp32 weights beside low-precision ones; true by default."""


def read_recipe(path: Path) -> RecipeFile:
    """A recipe file.

    Raises:
        PlannerError: R02 without a file; Y01 to Y03 and U02 with positions for its faults.
    """
    if not path.is_file():
        raise PlannerError.of(
            "R02", f"there is no recipe file {path}.", "What one holds: shardwright schema recipe"
        )
    return checked(load_yaml(path), RecipeFile, "recipe")
