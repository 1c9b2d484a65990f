"""Contiguous chunks of the shortest schedule where a stage holds several, which stand far apart in the sequence.

What a stage takes is the sum over its chunks, so no table over the sequence holds it. Stages are levelled instead:
a layer moves from the busiest stage to another as long as the sorted times of the stages become smaller, which ends at
the least time of the busiest one where layers are equal. The cuts near that one are judged by exact simulation; few
cuts are all simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, product
from math import comb, prod
from typing import Protocol, TypeAlias

import numpy as np

from planner.search.stages.probes import Settled
from planner.search.stages.table import EQUAL
from planner.units import Array, IntArray, unique

EXHAUSTIVE = 1500
"""Number of cuts up to which every one is simulated."""
MANY = 8000
"""Number of cuts no stage of which takes too long up to which all are looked at."""
BATCH = 128
"""Cuts that are simulated together."""
FEW = 16
"""Chunks up to which every layer may move to every chunk."""
ROUNDS = {True: 8, False: 4}
"""Rounds of simulated improvement at most: where chunks are few, and where not."""
SIMULATED = {True: 24, False: 16}
"""Cuts that are simulated in a round, those whose busiest stages take least; likewise."""
KEPT = {True: 4, False: 1}
"""Best cuts that each round goes on from, likewise."""
TAKERS = 6
"""Stages that may take a layer from the busiest one: those that are busy the least."""
SHIFTS = 48
"""Cuts that shift a layer between neighbouring chunks that are looked at; those that relieve the busiest stages."""
DIGITS = 9
"""The same in digits."""

_Timed: TypeAlias = tuple[float, tuple[int, ...]]
"""Seconds of a cut, and its layers."""


class Pricing(Protocol):
    """What cuts cost; cuts are layers of every chunk in the order of the model, ``(n, chunks)``."""

    def loads(self, cuts: IntArray) -> Array:
        """Seconds in which every stage is busy, infinite where it cannot hold its layers; ``(n, stages)``."""

    def makespans(self, cuts: IntArray) -> Array:
        """Seconds of the schedule and what follows it; ``(n,)``."""

    def bounds(self, cuts: IntArray) -> Array:
        """Seconds that these cuts take at least; ``(n,)``."""

    def settled(self, cuts: IntArray, known: float, place: int) -> Settled:
        """The best of cuts one of which takes so long, whatever its stages recompute if they are free in that."""

    @property
    def lead(self) -> Array:
        """Seconds of the schedule, about, in which a stage is not reached yet or no longer; ``(stages,)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Levelled:
    """The best cut found."""

    layers: IntArray
    """Layers of every chunk, in the order of the model."""
    makespan: float
    bound: float
    """Seconds that no cut beats, where every one was looked at; 0 elsewhere."""
    again: IntArray | None = None
    """As in :class:`planner.search.stages.probes.Settled`."""


def solve(
    pricing: Pricing,
    stage: IntArray,
    start: IntArray,
    least: IntArray,
    enough: float = 0.0,
    reached: float = np.inf,
    others: Sequence[IntArray] = (),
) -> Levelled | None:
    """The cut of the least makespan that is found, never a worse one than the first; None where none fits.

    Args:
        pricing: what cuts cost.
        stage: on which stage every chunk stands; ``(chunks,)``.
        start: a cut, ``(chunks,)``.
        least: layers that a chunk must hold; ``(chunks,)``.
        enough: seconds that no cut beats; a cut that reaches them is not improved.
        reached: seconds that another cut than the first must stay below to be of use.
        others: more cuts that may be good.
    """
    if comb(int((start - least).sum()) + len(start) - 1, len(start) - 1) <= EXHAUSTIVE:
        return _best_of_all(pricing, _every(int(start.sum()), least))
    first = _simulated(pricing, start[None])
    if first and first[0][0] <= enough * (1.0 + EQUAL):
        return Levelled(start, first[0][0], 0.0)
    near = [start, *others]
    for lead in (np.zeros_like(pricing.lead), pricing.lead):
        level = _levelled(pricing, lead, stage, start, least)
        near += [level, *_turned(level, stage, least)]
    found = _improved(pricing, stage, np.stack(near), least, first, reached)
    return None if found is None else Levelled(np.array(found[1]), found[0], 0.0)


def shifted(pricing: Pricing, stage: IntArray, best: Levelled, least: IntArray) -> Levelled:
    """What moving single layers between two chunks of the same stage makes of a cut: none is busier for it."""
    one = np.eye(len(stage), dtype=np.int64)
    giver, taker = np.nonzero((stage[:, None] == stage) & (one == 0))
    for _ in range(ROUNDS[True]):
        near = best.layers - one[giver] + one[taker]
        near = near[(near >= least).all(axis=1)]
        near = near[np.isfinite(pricing.loads(near)).all(axis=1)] if len(near) else near
        near = near[np.argsort(pricing.bounds(near), kind="stable")[:BATCH]] if len(near) else near
        seconds = pricing.makespans(near) if len(near) else np.array([np.inf])
        if seconds.min() >= best.makespan * (1.0 - EQUAL):
            break
        found = near[int(seconds.argmin())]
        best = replace(best, layers=found, makespan=float(seconds.min()), again=None)
    return best


