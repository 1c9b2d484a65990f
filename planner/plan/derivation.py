"""How a number of a plan comes about: the formula, what was put in, the result."""

from __future__ import annotations

from typing import Literal, TypeAlias

from planner.plan.part import Part

Unit: TypeAlias = Literal["s", "B", "FLOP/s", "FLOP", "tokens/s", "$", ""]
"""Seconds, bytes, rates, money; nothing for counts and shares."""


class Quantity(Part):
    """One number that a formula takes."""

    value: float
    unit: Unit = ""
    meaning: str


class Derivation(Part):
    """One number of the plan taken apart.

    The formula is an expression in the names of its inputs, with ``max``: evaluated, it gives the value.
    """

    meaning: str
    """What the number is, in one sentence."""
    formula: str
    inputs: dict[str, Quantity]
    value: float
    unit: Unit = ""
    source: str = ""
    """Where the formula or its constants come from."""
