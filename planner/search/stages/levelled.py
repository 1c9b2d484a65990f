"""Contiguous chunks of the shortest schedule where a stage holds several, which stand far apart in the sequence.

What a stage takes is the sum over its chunks, so no table over the sequence holds it. Stages are levelled instead:
a layer moves from the busiest stage to another as long as the sorted times of the stages become smaller, which ends at
the least time of the busiest one where layers are equal. The cuts near that one are judged by exact simulation; few
cuts are all simulated.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb
from typing import Protocol

import numpy as np

from planner.units import Array, IntArray

EXHAUSTIVE = 1500
"""Number of cuts up to which every one is simulated."""
ROUNDS = 4
"""Rounds of simulated improvement at most."""
SIMULATED = 8
"""Cuts that are simulated in a round: those whose busiest stages take least."""
TAKERS = 6
"""Stages that may take a layer from the busiest one: those that are busy the least."""
EQUAL = 1e-9
"""Relative difference of two times that counts as none."""


class Pricing(Protocol):
    """What cuts cost; cuts are layers of every chunk in the order of the model, ``(n, chunks)``."""

    def loads(self, cuts: IntArray) -> Array:
        """Seconds in which every stage is busy, infinite where it cannot hold its layers; ``(n, stages)``."""

    def makespans(self, cuts: IntArray) -> Array:
        """Seconds of the schedule; ``(n,)``."""

    @property
    def lead(self) -> Array:
        """Seconds of the schedule, about, in which a stage is not reached yet or no longer; ``(stages,)``."""


def solve(
    pricing: Pricing, stage: IntArray, start: IntArray, least: IntArray, enough: float = 0.0
) -> tuple[IntArray, float] | None:
    """The cut of the least makespan that is found, never a worse one than the first; None where none fits.

    Args:
        pricing: what cuts cost.
        stage: on which stage every chunk stands; ``(chunks,)``.
        start: a cut, ``(chunks,)``.
        least: layers that a chunk must hold; ``(chunks,)``.
        enough: seconds that no cut beats; a cut that reaches them is not improved.
    """
    if comb(int((start - least).sum()) + len(start) - 1, len(start) - 1) <= EXHAUSTIVE:
        return _best(pricing, _every(int(start.sum()), least))
    first = _best(pricing, start[None])
    if first is not None and first[1] <= enough * (1.0 + EQUAL):
        return first
    near = [start]
    for lead in (np.zeros_like(pricing.lead), pricing.lead):
        level = _levelled(pricing, lead, stage, start, least)
        near += [level, *_turned(level, stage, least)]
    best = _best(pricing, np.unique(np.stack(near), axis=0))
    for _ in range(ROUNDS if best is not None else 0):
        assert best is not None
        loads = pricing.loads(best[0][None])[0] + pricing.lead
        moves = np.vstack([_moves(best[0], loads, stage, least), _shifts(best[0], least)])
        longest = (pricing.loads(moves) + pricing.lead).max(axis=1)
        found = _best(pricing, moves[np.argsort(longest, kind="stable")[:SIMULATED]])
        if found is None or found[1] >= best[1] * (1.0 - EQUAL):
            break
        best = found
    return best


def floor(values: Array, num_layers: int) -> float:
    """The least time in which stages can hold all layers together; infinite where they cannot.

    Args:
        values: of every stage, by the number of layers that it holds, ascending; ``(stages, numbers)``. The last
            number stands for all larger ones.
        num_layers: equal ones.

    >>> floor(np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 3.0, 6.0, 9.0]]), 3)
    3.0
    """
    times = np.unique(values[np.isfinite(values)])
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        held = (values <= times[middle]).sum(axis=1) - 1
        held = np.where(held == values.shape[1] - 1, num_layers, held)
        if held.sum() >= num_layers and held.min() >= 0:
            high = middle
        else:
            low = middle + 1
    return float(times[low]) if low < len(times) else np.inf


def _best(pricing: Pricing, cuts: IntArray) -> tuple[IntArray, float] | None:
    """The best of some cuts, those that fit simulated."""
    cuts = cuts[np.isfinite(pricing.loads(cuts)).all(axis=1)] if len(cuts) else cuts
    if not len(cuts):
        return None
    found = pricing.makespans(cuts)
    place = int(found.argmin())
    return cuts[place], float(found[place])


def _every(num_layers: int, least: IntArray) -> IntArray:
    """All cuts, ``(n, chunks)``."""
    free = num_layers - int(least.sum())
    places = np.array(
        list(combinations_with_replacement(range(free + 1), len(least) - 1)), np.int64
    )
    ends = np.full((len(places), 1), free)
    return np.asarray(np.diff(np.hstack([0 * ends, places.reshape(len(ends), -1), ends])) + least)


def _levelled(
    pricing: Pricing, lead: Array, stage: IntArray, start: IntArray, least: IntArray
) -> IntArray:
    """Layers moved from the busiest stage as long as that makes the sorted times of the stages smaller."""
    cut, loads = start, pricing.loads(start[None])[0] + lead
    while len(moves := _moves(cut, loads, stage, least)):
        found = pricing.loads(moves) + lead
        ranks = -np.sort(-found, axis=1)
        first = np.lexsort(ranks.T[::-1])[0]
        if not _smaller(ranks[first], -np.sort(-loads)):
            break
        cut, loads = moves[first], found[first]
    return cut


def _smaller(one: Array, other: Array) -> bool:
    """Whether times, sorted from the longest, are smaller at the first place where they differ."""
    with np.errstate(invalid="ignore"):
        differ = np.flatnonzero(~np.isclose(one, other, rtol=EQUAL, atol=0.0))
    return bool(len(differ) and one[differ[0]] < other[differ[0]])


def _moves(cut: IntArray, loads: Array, stage: IntArray, least: IntArray) -> IntArray:
    """Cuts that give one layer of a largest chunk of the busiest stage to a smallest chunk of an idle one."""
    mine = np.flatnonzero((stage == loads.argmax()) & (cut > least))
    if not len(mine):
        return np.empty((0, len(cut)), np.int64)
    givers = np.unique(mine[cut[mine] == cut[mine].max()][[0, -1]])
    takers: list[int] = []
    for idle in np.argsort(loads, kind="stable")[: min(TAKERS, len(loads) - 1)]:
        own = np.flatnonzero(stage == idle)
        takers += np.unique(own[cut[own] == cut[own].min()][[0, -1]]).tolist()
    giver, taker = (part.ravel() for part in np.meshgrid(givers, takers))
    moves = np.repeat(cut[None], len(giver), axis=0)
    rows = np.arange(len(giver))
    moves[rows, giver] -= 1
    moves[rows, taker] += 1
    return moves


def _shifts(cut: IntArray, least: IntArray) -> IntArray:
    """Cuts that give one layer of a chunk to the next or to the one before."""
    step = np.diff(np.eye(len(cut), dtype=np.int64), axis=0)
    near = cut + np.vstack([step, -step])
    return np.asarray(near[(near >= least).all(axis=1)])


def _turned(cut: IntArray, stage: IntArray, least: IntArray) -> list[IntArray]:
    """The same sizes on every stage, with the larger chunks first, or last."""
    found = []
    for sign in (1, -1):
        sizes = cut.copy()
        for each in np.unique(stage):
            mine = np.flatnonzero((stage == each) & (least == least.max()))
            sizes[mine] = sign * np.sort(sign * cut[mine])
        found.append(sizes)
    return found
