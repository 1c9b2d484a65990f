"""How far measured runs reach: the largest of everything that they had, by chip family, as data in ``measured.json``.

The data are written by ``python -m benchmarks.measured --write`` from the runs that predictions are compared with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from planner.units import show_count

PATH = Path(__file__).with_name("measured.json")
ALIKE = 0.01
"""Share by which a number may be larger and still count as measured."""
WORDS = {"chips": "chips", "params": "parameters", "seq": "tokens in a sequence"}
"""Facts that are told after their number; degrees are told before it."""


@lru_cache(maxsize=1)
def reach() -> Mapping[str, Mapping[str, float]]:
    """The largest number of every fact, by chip family."""
    found: Mapping[str, Mapping[str, float]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def beyond(family: str, facts: Mapping[str, float]) -> Iterator[str]:
    """What lies beyond all measured runs of a chip family, in words; nothing where the family has none.

    >>> list(beyond("hopper", {"chips": 8, "tp": 4096}))[0].split(" (")[0]
    'tp 4,096'
    """
    known = reach().get(family, {})
    for name, value in facts.items():
        if name in known and value > known[name] * (1.0 + ALIKE):
            yield f"{_said(name, value)} (runs have up to {_number(known[name])})"


def _said(name: str, value: float) -> str:
    return f"{_number(value)} {WORDS[name]}" if name in WORDS else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value < 1e6 else show_count(value)
