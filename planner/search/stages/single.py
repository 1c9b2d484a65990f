"""The best cuts of a layout whose stages hold one chunk each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.cost.cut import Cut
from planner.cost.orders import Schedule
from planner.cost.partition import even_cut
from planner.cost.prices import block_seconds
from planner.search.stages.descent import NEAR
from planner.search.stages.early import least_seconds
from planner.search.stages.options import Held, Priced
from planner.search.stages.runs import Fastest, Runs
from planner.search.stages.solver import PROVEN, Stages, narrowed, scan, solve
from planner.search.stages.table import EQUAL, StageTable
from planner.units import Array, BoolArray, IntArray, unique

SLACK = 2
"""Layers by which a stage may differ from its share beyond what embedding, head and recompute explain."""
AGAIN = 0.3
"""Share of its layers that a stage may give away because it recomputes and others do not: a forward pass of three."""
TOGETHER = 1 << 17
"""Runs of layers, times stages and numbers of recomputed layers, that are priced together."""


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
        kind, firsts = beginnings(layers, int(sizes.max()))
        numbers: dict[tuple[int, ...], int] = {}
        runs = np.full((len(firsts), len(sizes)), -1)
        for row, low in enumerate(firsts):
            for place, size in enumerate(sizes.tolist()):
                if low + size <= len(layers):
                    span = layers[low : low + size]
                    runs[row, place] = numbers.setdefault(span, len(numbers))
        held = self.held(list(numbers))
        start = even_cut(len(layers), self.pp, 1)
        wholes = self._counts(held)
        bounds = self._least(held, wholes, sizes, kind, runs)
        for place in np.argsort(bounds, kind="stable"):
            if bounds[place] >= reached:
                return
            found = self.fastest(held, wholes[place])
            table, after = self._table(sizes, kind, runs, found.known)
            if not may_reach(table, after, reached):
                continue
            for stages, beaten, gap in self._solved(table, after, start, reached):
                reached = min(reached, beaten)
                yield self._cut(stages, sizes, kind, runs, found), max(0.0, gap)

    def _counts(self, held: Held) -> list[IntArray | None]:
        """How many layers of every run recompute: what may be tried, the same number for every chunk.

        Only numbers with which something fits that did not with fewer: every other cut is one of fewer recomputed
        layers too, no slower there.
        """
        if not self.counted:
            return [None]
        least = self.least(held)
        counts = unique(least[least <= held.length])
        return [
            np.minimum(count, held.length)
            for count in counts
            if self._most(held, least <= count) >= self.model.num_layers
        ]

    def _least(
        self,
        held: Held,
        wholes: Sequence[IntArray | None],
        sizes: IntArray,
        kind: IntArray,
        runs: IntArray,
    ) -> Array:
        """Seconds of the schedule and what follows it that no cut beats, for every number of recomputed layers."""
        counts = [whole for whole in wholes if whole is not None]
        bounds, num = [np.zeros(len(wholes) - len(counts))], len(held.length)
        most = max(1, TOGETHER // (self.pp * num))
        for first in range(0, len(counts), most):
            full = np.stack(counts[first : first + most])
            run = np.tile(np.arange(num), len(full))
            known = self.priced(held, run, full.reshape(1, -1), np.zeros((1, 1), np.int64))
            table, after = self._table(sizes, kind, runs, known.split(len(full)))
            bounds.append(least_seconds(table, after))
        return np.concatenate(bounds)

    @staticmethod
    def _most(held: Held, allowed: BoolArray) -> int:
        """Layers of all stages that hold the longest run allowed; ``allowed`` is ``(stages, runs)``."""
        return int(np.where(allowed, held.length, 0).max(axis=1).sum())

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
            slow = found.makespan + least > reached * (1.0 + NEAR)
            ends = slow or bound >= min(whole, reached) * (1.0 - PROVEN)
            least_left = bound if ends else found.bound + last
            if least_left < reached:
                reached = min(reached, whole)
                yield found, reached, 1.0 - least_left / whole
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
        self, sizes: IntArray, kind: IntArray, runs: IntArray, known: Priced
    ) -> tuple[StageTable, Array]:
        """What every stage may hold, and the seconds that follow the schedule but for jitter.

        Shapes: what is known ``(..., stages, runs)``, results ``(..., stages, kinds, sizes)``.
        """
        stage = np.arange(self.pp)[:, None, None]
        allowed = (runs >= 0) & known.fits[..., runs]
        allowed &= (sizes > 0) | (stage == 0) | (stage == self.pp - 1)

        def seconds(part: Array) -> Array:
            return np.where(allowed, part[..., runs], np.inf)

        table = StageTable(
            schedule=Schedule(int(self.p.rows.schedule[0])),
            micro_batches=int(self.p.micro_batches[0]),
            sizes=sizes,
            kind=kind,
            forward=seconds(known.forward),
            backward=seconds(known.backward),
            weight=seconds(known.weight),
            send=self.p.delays(self.pp)[0],
        )
        return table, seconds(known.after) / (1.0 + self.p.task.trainer.overhead.jitter)

    def _cut(
        self, stages: Stages, sizes: IntArray, kind: IntArray, runs: IntArray, found: Fastest
    ) -> Cut:
        low = np.cumsum(stages.layers) - stages.layers
        run = runs[kind[low], np.searchsorted(sizes, stages.layers)]
        stage = np.arange(self.pp)
        return Cut(stages.layers, found.full[stage, run], found.selective[stage, run])


def beginnings(layers: Sequence[int], longest: int) -> tuple[IntArray, list[int]]:
    """First layers from which on the same kinds follow, as far as a run may reach.

    Args:
        layers: kinds of layers.
        longest: of a run.

    Returns:
        For every first layer, and the end, which of the others it is alike; and those.

    >>> beginnings((0, 1, 1, 1, 1), 2)
    (array([0, 1, 1, 1, 1, 0]), [0, 1])
    """
    text = np.array(layers, dtype=np.uint16).tobytes()
    kind: list[int] = []
    firsts: dict[bytes, int] = {}
    for low in range(len(layers) + 1):
        mine = text[2 * low : 2 * (low + longest)]
        alike = mine if mine in firsts else next((f for f in firsts if f.startswith(mine)), mine)
        kind.append(list(firsts).index(alike) if alike in firsts else len(firsts))
        firsts.setdefault(alike, low)
    return np.array(kind), list(firsts.values())


def may_reach(table: StageTable, after: Array, reached: float) -> bool:
    """Whether some cut may take less than what is reached; arguments as in :meth:`Single._solved`.

    Every stage is busy with all micro-batches, and what follows the slowest stage follows all.
    """
    busy = table.micro_batches * (table.forward + table.backward)
    fast = table.where(busy + after < reached)
    whole = scan(fast, lambda _, before, own: before + own)
    if whole is None:
        return False
    return narrowed(fast, whole[0], reached - least_maximum(fast, after)) is not None


def least_maximum(table: StageTable, each: Array) -> float:
    """Least over all cuts of the largest value of a stage, for values of every run; infinite where there is no cut."""
    allowed = np.isfinite(table.forward + table.backward)
    values = np.where(allowed, each, np.inf)
    found = scan(
        replace(table, forward=values, backward=np.zeros_like(values)),
        lambda _, before, own: np.maximum(before, own),
    )
    return np.inf if found is None else found[0]
