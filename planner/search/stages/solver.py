"""Contiguous stages of the shortest schedule, by dynamic programming over the sequence of layers.

The makespan of a schedule is the longest of its paths, which no table of stages holds. Two families of paths can be
followed from stage to stage with one number, so that each is minimised exactly over all cuts:

* those that stay on one stage, ``W + (m - p + i) w_i + sum of w_j for j > i`` (:mod:`planner.cost.bounds`), and
* those that go back and forth over the stages from i to j, which make the period of a long schedule: the largest mean
  over neighbouring stages of what they and the sends between them take.

Both minima bound every cut from below. Their cuts, and the even one, are improved by moving single layers between any
two stages, judged by exact simulation. Few cuts are all simulated instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb

import numpy as np

from planner.cost.bounds import lower_bound
from planner.cost.orders import Schedule
from planner.search.stages.branches import WIDTH, branch
from planner.search.stages.descent import NEAR, improved
from planner.search.stages.staying import staying_bound
from planner.search.stages.table import EQUAL, StageTable
from planner.units import Array, IntArray, unique

EXHAUSTIVE = 1500
"""Number of cuts up to which every one is simulated."""
LEADING = 50
"""Beginnings of cuts that are to be looked at of every number of stages: fewer lead nowhere."""
CLOSE = 1e-4
"""Relative width at which the search for the least period ends."""
ROUGH = 1e-2
"""The same where micro-batches are so few that the period bounds nothing."""

PROVEN = 1e-3
"""Share by which an unknown cut may be faster: a hundredth of what predictions of layouts scatter."""

Combine = Callable[[int, Array, Array], Array]
"""Value after a stage: its index, the value before, the seconds that it would take; infinite where it may not."""


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """The best cut found."""

    layers: IntArray
    """Layers of every stage."""
    makespan: float
    bound: float
    """Seconds; no cut of the table is faster."""

    @property
    def proven(self) -> bool:
        """Whether no cut of the table is faster by more than ``PROVEN``."""
        return self.bound >= self.makespan * (1.0 - PROVEN)


def solve(table: StageTable, start: IntArray | None = None, known: float = np.inf) -> Stages | None:
    """The cut of the least makespan; None where no cut is allowed, or none can be faster than what is known.

    Args:
        table: what every stage may hold.
        start: a cut to improve, ``(stages,)``; where it is allowed, the result is never worse.
        known: seconds that are reached already.
    """
    p, layers = table.num_stages, table.num_layers
    if comb(layers + p - 1, p - 1) <= EXHAUSTIVE:
        return _all(table)
    least = scan(table, lambda _, before, own: before + own)
    if least is None:
        return None
    if narrowed(table, least[0], known) is None:
        return None
    stay = scan(table, _staying(table)) or least
    twice = least[0] if table.schedule == Schedule.ONE_F_ONE_B else 0.0
    if table.micro_batches >= p and twice + stay[0] >= known:
        return None
    starts = [least[1], stay[1]]
    if start is not None and table.allows(start[None])[0]:
        starts.append(start)
    cuts = unique(np.stack(starts))
    seconds = table.makespans(cuts)
    best, step = cuts[int(seconds.argmin())], float(seconds.min())
    reached = min(known, step)
    tight = narrowed(table, least[0], reached)
    bound = reached if tight is None else _bound(tight, least[0], least[0] / p, reached)
    if bound >= known:
        return None
    first = Stages(best, step, bound)
    if tight is None or first.proven:
        return first
    if _few(tight):
        best, step, whole = branch(tight, best, reached, whole=True)
        if whole:
            return Stages(best, step, step) if step < known else None
    return _moved(table, cuts, least[0], bound, known)


def _moved(
    table: StageTable, cuts: IntArray, whole: float, bound: float, known: float
) -> Stages | None:
    """What moving layers, and beginnings of cuts, make of some cuts and of that of the least period.

    Args:
        table: what every stage may hold.
        cuts: ``(n, stages)``.
        whole: least seconds of one micro-batch through all stages.
        bound: seconds that no cut beats.
        known: as of :func:`solve`.
    """
    period = _least_period(table, whole, list(cuts))
    bound = max(bound, _turning(table, whole, period[0]))
    if bound >= known:
        return None
    cuts = unique(np.vstack([cuts, period[1]]))
    enough = bound / (1.0 - PROVEN)
    found, step = improved(table, cuts, table.makespans(cuts), enough, known)
    if step <= enough or step > known * (1.0 + NEAR):
        return Stages(found, step, min(bound, step))
    closer = _bound(table, whole, period[0], step)
    stages = Stages(found, step, max(min(bound, step), closer))
    return stages if stages.proven else _branched(table, stages)


def _branched(table: StageTable, known: Stages) -> Stages:
    """What beginnings of cuts that may be faster lead to; proven where all of them were looked at."""
    if not _few(table):
        return known
    found, seconds, whole = branch(table, known.layers, known.makespan)
    return Stages(found, seconds, seconds if whole else min(known.bound, seconds))


def _few(table: StageTable) -> bool:
    """Whether beginnings of cuts can be followed."""
    return table.num_stages * len(table.sizes) * LEADING <= WIDTH


def narrowed(table: StageTable, whole: float, known: float) -> StageTable | None:
    """A table without runs of layers that no cut has which is faster than what is known; None where there is none.

    A stage that works w_i on a micro-batch runs all m of them; and under 1F1B the path that stays on it takes
    (m - p + i) w_i + W + the sum of w_j for j > i, so that (m - p + i - 1) w_i is at most what is known less 2 W,
    more by what the stages before it work. Stages hold no more layers than they finish in time.

    Args:
        table: what every stage may hold.
        whole: least seconds of one micro-batch through all stages.
        known: seconds that a cut must stay below.
    """
    p, m = table.num_stages, table.micro_batches
    half = whole / 2
    least = lower_bound(table.schedule, p, m, 1, half, half, table.send[:-1].min())
    if least >= known:
        return None
    if np.isinf(known):
        return table
    spare = known - float(table.pairs.sum()) - 2.0 * whole
    before, held, own = 0.0, 0, table.forward + table.backward
    allowed = np.zeros(own.shape, dtype=bool)
    for stage, seconds in enumerate(own):
        limit, times = known / m, m - p + stage - 1
        if table.schedule == Schedule.ONE_F_ONE_B and times > 0:
            limit = min(limit, (spare + before) / times)
        fast = seconds < limit
        if not fast.any():
            return None
        allowed[stage] = fast
        held += int(table.sizes[fast.any(axis=0)].max())
        before += float(seconds[fast].max())
    return table.where(allowed).held() if held >= table.num_layers else None


def _bound(table: StageTable, whole: float, period: float, found: float) -> float:
    """Seconds that no cut beats: the best of each family of paths, at most what was found.

    Args:
        table: what every stage may hold.
        whole: least seconds of one micro-batch through all stages.
        period: the least one.
        found: of the best cut that is known.
    """
    turning = _turning(table, whole, period)
    if table.schedule != Schedule.ONE_F_ONE_B:
        return min(found, turning)
    crossed = float(table.pairs.sum())
    return min(found, max(turning, crossed + staying_bound(table, found - crossed)))


def _turning(table: StageTable, whole: float, period: float) -> float:
    """Seconds that no cut beats, as no period is shorter; arguments as in :func:`_bound`.

    Where backwards are split, stages make gradients of weights at the same time: one micro-batch takes less than its
    work. 1F1B goes back and forth between the ends of the slowest run of L stages, from a to its end, while as many of
    the m - 1 - p + a micro-batches between the first and the last one are left (:func:`turning_bound`), and once more
    for the last: at least m - p + a micro-batches of a period each.
    """
    p, m = table.num_stages, table.micro_batches
    if table.schedule.splits:
        return m * period
    if table.schedule != Schedule.ONE_F_ONE_B:
        return max(whole, m * period)
    return whole + float(table.pairs.sum()) + max(0, m - p) * period


def _all(table: StageTable) -> Stages | None:
    """Every cut, simulated."""
    p, layers = table.num_stages, table.num_layers
    every = combinations_with_replacement(range(layers + 1), p - 1)
    places = np.array(list(every), np.int64).reshape(-1, p - 1)
    ends = np.column_stack([np.zeros(len(places), np.int64), places, np.full(len(places), layers)])
    cuts = np.diff(ends, axis=1)
    allowed = table.allows(cuts)
    if not allowed.any():
        return None
    cuts = cuts[allowed]
    found = table.makespans(cuts)
    best = int(found.argmin())
    return Stages(cuts[best], float(found[best]), float(found[best]))


def scan(table: StageTable, combine: Combine, start: float = 0.0) -> tuple[float, IntArray] | None:
    """Least value after the last stage, and the cut that has it, for values that grow with the value before.

    Of the ends of every stage only those are looked at that the stages before it and behind it leave.
    """
    p, layers, sizes = table.num_stages, table.num_layers, table.sizes
    seconds, kinds = table.forward + table.backward, table.forward.shape[1]
    open_ = np.asarray(np.isfinite(seconds).any(axis=1))
    if not open_.any(axis=1).all():
        return None
    first, last = open_.argmax(axis=1), len(sizes) - open_[:, ::-1].argmax(axis=1)
    least, most = sizes[first], sizes[last - 1]
    low = np.maximum(np.cumsum(least), layers - (most.sum() - np.cumsum(most)))
    high = np.minimum(np.cumsum(most), layers - (least.sum() - np.cumsum(least)))
    if (low > high).any():
        return None
    begin, value = 0, np.array([start])
    chosen = []
    for stage in range(p):
        places = np.arange(first[stage], last[stage])[:, None]
        ends = np.arange(low[stage], high[stage] + 1)
        source = ends - sizes[places]
        inside = (source >= begin) & (source < begin + len(value))
        source = np.where(inside, source, begin)
        before = value[source - begin]
        own = seconds[stage, table.kind[source], places] if kinds > 1 else seconds[stage, 0, places]
        with np.errstate(invalid="ignore"):
            found = combine(stage, before, own)
        found = np.where(inside & np.isfinite(own) & (before < np.inf), found, np.inf)
        place = found.argmin(axis=0)
        begin, value = int(low[stage]), found[place, np.arange(len(ends))]
        chosen.append(sizes[place + first[stage]])
    if np.isinf(value[0]) and value[0] > 0:
        return None
    cut, end = np.zeros(p, np.int64), layers
    for stage in reversed(range(p)):
        cut[stage] = chosen[stage][end - low[stage]]
        end -= cut[stage]
    return float(value[0]), cut


def _staying(table: StageTable) -> Combine:
    """The longest path that stays on one stage, beyond one micro-batch through all: 1F1B; else the busiest stage.

    What is behind that stage follows, but where backwards are split: gradients of weights are awaited by no other.
    """
    p, m, pairs = table.num_stages, table.micro_batches, table.pairs

    def combine(stage: int, before: Array, own: Array) -> Array:
        times = m - p + stage if table.schedule == Schedule.ONE_F_ONE_B else m
        staying = times * own if times > 0 else np.zeros_like(own)
        if table.schedule.splits:
            return np.maximum(before, staying)
        return np.maximum(before + own + pairs[stage] if stage else staying, staying)

    return combine


def _least_period(table: StageTable, whole: float, cuts: list[IntArray]) -> tuple[float, IntArray]:
    """The least period of a long schedule, from below, and a cut that comes close to it.

    Args:
        table: what every stage may hold.
        whole: least seconds of one micro-batch through all stages; their mean is no longer than the period.
        cuts: cuts that are known.
    """
    known = [(_period(table, cut), cut) for cut in cuts]
    high, best = min(known, key=lambda each: each[0])
    low = min(high, whole / table.num_stages)
    close = CLOSE if table.micro_batches > table.num_stages else ROUGH
    while high - low > close * high:
        aim = (low + high) / 2
        found = scan(table, _within(table, aim))
        if found is None:
            low = aim
        else:
            best = found[1]
            high = min(aim, _period(table, best))
    return low, best


def _within(table: StageTable, period: float) -> Combine:
    """How much longer than the period allows stages up to here are, infinite where a mean exceeds it."""
    pairs = _turns(table)

    def combine(stage: int, before: Array, own: Array) -> Array:
        over = np.maximum(before + pairs[stage], 0.0) + own - period
        return np.where(over > EQUAL * period, np.inf, over)

    return combine


def _period(table: StageTable, cut: IntArray) -> float:
    """Largest mean over neighbouring stages of their seconds and the sends between them."""
    forward, backward, _ = table.times(cut[None])
    pairs = np.cumsum(_turns(table))
    sums = np.concatenate([[0.0], np.cumsum((forward + backward)[0, :, 0])])
    first, last = np.triu_indices(len(pairs))
    whole = sums[last + 1] - sums[first] + pairs[last] - pairs[first]
    return float((whole / (last + 1 - first)).max())


def _turns(table: StageTable) -> Array:
    """Sends that lengthen the period: those of 1F1B, where a gradient answers every forward."""
    return table.pairs if table.schedule == Schedule.ONE_F_ONE_B else np.zeros(table.num_stages)
