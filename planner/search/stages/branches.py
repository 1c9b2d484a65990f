"""Cuts stage by stage: all beginnings that could still become the best one, at most so many of them.

A beginning of a cut is dropped once no end of it is faster than the best cut that is known. Where all that is left was
looked at, the best one is proven; where there was more than the width allows, the beginnings of the least bounds go on,
and cuts are simulated as long as those of the least bounds are faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.search.stages.table import EQUAL, StageTable
from planner.units import Array, BoolArray, IntArray

WIDTH = 100_000
"""Beginnings of cuts that are looked at, of every number of stages, times stages and numbers of layers of one."""
BATCH = 64
"""Cuts that are simulated together, those of the least bounds first: a step of a wide simulation costs little more."""
FEW = 16
"""The same of the first ones, and where schedules are so long that fewer than ``MOST`` cuts are simulated."""
MOST = 320
"""Cuts that are simulated in all."""
PASSES = 1 << 20
"""Forward passes in schedules that are simulated in all, as far as these do not repeat."""
PERIODS = 3
"""Micro-batches a stage after which a schedule repeats, about."""


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """For every stage one path through a schedule: ``once`` for each stage before it, ``stays`` and ``later``.

    The path of stage i takes what the stages before it take once, ``stays[i]`` times its own seconds, and ``later``
    times what every stage behind it takes. Beside it, the path of one micro-batch there and back.

    Proof: :mod:`planner.cost.bounds`; 1F1B runs ``m - p + i`` pairs of a backward and a forward between the forwards
    and the backwards that one micro-batch at the beginning and one in the end meet.
    """

    once: Array
    """Seconds of every run on every stage that count before a stage's own path; shape as of the table's seconds."""
    own: Array
    """Seconds of every run on every stage, forward and backward."""
    through: Array
    """The same of what one micro-batch waits for: without gradients of weights that are made later."""
    stays: Array
    """``(stages,)``; minus infinity where a stage has no such path."""
    later: float
    pairs: Array
    """Seconds of the sends before every stage that count there; ``(stages,)``."""
    both: Array
    """The same there and back; ``(stages,)``."""

    @staticmethod
    def of(table: StageTable) -> Paths:
        """Paths of the table's schedule."""
        p, m = table.num_stages, table.micro_batches
        own, pairs, every = table.forward + table.backward, table.pairs, np.full(p, float(m))
        if table.schedule.splits:
            through = own - np.where(np.isfinite(table.weight), table.weight, 0.0)
            return Paths(table.forward, own, through, every, 0.0, pairs / 2, pairs)
        if table.schedule == Schedule.GPIPE:
            return Paths(own, own, own, every, 1.0, pairs, pairs)
        turns = m - p + np.arange(p)
        stays = np.where(turns > 0, turns + 1.0, -np.inf)
        return Paths(own, own, own, stays, 2.0, pairs, pairs)

    def staying(self, stage: int, own: Array) -> Array:
        """Seconds that the path of a stage spends there."""
        times = self.stays[stage]
        return times * own if np.isfinite(times) else np.full_like(own, -np.inf)

    def behind(self, table: StageTable) -> tuple[Array, Array]:
        """Least seconds of all stages from each on, and least longest path among theirs, by the first layer left.

        Shapes: ``(stages + 1, layers + 1)`` each.
        """
        p, layers = table.num_stages, table.num_layers
        rest, path = np.full((2, p + 1, layers + 1), np.inf)
        rest[p, layers], path[p, layers] = 0.0, -np.inf
        for stage in reversed(range(p)):
            high = np.arange(layers + 1)[:, None] + table.sizes
            inside, high = high <= layers, np.minimum(high, layers)
            own, after = (
                self.own[stage][table.kind],
                np.where(inside, rest[stage + 1][high], np.inf),
            )
            with np.errstate(invalid="ignore"):
                stays = self.staying(stage, own) + self.later * after
                once = self.once[stage][table.kind]
                longest = np.maximum(stays, once + path[stage + 1][high])
            open_ = np.isfinite(own + after)
            passed = np.where(open_, self.through[stage][table.kind] + after, np.inf)
            rest[stage] = passed.min(axis=1) + self.both[stage]
            path[stage] = np.where(open_, longest, np.inf).min(axis=1) + self.pairs[stage]
        return rest, path


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """Beginnings of cuts; arrays ``(n,)``."""

    layers: IntArray
    """Of the stages so far; ``(n, stages so far)``."""
    end: IntArray
    once: Array
    """Seconds before the path of the next stage."""
    whole: Array
    """Seconds of one micro-batch through the stages so far."""
    path: Array
    """The longest path of the stages so far."""
    bound: Array
    """Seconds that no cut that begins so beats."""

    def take(self, index: IntArray | BoolArray) -> _Begun:
        return _Begun(*(getattr(self, name)[index] for name in self.__slots__))