def _improved(
    pricing: Pricing,
    stage: IntArray,
    cuts: IntArray,
    least: IntArray,
    best: list[_Timed],
    reached: float,
) -> _Timed | None:
    """The best of the cuts known, of others below ``reached`` and of what moving single layers makes of the best."""
    few = len(least) <= FEW
    seen = {cut for _, cut in best}
    for turn in range(ROUNDS[few]):
        before = best
        rows = dict(zip(map(tuple, cuts.tolist()), cuts, strict=True))
        new = [cut for layers, cut in rows.items() if layers not in seen]
        seen |= rows.keys()
        if new:
            busy = min(best[0][0], reached) if best else np.inf
            last = best[-1][0] if len(best) == KEPT[few] else np.inf
            found = _simulated(pricing, np.stack(new), SIMULATED[few], busy, last)
            best = sorted(best + found)[: KEPT[few]]
        if not best or (turn and best == before):
            break
        cuts = np.vstack([_near(pricing, stage, np.array(cut), least) for _, cut in best])
    return best[0] if best else None


def _near(pricing: Pricing, stage: IntArray, cut: IntArray, least: IntArray) -> IntArray:
    """Cuts that differ by one layer: all of them where chunks are few, else the promising ones."""
    if len(cut) > FEW:
        loads = pricing.loads(cut[None])[0] + pricing.lead
        return np.vstack([_moves(cut, loads, stage, least), _shifts(cut, loads, stage, least)])
    one = np.eye(len(cut), dtype=np.int64)
    near = cut + (one[:, None] - one).reshape(-1, len(cut))
    return np.asarray(near[(near >= least).all(axis=1)])


def floor(values: Array, num_layers: int) -> float:
    """The least time in which stages can hold all layers together; infinite where they cannot.

    Args:
        values: of every stage, by the number of layers that it holds, ascending; ``(stages, numbers)``. The last
            number stands for all larger ones.
        num_layers: equal ones.

    >>> floor(np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 3.0, 6.0, 9.0]]), 3)
    3.0
    """
    times = unique(values[np.isfinite(values)])
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


def filled(values: Array, num_layers: int, stage: IntArray) -> list[IntArray]:
    """Cuts whose busiest stage takes the least time that holds all layers together; none where none does.

    That time leaves room for some layers more. Of the stages that take most, those that do without one are the first,
    which the others wait for at the start and in the end, or the last, so that the busiest stage is an earlier one.
    Where the chunks of a stage are not equal, the first ones are larger, or the last.

    Args:
        values: as of :func:`floor`.
        num_layers: equal ones.
        stage: on which stage every chunk stands; ``(chunks,)``.
    """
    least = floor(values, num_layers)
    held = (values <= least * (1.0 + EQUAL)).sum(axis=1) - 1
    spare = int(held.sum()) - num_layers
    count = len(stage) // len(held)
    if np.isinf(least) or spare < 0:
        return []
    found, place = [], np.arange(len(held))
    busy = np.round(values[place, held] / least, DIGITS)
    for order in (np.lexsort((place, -busy)), np.lexsort((-place, -busy))):
        sizes = held - spare // len(held)
        sizes[order[: spare % len(held)]] -= 1
        for turns in (np.arange(count), np.arange(count)[::-1]):
            more = turns[:, None] < sizes % count
            table = sizes // count + more
            found.append(table[np.repeat(np.arange(count), len(held)), stage])
    return [cut for cut in found if cut.min() >= 0]


def possible(values: Array, num_layers: int, stage: IntArray, known: float) -> IntArray | None:
    """All cuts none of whose stages takes as long as what is known and none of whose chunks is empty.

    Args:
        values: as of :func:`floor`.
        num_layers: equal ones.
        stage: on which stage every chunk stands; ``(chunks,)``.
        known: seconds.

    Returns:
        ``(n, chunks)``; None where they are more than ``MANY``, or of more layers than values are known of.

    >>> possible(np.arange(5) * np.array([[1.0], [3.0]]), 4, np.array([0, 1, 0, 1]), 7.0).tolist()
    [[1, 1, 1, 1]]
    """
    if values.shape[1] <= num_layers and (values[:, -1] < known).any():
        return None
    count = len(stage) // len(values)
    sizes = [np.flatnonzero(row < known) for row in values]
    held = [each[each >= count].tolist() for each in sizes]
    if not all(held):
        return np.empty((0, len(stage)), np.int64)
    wholes: list[tuple[int, ...]] = [()]
    for place, each in enumerate(held):
        most = sum(max(later) for later in held[place + 1 :])
        wholes = [(*w, n) for w in wholes for n in each if sum(w) + n + most >= num_layers]
        wholes = [whole for whole in wholes if sum(whole) <= num_layers]
        if sum(prod(comb(n - 1, count - 1) for n in whole) for whole in wholes) > MANY:
            return None
    found = []
    for whole in wholes:
        splits = [_every(n, np.ones(count, np.int64)).tolist() for n in whole]
        found += list(product(*splits))
    cuts = np.array(found, np.int64).reshape(len(found), len(values), count)
    turn = np.cumsum(stage == stage[:, None], axis=1)[np.arange(len(stage)), np.arange(len(stage))]
    return np.asarray(cuts[:, stage, turn - 1])


