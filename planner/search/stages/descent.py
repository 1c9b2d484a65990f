"""Cuts of layers into stages, made better by moving single layers between any two stages."""

from __future__ import annotations

from math import isqrt

import numpy as np

from planner.cost.bounds import stage_bound
from planner.cost.orders import Schedule
from planner.search.stages.table import EQUAL, StageTable
from planner.units import Array, IntArray

BOUNDED = 64
"""Neighbours of a cut whose better bounds are looked at, fewer of more stages: those of the least simple ones."""
SIMULATED = 8
"""Neighbours of a cut that are simulated: those of the least bounds."""
MOVED = 1 << 16
"""Cuts that move a layer, times their stages, that are looked at together."""
STARTS = 4
"""Cuts that are improved, the best ones; half as many where stages are more than ``MANY``."""
NEAR = 0.05
"""Share by which a cut may be slower than the best one, or that one than what it must beat, to be improved."""
MANY = 64
ROUNDS = 12
"""Rounds of improvement at most."""


def improved(
    table: StageTable, cuts: IntArray, seconds: Array, enough: float, known: float
) -> tuple[IntArray, float]:
    """The best of some cuts, and of what moving single layers between two stages makes of them; its makespan.

    Args:
        table: what every stage may hold.
        cuts: ``(n, stages)``.
        seconds: of each of them; ``(n,)``.
        enough: seconds that are not improved.
        known: seconds that are reached already; where the first comes nowhere near, no other is improved.
    """
    starts = STARTS if table.num_stages <= MANY else STARTS // 2
    descended = _by_bounds if table.schedule == Schedule.ONE_F_ONE_B else _by_seconds
    order = np.argsort(seconds, kind="stable")[:starts]
    best, step, far = cuts[order[0]], float(seconds[order[0]]), 1.0 + NEAR
    for place in order:
        if step <= enough or seconds[place] > far * step:
            break
        way = descended(table, cuts[place], float(seconds[place]))
        found = table.makespans(way)
        if found.min() < step:
            best, step = way[int(found.argmin())], float(found.min())
        if step > far * known:
            break
    return best, step


def _by_bounds(table: StageTable, cut: IntArray, step: float) -> IntArray:
    """What a cut becomes as long as moving one layer lessens its bound, which is mostly exact, and cuts on the way.

    Shapes: the cut ``(stages,)``, results ``(n, stages)``.
    """
    way = [cut]
    for _ in range(ROUNDS):
        near, bounds = _bounded(table, way[-1], step)
        if not len(near) or bounds[0] >= step * (1.0 - EQUAL):
            break
        way.append(near[0])
        step = float(bounds[0])
    return np.stack(way[:: -(ROUNDS // 3)])


def _by_seconds(table: StageTable, cut: IntArray, step: float) -> IntArray:
    """The same as long as that lessens its seconds."""
    for _ in range(ROUNDS):
        near, bounds = _bounded(table, cut, step)
        near = near[:SIMULATED][bounds[:SIMULATED] < step * (1.0 - EQUAL)]
        if not len(near):
            break
        found = table.makespans(near)
        if found.min() >= step * (1.0 - EQUAL):
            break
        cut, step = near[int(found.argmin())], float(found.min())
    return cut[None]


def _bounded(table: StageTable, cut: IntArray, step: float) -> tuple[IntArray, Array]:
    """Neighbours of a cut, the promising ones, by their bounds."""
    near = _neighbours(table, cut)
    times = table.times(near)
    allowed = np.isfinite(times[0] + times[1]).all(axis=(1, 2))
    near, (forward, backward, weight) = near[allowed], (part[allowed] for part in times)
    bounds = stage_bound(table.schedule, table.micro_batches, forward, backward, table.send, weight)
    most = max(SIMULATED, min(BOUNDED, BOUNDED**2 // table.num_stages))
    first = np.argsort(bounds, kind="stable")[:most]
    first = first[bounds[first] < step]
    near, bounds = near[first], table.bounds((forward[first], backward[first], weight[first]), step)
    order = np.argsort(bounds, kind="stable")
    return near[order], bounds[order]


def _neighbours(table: StageTable, cut: IntArray) -> IntArray:
    """Cuts that give one layer of a stage to another: of the busiest ones to the idlest, where stages are many."""
    forward, backward, _ = table.times(cut[None])
    order = np.argsort((forward + backward)[0, :, 0], kind="stable")
    some = isqrt(MOVED // len(order))
    takers, givers = np.sort(order[:some]), np.sort(order[-some:])
    giver, taker = (part.ravel() for part in np.meshgrid(givers, takers, indexing="ij"))
    near = np.repeat(cut[None], len(giver), axis=0)
    rows = np.arange(len(giver))
    near[rows, giver] -= 1
    near[rows, taker] += 1
    return np.asarray(near[(giver != taker) & (near >= 0).all(axis=1)])