def branch(
    table: StageTable, best: IntArray, seconds: float, *, whole: bool = False
) -> tuple[IntArray, float, bool]:
    """A cut that is no worse than the best one that is known, its makespan, and whether no other is faster.

    Args:
        table: what every stage may hold.
        best: the cut that is known.
        seconds: its makespan, or what another one must stay below.
        whole: whether to give up once not all that may be faster can be looked at.
    """
    paths = Paths.of(table)
    behind = paths.behind(table)
    none, start = np.zeros(1), np.zeros(1, np.int64)
    begun = _Begun(np.zeros((1, 0), np.int64), start, none, none, none - np.inf, none)
    every, width = True, max(1, WIDTH // (table.num_stages * len(table.sizes)))
    for stage in range(table.num_stages):
        begun = _longer(table, paths, behind, begun, stage, seconds)
        if len(begun.end) > width:
            if whole:
                return best, seconds, False
            every = False
            begun = begun.take(np.argpartition(begun.bound, width)[:width])
    cuts = begun.layers
    times = table.times(cuts)
    bounds = table.bounds(times, seconds)
    order = np.argsort(bounds, kind="stable")
    p = table.num_stages
    most = min(MOST, PASSES // (p * min(table.micro_batches, PERIODS * p)))
    batch = BATCH if most == MOST else FEW
    first = 0
    while first < len(cuts) and bounds[order[first]] < seconds:
        if first >= most:
            return best, seconds, False
        part = order[first : first + (batch if first else FEW)]
        forward, backward, weight = (each[part] for each in times)
        found = makespan(table.schedule, table.micro_batches, forward, backward, table.send, weight)
        place = int(found.argmin())
        if found[place] < seconds:
            best, seconds = cuts[part[place]], float(found[place])
        elif not every:
            break
        first += len(part)
    return best, seconds, every


def _longer(
    table: StageTable,
    paths: Paths,
    behind: tuple[Array, Array],
    begun: _Begun,
    stage: int,
    known: float,
) -> _Begun:
    """Beginnings with every run of layers that the next stage may hold, if a cut that begins so may be faster."""
    low, crossed, rest = begun.end[:, None], paths.pairs[stage], behind[0][stage + 1]
    high = low + table.sizes
    kind = table.kind[begun.end]
    own = paths.own[stage][kind]
    inside = (high <= table.num_layers) & np.isfinite(own)
    high = np.minimum(high, table.num_layers)
    with np.errstate(invalid="ignore"):
        stays = begun.once[:, None] + paths.staying(stage, own) + crossed
        path = np.maximum(begun.path[:, None] + paths.later * (own + crossed), stays)
        once = begun.once[:, None] + paths.once[stage][kind] + crossed
        whole = begun.whole[:, None] + paths.through[stage][kind] + paths.both[stage]
        bound = np.maximum(path + paths.later * rest[high], once + behind[1][stage + 1][high])
        bound = np.maximum(bound, whole + rest[high])
        row, place = np.nonzero(inside & (bound < known * (1.0 - EQUAL)))
    return _Begun(
        np.column_stack([begun.layers[row], table.sizes[place]]),
        high[row, place],
        *(each[row, place] for each in (once, whole, path, bound)),
    )