def exhausted(pricing: Pricing, cuts: IntArray, best: Levelled, known: float) -> Levelled:
    """The best of these cuts and one that is known; none is faster than it or than ``known`` seconds."""
    if len(cuts):
        bounds = pricing.bounds(cuts)
        order = np.argsort(bounds, kind="stable")
        for some in np.split(order, range(BATCH, len(order), BATCH)):
            some = some[bounds[some] < known]
            if not len(some):
                break
            some = some[np.isfinite(pricing.loads(cuts[some])).all(axis=1)]
            if len(some) and (seconds := pricing.makespans(cuts[some])).min() < known:
                known = float(seconds.min())
                best = Levelled(cuts[some[seconds.argmin()]], known, 0.0)
    return replace(best, bound=known)


def _best_of_all(pricing: Pricing, cuts: IntArray) -> Levelled | None:
    """The best of all cuts; none is faster than the least that any of them may take."""
    found = _simulated(pricing, cuts)
    if not found:
        return None
    every = np.array([cut for _, cut in found])
    seconds, place = min((each[0], place) for place, each in enumerate(found))
    best = pricing.settled(every, seconds, place)
    return Levelled(every[best.place], best.seconds, best.bound, best.again)


def _simulated(
    pricing: Pricing,
    cuts: IntArray,
    most: int | None = None,
    busy: float = np.inf,
    known: float = np.inf,
) -> list[_Timed]:
    """Seconds of cuts that fit, no stage of which is as busy as that, and that may take less than is known.

    Of the ones whose busiest stages take least, if there are to be no more than so many.
    """
    loads = pricing.loads(cuts)
    fits = loads.max(axis=1) < busy
    cuts, longest = cuts[fits], (loads[fits] + pricing.lead).max(axis=1)
    if most is not None and len(cuts):
        cuts = cuts[np.argsort(longest, kind="stable")[:most]]
        cuts = cuts[pricing.bounds(cuts) < known] if np.isfinite(known) else cuts
    if not len(cuts):
        return []
    seconds = pricing.makespans(cuts).tolist()
    return list(zip(seconds, map(tuple, cuts.tolist()), strict=True))


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
    givers = unique(mine[cut[mine] == cut[mine].max()][[0, -1]])
    takers: list[int] = []
    for idle in np.argsort(loads, kind="stable")[: min(TAKERS, len(loads) - 1)]:
        own = np.flatnonzero(stage == idle)
        takers += unique(own[cut[own] == cut[own].min()][[0, -1]]).tolist()
    giver, taker = (part.ravel() for part in np.meshgrid(givers, takers))
    moves = np.repeat(cut[None], len(giver), axis=0)
    rows = np.arange(len(giver))
    moves[rows, giver] -= 1
    moves[rows, taker] += 1
    return moves


def _shifts(cut: IntArray, loads: Array, stage: IntArray, least: IntArray) -> IntArray:
    """Cuts that give one layer of a chunk to the next or to the one before, on the busiest stages that have any."""
    first = np.arange(len(cut) - 1)
    giver, taker = np.append(first, first + 1), np.append(first + 1, first)
    ranks = np.argsort(-loads[stage[giver]], kind="stable")
    some = ranks[(cut > least)[giver[ranks]]][:SHIFTS]
    near = np.repeat(cut[None], len(some), axis=0)
    rows = np.arange(len(some))
    near[rows, giver[some]] -= 1
    near[rows, taker[some]] += 1
    return near


def _turned(cut: IntArray, stage: IntArray, least: IntArray) -> list[IntArray]:
    """The same sizes on every stage, with the larger chunks first, or last; or all but the least in the last one.

    Then micro-batches come to all stages soon, and go through short chunks while others are under way.
    """
    found = []
    for sign in (1, -1, 0):
        sizes = cut.copy()
        for each in unique(stage):
            mine = np.flatnonzero((stage == each) & (least == least.max()))
            if sign:
                sizes[mine] = sign * np.sort(sign * cut[mine])
            elif len(mine):
                sizes[mine[:-1]] = least[mine[:-1]]
                sizes[mine[-1]] += cut[mine].sum() - sizes[mine].sum()
        found.append(sizes)
    return found
