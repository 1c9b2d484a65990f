"""What all parts of a plan have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Base of all parts of a plan: frozen, and strict about unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", use_attribute_docstrings=True
    )
