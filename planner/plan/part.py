"""What all parts of a plan have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from planner.documented import Documented

Count = Annotated[int, Field(ge=1)]
"""Whatever there is at least one of: a file with a 0 in its place is refused when it is read."""
Positive = Annotated[float, Field(gt=0)]
"""A total, a size or a rate."""
Share = Annotated[float, Field(ge=0)]
"""A part of a total, which may be nothing."""


class Part(Documented):
    """Base of all parts of a plan: frozen, and strict about unknown keys; every number is finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
