"""What all parts of a plan have in common."""

from __future__ import annotations

from pydantic import ConfigDict

from planner.documented import Documented


class Part(Documented):
    """Base of all parts of a plan: frozen, and strict about unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True
    )
