"""The best cuts of a layout whose stages hold one chunk each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.cost.cut import Cut
from planner.cost.orders import Schedule
from planner.cost.partition import even_cut
from planner.cost.prices import block_seconds
from planner.search.stages.options import Choices, Priced, fastest
from planner.search.stages.runs import Runs
from planner.search.stages.solver import EQUAL, PROVEN, Stages, scan, solve
from planner.search.stages.table import StageTable
from planner.units import Array, IntArray

SLACK = 2
"""Layers by which a stage may differ from its share beyond what embedding, head and recompute explain."""
AGAIN = 0.3
"""Share of its layers that a stage may give away because it recomputes and others do not: a forward pass of three."""


class Single(Runs):
    """One chunk a stage: dynamic programming over the layers."""

    def cuts(self, reached: float) -> Iterator[tuple[Cut, float]]:
        """The best cut of every number of recomputed layers that is tried, with its gap.

        Args:
            reached: seconds of the schedule and what follows it, less the jitter of the pipeline; slower cuts may be
                left out.
        """
        sizes = self._sizes(reached)
        if not len(sizes):
            return  # not even stages without layers
        layers = self.model.layers
        numbers: dict[tuple[int, ...], int] = {}
        runs = np.full((len(layers) + 1, len(sizes)), -1)
        for place, size in enumerate(sizes.tolist()):
            spans = [layers[low : low + size] for low in range(len(layers) + 1 - size)]
            run = [numbers.setdefault(span, len(numbers)) for span in spans]
            runs[: len(run), place] = run
        found, known = self.choices(list(numbers))
        lengths = np.array([len(each) for each in numbers])
        start = even_cut(len(layers), self.pp, 1)
        seen = np.zeros((self.pp, len(lengths)), dtype=bool)
        stage = np.arange(self.pp)[:, None]
        seconds = self.p.micro_batches[0] * (known.forward + known.backward)
        for count in self.counts(int(sizes.max())):
            full = None if count is None else np.minimum(count, lengths)
            chosen = fastest(found, known, full)
            if not (new := (chosen >= 0) & ~seen).any():
                continue  # every cut of it is a cut of fewer recomputed layers, no slower there
            seen |= new
            fast = (chosen >= 0) & (seconds[stage, chosen] < reached)
            if np.where(fast, lengths, 0).max(axis=1).sum() < len(layers):
                continue  # stages that are not busy for longer than what is reached hold too few layers
            table, after = self._table(sizes, runs, chosen, known)
            after = after / (1.0 + self.p.task.trainer.overhead.jitter)
            for stages, beaten, gap in self._solved(table, after, start, reached):
                reached = min(reached, beaten)
                yield self._cut(stages, sizes, runs, chosen, found), max(0.0, gap)

    def _solved(
        self, table: StageTable, after: Array, start: IntArray, reached: float
    ) -> Iterator[tuple[Stages, float, float]]:
        """The best cuts of a table, each with what it takes in all, which others must beat, and its gap.

        What follows the schedule, gradients and the optimizer of the slowest stage, differs with the cut: the fastest
        step may have a longer schedule than the shortest one. Always the least makespan among cuts after which less
        follows, until what is gained cannot pay.

        Args:
            table: what every stage may hold.
            after: seconds that follow the schedule; shape as of the table's seconds.
            start: a cut to improve.
            reached: seconds of schedule and what follows; longer ones may be left out.
        """
        least = least_maximum(table, after)
        found = solve(table, start, reached - least)
        while found is not None:
            last = float(table.of(after, found.layers).max())
            whole, bound = found.makespan + last, found.bound + least
            ends = bound >= min(whole, reached) * (1.0 - PROVEN)
            if whole < reached:
                reached = whole
                yield found, reached, 1.0 - (bound if ends else found.bound + last) / whole
            if ends:
                break
            table = table.where(after < last * (1.0 - EQUAL))
            found = solve(table, start, reached - least)

    def _sizes(self, reached: float) -> IntArray:
        """Numbers of layers that a stage may hold."""
        forward, backward = block_seconds(self.p)
        seconds = (forward + backward)[0]
        ends = seconds[[0, -1]].sum() / seconds[1 : 1 + len(self.model.blocks)].min()
        share = self.model.num_layers / self.pp
        give = 0.0 if self.mixing == "alike" else AGAIN * share
        low = int(np.floor(share - give - ends)) - SLACK
        high = int(np.ceil(share + (ends + give * self.pp / 2) / max(self.pp - 1, 1))) + SLACK
        return np.arange(max(0, low), min(self.model.num_layers, high) + 1)

    def _table(
        self, sizes: IntArray, runs: IntArray, chosen: IntArray, known: Priced
    ) -> tuple[StageTable, Array]:
        """What every stage may hold, and the seconds that follow the schedule; shapes as of the table's seconds."""
        stage = np.arange(self.pp)[:, None, None]
        choice = np.where(runs >= 0, chosen[:, np.maximum(runs, 0)], -1)
        empty = (sizes == 0) & (stage > 0) & (stage < self.pp - 1)
        choice = np.where(empty, -1, choice)

        def seconds(part: Array) -> Array:
            return np.where(choice >= 0, part[stage, np.maximum(choice, 0)], np.inf)

        table = StageTable(
            schedule=Schedule(int(self.p.rows.schedule[0])),
            micro_batches=int(self.p.micro_batches[0]),
            sizes=sizes,
            forward=seconds(known.forward),
            backward=seconds(known.backward),
            weight=seconds(known.weight),
            send=self.p.delays(self.pp)[0],
        )
        return table, seconds(known.after)

    def _cut(
        self, stages: Stages, sizes: IntArray, runs: IntArray, chosen: IntArray, found: Choices
    ) -> Cut:
        low = np.cumsum(stages.layers) - stages.layers
        run = runs[low, np.searchsorted(sizes, stages.layers)]
        choice = chosen[np.arange(self.pp), run]
        return Cut(stages.layers, found.full[choice], found.selective[choice])


def least_maximum(table: StageTable, each: Array) -> float:
    """Least over all cuts of the largest value of a stage, for values of every run; infinite where there is no cut."""
    allowed = np.isfinite(table.forward + table.backward)
    values = np.where(allowed, each, np.inf)
    found = scan(
        replace(table, forward=values, backward=np.zeros_like(values)),
        lambda _, before, own: np.maximum(before, own),
    )
    return np.inf if found is None else found[0]
