"""The best cuts of a layout whose stages stand on pools of different chips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.cost.prices import block_seconds
from planner.search.stages.single import Single
from planner.search.stages.solver import EQUAL, Stages, scan, solve
from planner.search.stages.table import StageTable
from planner.units import Array, IntArray


class OnPools(Single):
    """One chunk a stage, as many layers as its chips are fast.

    What follows the schedule, gradients and the optimizer of the slowest stage, differs as much as the stages do: the
    fastest step may have a longer schedule than the shortest one.
    """

    def _solved(
        self, table: StageTable, after: Array, start: IntArray, reached: float
    ) -> Iterator[tuple[Stages, float]]:
        """Always the least makespan among cuts after which less follows, until what is gained cannot pay.

        ``reached`` counts what follows too, less the jitter of the pipeline; so does what others must beat.
        """
        after = after / (1.0 + self.p.task.trainer.overhead.jitter)
        least = least_maximum(table, after)
        found = solve(table, start, reached - least)
        while found is not None:
            last = float(table.of(after, found.layers).max())
            if found.makespan + last < reached:
                reached = found.makespan + last
                yield found, reached
            table = table.where(after < last * (1.0 - EQUAL))
            found = solve(table, start, reached - least)

    def _sizes(self, reached: float) -> IntArray:
        """Numbers of layers that a stage on the fastest pool may hold: it runs them once for every micro-batch."""
        assert self.p.mix is not None
        kinds = slice(1, 1 + len(self.model.blocks))
        least = min(
            float(np.add(*block_seconds(part))[0, kinds].min()) for part in self.p.mix.parts
        )
        most = reached / (least * float(self.p.micro_batches[0]))
        return np.arange(int(min(self.model.num_layers - self.pp + 2, most)) + 1)


def least_maximum(table: StageTable, each: Array) -> float:
    """Least over all cuts of the largest value of a stage, for values of every run; infinite where there is no cut."""
    allowed = np.isfinite(table.forward + table.backward)
    values = np.where(allowed, each, np.inf)
    found = scan(
        replace(table, forward=values, backward=np.zeros_like(values)),
        lambda _, before, own: np.maximum(before, own),
    )
    return np.inf if found is None else found[0]
