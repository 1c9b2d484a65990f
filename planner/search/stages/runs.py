"""Runs of layers that the stages of a layout may hold, each with every way to recompute them, priced on every stage."""

from __future__ import annotations

import numpy as np

from planner.candidates import RECOMPUTE
from planner.cost.activations import held_at_once
from planner.cost.cut import FULL, NONE
from planner.cost.prices import Prices, cut_of
from planner.search.stages.options import Choices, Mixing, Priced, choices, priced
from planner.units import Array


class Runs:
    """Choices of recompute for the runs of layers that stages may hold."""

    def __init__(self, p: Prices, mixing: Mixing, limit: float | Array) -> None:
        self.p, self.mixing, self.limit = p, mixing, limit
        self.pp, self.vpp = int(p.rows.pp[0]), int(p.rows.vpp[0])
        self.model = p.task.model
        blocks = cut_of(p).sum(axis=1)[None]
        self.flying = held_at_once(p, blocks, np.arange(self.pp)[None])[0]

    def choices(
        self, runs: list[tuple[int, ...]], whole: list[int] | None = None
    ) -> tuple[Choices, Priced]:
        """Every allowed choice for these runs, on every stage; ``whole`` as in :func:`choices`."""
        if self.mixing == "alike":
            allowed = [int(self.p.rows.recompute[0])]
        elif self.counted:
            allowed = [FULL, NONE]
        else:
            allowed = [RECOMPUTE.index(mode) for mode in self.p.task.trainer.recompute]
        ends = 2 if self.model.mtp else 1
        found = choices(runs, len(self.model.blocks), ends, allowed, whole)
        return found, priced(self.p, found, self.flying, self.limit)

    @property
    def counted(self) -> bool:
        """Whether every chunk recomputes the same number of layers, and nothing of the others."""
        return self.mixing == "count" and "full" in self.p.task.trainer.recompute

    def counts(self, most: int) -> list[int | None]:
        """Numbers of recomputed layers that are tried, the same for every chunk; None where stages are free."""
        return list(range(most + 1)) if self.counted else [None]
