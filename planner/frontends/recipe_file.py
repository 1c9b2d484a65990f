"""A recipe as a YAML file: batch, sequence, precision, optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from planner.errors import PlannerError
from planner.frontends.fields import Description, checked
from planner.frontends.yaml_source import load_yaml

Positive = Annotated[int, Field(gt=0, le=10**9)]


class RecipeFile(Description):
    """What training asks for; what is left out takes its default."""

    global_batch: Positive | str | None = None
    """Sequences in one optimizer step, or tokens as in ``4Mtok``."""
    seq_len: Positive | None = None
    """Tokens in one sequence."""
    precision: Literal["bf16", "fp8", "fp16", "fp32"] | None = None
    """Of matrix products; fp8 keeps bf16 weights."""
    optimizer: Literal["adamw", "sgd", "adamw-8bit", "adamw-bf16"] | None = None
    """Decides the bytes of optimizer states."""
    fused_attention: bool | None = None
    """Attention as one fused kernel; true by default."""


def read_recipe(path: Path) -> RecipeFile:
    """A recipe file.

    Raises:
        PlannerError: R02 without a file; Y01 to Y03 and U02 with positions for its faults.
    """
    if not path.is_file():
        raise PlannerError.of(
            "R02", f"there is no recipe file {path}.", "shardwright schema recipe"
        )
    return checked(load_yaml(path), RecipeFile, "recipe")
