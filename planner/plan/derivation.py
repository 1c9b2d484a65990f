"""How a number of a plan comes about: the formula, what was put in, the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from planner.plan.part import Part

Unit: TypeAlias = Literal["s", "B", "B/s", "FLOP/s", "FLOP", "tokens/s", "$", "kWh", "W", "%", ""]
"""Seconds, bytes, rates, money, energy, power; shares as fractions, which are shown in percent; nothing for counts."""


class Quantity(Part):
    """One number that a formula takes."""

    name: str = ""
    value: float
    """In ``unit``."""
    unit: Unit = ""
    meaning: str


class Derivation(Part):
    """One number of the plan taken apart.

    The formula is an expression in the names of its inputs, with ``max``: evaluated, it gives the value.
    """

    meaning: str
    """What the number is, in one sentence."""
    formula: str
    inputs: tuple[Quantity, ...]
    value: float
    """In ``unit``; what the formula gives."""
    unit: Unit = ""
    source: str = ""
    """Where the formula or its constants come from."""


def named(inputs: Mapping[str, Quantity]) -> tuple[Quantity, ...]:
    """Quantities with the names under which a formula takes them."""
    return tuple(quantity.model_copy(update={"name": name}) for name, quantity in inputs.items())
