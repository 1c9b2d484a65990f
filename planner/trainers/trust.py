"""How far predictions go: spreads of residuals by chip family and trainer, as data in ``trust.json``.

The data are written by ``python -m benchmarks.trust --write`` from measured runs, and checked on runs that no number
was fitted on. A spread is a quantile of residuals in which every group of runs (one cluster, software and model
family) weighs the same, drawn towards that of all runs where groups are few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

from planner.trainers.trainer import Task
from planner.units import Json

PATH = Path(__file__).with_name("trust.json")
Quantity: TypeAlias = Literal["step", "memory"]
Basis: TypeAlias = Literal["pair", "family", "trainer", "all"]
"""What the runs of a spread have in common: chip family and trainer, one of them, or nothing."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How far some measured runs were from their predictions; shares of the prediction."""

    half: float
    """Half width of the interval that holds 80 % of the runs."""
    noise: float
    """The same around the mean of a run's own group: what is left when two layouts of one cluster are compared."""
    runs: int
    """Measured runs."""
    median: float
    """Median error of a group's runs, predicted over measured, averaged over groups; those that the fit did not see
    where there are any."""
    basis: Basis


def key(family: str, trainer: str) -> str:
    """Name of the spread of runs of a chip family under a trainer.

    >>> key("hopper", "megatron")
    'hopper, megatron'
    """
    return f"{family}, {trainer}"


def spread(quantity: Quantity, family: str, trainer: str) -> Spread:
    """The spread of the runs that are most alike: same family and trainer, same family, same trainer, all.

    Classes of fewer than three groups of runs have none of their own.

    Memory does not depend on how fast a chip is, so the trainer goes before the family.
    """
    return chosen(_table()[quantity], quantity, family, trainer)


def chosen(
    data: Mapping[str, Mapping[str, Json]], quantity: Quantity, family: str, trainer: str
) -> Spread:
    """The same of the classes of ``data``."""
    names: dict[Basis, str] = {"pair": key(family, trainer)}
    names |= {"family": family, "trainer": trainer}
    order: list[Basis] = ["pair", "family", "trainer"]
    if quantity == "memory":
        order = ["pair", "trainer", "family"]
    for basis in order:
        if names[basis] in data:
            return Spread(**data[names[basis]], basis=basis)
    return Spread(**data["all"], basis="all")


def upper(trainer: str) -> float:
    """Factor from the predicted median of memory to what nine of ten runs stay under."""
    factors = _table()["upper"]
    return float(factors.get(trainer, factors["all"]))


def room(task: Task) -> float:
    """Bytes that the median of a plan's memory may reach, so that its upper quantile stays within the limit."""
    return task.memory_limit / upper(task.trainer.name)


@lru_cache(maxsize=1)
def _table() -> dict[str, Json]:
    found: dict[str, Json] = json.loads(PATH.read_text(encoding="utf-8"))
    return found
