"""The best division of a layout's layers over its stages, and what each of them recomputes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.candidates import RECOMPUTE
from planner.cost.activations import held_at_once
from planner.cost.cut import Cut, uniform
from planner.cost.orders import Schedule
from planner.cost.partition import even_cut
from planner.cost.prices import Prices, block_seconds, cut_of, with_cut
from planner.cost.step import makespans, memory_of_stages, stage_times, step_seconds
from planner.cost.table import KEY_AXIS
from planner.search.stages.options import Choices, Mixing, Priced, choices, fastest, priced
from planner.search.stages.solver import Stages, StageTable, solve
from planner.search.stages.stated import base_mode
from planner.units import Array, IntArray

SLACK = 2
"""Layers by which a stage may differ from its share beyond what embedding, head and recompute explain."""
AGAIN = 0.3
"""Share of its layers that a stage may give away because it recomputes and others do not: a forward pass of three."""


@dataclass(frozen=True, slots=True, eq=False)
class Refined:
    """A layout with its best cut."""

    prices: Prices
    step: float
    """Seconds."""
    memory: float
    """Bytes on the fullest chip; the median."""
    gap: float
    """Share by which an unknown cut may still be faster."""


def refine(p: Prices, mixing: Mixing, limit: float, reached: float = np.inf) -> Refined | None:
    """The best cut of a layout.

    Args:
        p: the layout, a table of one row.
        mixing: how its layers may differ in what they recompute; ``alike`` keeps the layout's mode.
        limit: bytes, of the median.
        reached: seconds of a step; slower cuts may be left out.

    Returns:
        None where no cut fits, or none is faster than what is reached, where the order of the schedule follows the
        stages' times, or where something is in host memory.
    """
    schedule = Schedule(int(p.rows.schedule[0]))
    pp, vpp = int(p.rows.pp[0]), int(p.rows.vpp[0])
    alone = pp == 1 and mixing == "alike"
    if alone or schedule.adaptive or p.rows.offload[0]:
        return None
    layers = even_cut(p.task.model.num_layers, pp, vpp)
    wide = with_cut(_alone(p), uniform(layers, int(p.rows.recompute[0])))
    search = _Chunked(wide, mixing, limit) if vpp > 1 or pp == 1 else _Single(wide, mixing, limit)
    best = None
    for cut, gap in search.cuts(reached):
        rows = replace(wide.rows, recompute=np.array([base_mode(cut)]))
        found = _exact(with_cut(replace(wide, rows=rows), cut), gap)
        if found.memory <= limit and (best is None or found.step < best.step):
            best = found
    return best


def _alone(p: Prices) -> Prices:
    """A layout with its own row of the table of blocks alone."""
    rows = {
        each.name: getattr(p.table, each.name).take(p.key, axis=KEY_AXIS[each.name])
        for each in fields(p.table)
    }
    return replace(p, table=replace(p.table, **rows), key=np.zeros(1, dtype=np.int64))


def _exact(p: Prices, gap: float) -> Refined:
    times = stage_times(p)
    step = step_seconds(p, times, makespans(p, times))
    memory = memory_of_stages(p, times.blocks).total.max()
    return Refined(p, float(step[0]), float(memory), gap)


class _Search:
    """Choices of recompute for the runs of layers that stages may hold."""

    def __init__(self, p: Prices, mixing: Mixing, limit: float) -> None:
        self.p, self.mixing, self.limit = p, mixing, limit
        self.pp, self.vpp = int(p.rows.pp[0]), int(p.rows.vpp[0])
        self.model = p.task.model
        blocks = cut_of(p).sum(axis=1)[None]
        self.flying = held_at_once(p, blocks, np.arange(self.pp)[None])[0]

    def choices(self, runs: list[tuple[int, ...]]) -> tuple[Choices, Priced]:
        """Every allowed choice for these runs, on every stage."""
        alike = self.mixing == "alike"
        modes = [RECOMPUTE.index(mode) for mode in self.p.task.trainer.recompute]
        allowed = [int(self.p.rows.recompute[0])] if alike else modes
        ends = 2 if self.model.mtp else 1
        found = choices(runs, len(self.model.blocks), ends, allowed)
        return found, priced(self.p, found, self.flying, self.limit)

    def counts(self, most: int) -> list[int | None]:
        """Numbers of recomputed layers that are tried, the same for every chunk; None where stages are free."""
        if self.mixing == "count" and "full" in self.p.task.trainer.recompute:
            return list(range(most + 1))
        return [None]


class _Single(_Search):
    """One chunk a stage: the cut is searched."""

    def cuts(self, reached: float) -> Iterator[tuple[Cut, float]]:
        """The best cut of every number of recomputed layers that is tried, with its gap.

        Args:
            reached: seconds; cuts whose makespan is longer may be left out.
        """
        sizes = self._sizes()
        layers = self.model.layers
        spans = [(low, size) for size in sizes.tolist() for low in range(len(layers) + 1 - size)]
        numbers: dict[tuple[int, ...], int] = {}
        run = [numbers.setdefault(layers[low : low + size], len(numbers)) for low, size in spans]
        runs = np.full((len(layers) + 1, len(sizes)), -1)
        for (low, size), number in zip(spans, run, strict=True):
            runs[low, np.searchsorted(sizes, size)] = number
        found, known = self.choices(list(numbers))
        lengths = np.array([len(each) for each in numbers])
        start = even_cut(len(layers), self.pp, 1)
        for count in self.counts(int(sizes.max())):
            full = None if count is None else np.minimum(count, lengths)
            chosen = fastest(found, known, full)
            stages = solve(self._table(sizes, runs, chosen, known), start, reached)
            if stages is not None:
                reached = min(reached, stages.makespan)
                yield self._cut(stages, sizes, runs, chosen, found), _gap(stages)

    def _sizes(self) -> IntArray:
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
    ) -> StageTable:
        stage = np.arange(self.pp)[:, None, None]
        choice = np.where(runs >= 0, chosen[:, np.maximum(runs, 0)], -1)
        empty = (sizes == 0) & (stage > 0) & (stage < self.pp - 1)
        choice = np.where(empty, -1, choice)

        def seconds(part: Array) -> Array:
            return np.where(choice >= 0, part[stage, np.maximum(choice, 0)], np.inf)

        return StageTable(
            schedule=Schedule(int(self.p.rows.schedule[0])),
            micro_batches=int(self.p.micro_batches[0]),
            sizes=sizes,
            forward=seconds(known.forward),
            backward=seconds(known.backward),
            weight=seconds(known.weight),
            send=self.p.sends.boundaries(self.pp)[0],
        )

    def _cut(
        self, stages: Stages, sizes: IntArray, runs: IntArray, chosen: IntArray, found: Choices
    ) -> Cut:
        low = np.cumsum(stages.layers) - stages.layers
        run = runs[low, np.searchsorted(sizes, stages.layers)]
        choice = chosen[np.arange(self.pp), run]
        return Cut(stages.layers, found.full[choice], found.selective[choice])


class _Chunked(_Search):
    """Several chunks a stage: the cut is even, what each stage recomputes is chosen.

    Layers are recomputed in turn from all chunks of a stage, so that chunks stay as equal as they can be.
    """

    def cuts(self, reached: float) -> Iterator[tuple[Cut, float]]:
        """The best recompute for every number that is tried; no other of the even cut is faster."""
        assert self.p.cut is not None
        layers = self.p.cut.layers
        turns = [self._turns(layers, stage) for stage in range(self.pp)]
        runs = [tuple(self.model.layers[i] for i in turn) for turn in turns]
        found, known = self.choices(runs)
        owner = np.repeat(np.arange(len(layers)), layers)
        mine = [owner[turn] for turn in turns]
        for count in self.counts(int(layers.max())):
            full = None
            if count is not None:
                each = np.minimum(layers, count)
                full = np.array([sum(each[np.unique(chunks)]) for chunks in mine])
            choice = fastest(found, known, full)[np.arange(self.pp), np.arange(self.pp)]
            if (choice >= 0).all():
                yield self._cut(layers, mine, found.full[choice], found.selective[choice]), 0.0

    def _turns(self, layers: IntArray, stage: int) -> list[int]:
        """Layers of a stage in the order in which they are recomputed: the first of every chunk, then the second."""
        first = np.cumsum(layers) - layers
        ends = 2 * self.pp - 1 - stage
        chunks = [stage, ends] if self.p.rows.folded[0] else range(stage, len(layers), self.pp)
        most = int(layers.max())
        return [
            int(first[chunk]) + turn
            for turn in range(most)
            for chunk in chunks
            if turn < layers[chunk]
        ]

    def _cut(
        self, layers: IntArray, mine: list[IntArray], full: IntArray, selective: IntArray
    ) -> Cut:
        again = np.zeros((2, len(layers)), dtype=np.int64)
        for chunks, whole, part in zip(mine, full, selective, strict=True):
            np.add.at(again[0], chunks[:whole], 1)
            np.add.at(again[1], chunks[whole : whole + part], 1)
        return Cut(layers, again[0], again[1])


def _gap(stages: Stages) -> float:
    return max(0.0, 1.0 - stages.bound / stages.makespan)
