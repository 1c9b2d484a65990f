"""Small hands for rules: values of a single row, and the nearest values that would be right."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from planner.candidates import Candidates
from planner.errors import listed
from planner.units import BoolArray, IntArray

DENSE_AXES = ("dp", "cp", "tp", "pp")


def value(candidates: Candidates, column: str) -> int:
    """The entry of a column of a table of one row."""
    return int(getattr(candidates, column)[0])


def every(column: IntArray | BoolArray) -> BoolArray:
    """A mask that keeps all rows."""
    return np.ones(len(column), dtype=np.bool_)


def divisors(number: int) -> list[int]:
    """Divisors, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def closest(values: Iterable[int], wanted: int, count: int = 8) -> list[int]:
    """The values nearest to the wanted one (by ratio), ascending.

    >>> closest([1, 2, 4, 13, 26, 52], 8, 3)
    [4, 13, 26]
    """
    far = sorted(values, key=lambda v: (max(v / wanted, wanted / v), v))
    return sorted(far[:count])


def around(number: int, step: int) -> list[int]:
    """The multiples of a step on both sides of a number; the lower one only where it is positive.

    >>> around(500, 16), around(3, 8)
    ([496, 512], [8])
    """
    low = number // step * step
    return [multiple for multiple in (low, low + step) if multiple > 0]


def product(candidates: Candidates, axes: Iterable[str] = DENSE_AXES) -> str:
    """Degrees as a product, those of one left out: ``dp 8 × tp 8 × pp 3``."""
    shown = [f"{axis} {value(candidates, axis)}" for axis in axes if value(candidates, axis) > 1]
    return " × ".join(shown) or "dp 1"


def can(axis: str, values: list[int]) -> str:
    """The sentence ``tp 1, 2, 4 or 8 can.`` for an axis and its valid degrees."""
    return f"{axis} {listed(values)} can."
