"""Best-bound-first search over the whole space, with a proof.

Every candidate has a proven lower bound on its step, from one pass of array operations. Candidates are priced exactly
in the order of their bounds until the next bound is worse than the worst of the best: what was not priced can neither
be better nor tie with it.

What must fit is the upper quantile of memory, a factor above the median that is priced; dividing the limit by it once
keeps the bound on memory a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import Candidates
from planner.cost.prices import Prices
from planner.cost.step import exact, tight_bound
from planner.search.bounded import Bounded, bound_all, fits
from planner.search.in_host import with_moved
from planner.search.pins import Pins
from planner.search.space import Space, build_space, joined, with_offload
from planner.trainers.trainer import Task
from planner.units import Array, BoolArray, IntArray

BATCH = 64
"""Candidates whose stages are looked at together."""
SIMULATED = 8
"""Candidates whose schedules are simulated together."""
SAME = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "recompute", "offload")
"""Candidates that agree on these are one row of the answer: the best of them is shown."""

AXES = ("dp", "tp", "pp", "cp", "ep")
TIES = (
    *("order", "sp", "shard_group", "sharding", "recompute", "offload", "micro_batch", "vpp"),
    *("etp", "ep", "cp", "pp", "tp"),
)
"""Columns whose smaller values are preferred among equals, the last ones first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is."""

    done: int
    total: int
    best: float | None
    """Step of the best plan so far, seconds."""
    bound: float | None
    """No plan is faster, seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a search found."""

    space: Space
    fitting: int
    """Candidates whose least memory fits."""
    best: Prices | None
    """The best candidates, best first, one for each distinct layout; None where none fits."""
    step: Array
    """Their exact steps, seconds."""
    memory: Array
    """Their exact memory on the fullest chip, bytes; the median."""
    bound: float
    """No candidate that fits is faster, seconds."""
    refined: int
    """Candidates priced exactly."""
    stopped: bool
    """Time ran out or the user interrupted."""
    bounded: Bounded
    """Bounds of all candidates of the space."""
    index: IntArray
    """Which of them the best are."""
    cuts: tuple[Prices | None, ...] = ()
    """For each of the best, its better division into stages; None where that is the even one."""
    cut_gap: float = 0.0
    """Share by which an unknown division into stages may still be faster."""
    front: int = 0
    """Layouts on the front of step and memory, of which the best are some; 0 where they are the fastest."""
    on_chips: float = np.inf
    """Step of the best that keeps nothing in host memory, seconds, where the best of all was looked for beside it."""
    unfit: tuple[int, ...] = ()
    """Candidates whose least memory fits, and which do not: those that were priced."""

    def row(self, number: int) -> Prices:
        """One of the best candidates, with its stages."""
        cut = self.cuts[number] if self.cuts else None
        if cut is not None:
            return cut
        assert self.best is not None
        return self.best.take(np.array([number]))

    @property
    def gap(self) -> float:
        """How much faster a plan could still be, as a share of the best step."""
        return max(0.0, 1.0 - self.bound / float(self.step[0])) if len(self.step) else 0.0


def search(
    task: Task,
    pins: Pins,
    *,
    top: int = 5,
    time_limit: float = 60.0,
    progress: Callable[[Progress], None] | None = None,
    space: Space | None = None,
    within: Space | None = None,
) -> Outcome:
    """The fastest candidates that fit.

    Layouts that keep something in host memory are looked at where they may be faster than the best that does not; all
    of them where a pin is on that, and where nothing fits on the chips alone.

    Args:
        task: the question.
        pins: restrictions of the space.
        top: how many distinct layouts to return, at least one; all of them proven to be the best.
        time_limit: seconds after which the best so far is returned with its gap; something that fits is
            waited for within the first batch.
        progress: called between batches.
        space: all that the task and the pins allow, where it is known already.
        within: what to search, where that is less.

    Returns:
        The outcome; its ``bound`` is proven also where the search was stopped.
    """
    deadline = time.monotonic() + time_limit
    uneven = pins.fixed("vpp") is not None
    task = replace(task, copy_kv=task.copy_kv or pins.copy_kv, uneven_chunks=uneven)
    space = within or space or build_space(task, pins)
    found = _search(task, space, top, deadline, progress)
    nothing = not len(space.candidates)  # and host memory lifts no rule
    if found.stopped or within or nothing or pins.on(("offload",)):
        return found
    if found.best is not None:
        try:
            return _moved(task, found, top, deadline, progress)
        except KeyboardInterrupt:
            return replace(found, stopped=True)
    return _search(task, with_offload(task, pins, space), top, deadline, progress)


def _moved(
    task: Task,
    found: Outcome,
    top: int,
    deadline: float,
    progress: Callable[[Progress], None] | None,
) -> Outcome:
    """An outcome with what is faster than its best where something is in host memory, beside all its rows."""
    task = replace(task, operators=found.space.operators)
    best, unfit = float(found.step[0]), np.array(found.unfit, dtype=np.int64)
    more = with_moved(task, found.space, found.bounded, unfit, best)
    return replace(beside(task, found, *more, 2 * top, deadline, progress), on_chips=best)


def beside(
    task: Task,
    found: Outcome,
    more: Space,
    bounded: Bounded,
    top: int,
    deadline: float,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """An outcome with what is among the best of more candidates, behind all its own.

    Args:
        task: the question.
        found: the outcome.
        more: the candidates.
        bounded: their bounds; the table holds all that the outcome's has.
        top: how many distinct layouts to return.
        deadline: monotonic seconds.
        progress: called between batches.
    """
    task, space = replace(task, operators=more.operators), joined(found.space, more)
    both = found.bounded.joined(bounded)
    index = np.arange(len(found.bounded.fits), len(both.fits))
    whole = _refined(task, space, top, deadline, progress, both, index, found)
    return replace(whole, on_chips=found.on_chips)


def search_within(
    task: Task, found: Outcome, index: IntArray, *, top: int, time_limit: float
) -> Outcome:
    """The fastest of some of the candidates that an earlier search looked at, by the bounds that it has.

    Args:
        task: the question of that search.
        found: what it found.
        index: which of the candidates of its space.
        top: how many distinct layouts to return.
        time_limit: seconds.
    """
    space, deadline = found.space.take(index), time.monotonic() + time_limit
    best = _search(task, space, top, deadline, None, found.bounded.take(index))
    return best if best.best is None else _moved(task, best, top, deadline, None)


def _search(
    task: Task,
    space: Space,
    top: int,
    deadline: float,
    progress: Callable[[Progress], None] | None,
    bounded: Bounded | None = None,
) -> Outcome:
    task = replace(task, operators=space.operators)
    bounded = bounded or bound_all(task, space.candidates)
    index = np.arange(len(space.candidates))
    return _refined(task, space, top, deadline, progress, bounded, index)


def _refined(
    task: Task,
    space: Space,
    top: int,
    deadline: float,
    progress: Callable[[Progress], None] | None,
    bounded: Bounded,
    index: IntArray,
    known: Outcome | None = None,
) -> Outcome:
    """The best of some candidates, and of those that are known."""
    index = index[bounded.fits[index]]
    index = preference(space.candidates, index, bounded.step[index])
    state = _Incumbents(task, space.candidates, bounded, index, top, known)
    stopped = False
    try:
        while not state.done():
            state.refine(deadline)
            if time.monotonic() > deadline and not state.done():
                stopped = True
                break
            if progress is not None:
                progress(state.progress())
    except KeyboardInterrupt:
        stopped = True
    return state.outcome(space, int(bounded.fits.sum()), stopped=stopped)


def preference(candidates: Candidates, index: IntArray, value: Array) -> IntArray:
    """Some candidates by value; ties by fewer axes, smaller tp, smaller pp, then the other columns.

    Values are compared to nine digits, so that rounding never decides.
    """
    rounded = _digits(value)
    order = np.argsort(rounded, kind="stable")
    same = rounded[order[1:]] == rounded[order[:-1]]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same)[: len(order)])
    if len(tied):
        some = order[tied]
        rows = candidates.take(index[some])
        axes = sum((degree > 1).astype(np.int64) for degree in map(rows.degree, AXES))
        ties = (*(getattr(rows, name) for name in TIES), axes)
        order[tied] = some[np.lexsort((*ties, rounded[some]))]
    return np.asarray(index[order])


def _digits(value: Array) -> Array:
    scale = 10.0 ** (9 - np.ceil(np.log10(np.maximum(value, 1e-30))))
    return np.asarray(np.round(value * scale) / scale)


class _Incumbents:
    """The best candidates so far, and the place reached in the order of bounds."""

    def __init__(
        self,
        task: Task,
        candidates: Candidates,
        bounded: Bounded,
        order: IntArray,
        top: int,
        known: Outcome | None,
    ) -> None:
        self.task = task
        self.candidates = candidates
        self.bounded = bounded
        self.order = order
        self.top = max(1, top)
        self.place = 0
        self.refined = known.refined if known else 0
        self.index = known.index if known else np.empty(0, dtype=np.int64)
        self.step = known.step if known else np.empty(0)
        self.memory = known.memory if known else np.empty(0)
        self.bound = known.bound if known else np.inf
        self.unfit = list(known.unfit) if known else []

    def done(self) -> bool:
        """Whether nothing that was not priced can enter the answer."""
        if self.place >= len(self.order):
            return True
        return not self._may_enter(self.bounded.step[self.order[self.place : self.place + 1]])[0]

    def _next(self) -> float:
        return float(self.bounded.step[self.order[self.place]])

    def refine(self, deadline: float) -> None:
        """Price the next batch: a bound that knows the stages first, then exactly what is left.

        Only then is the batch behind us: an interrupt in between leaves the bound where it was, and so does the
        deadline once there is anything to return.
        """
        batch = self.order[self.place : self.place + BATCH]
        if self._price(batch, deadline):
            self.place += len(batch)

    def _price(self, batch: IntArray, deadline: float) -> bool:
        """Whether all of the batch was priced that may enter."""
        priced = self.bounded.priced(self.task, self.candidates, batch)
        bounds = tight_bound(priced)
        order = np.argsort(bounds, kind="stable")
        for start in range(0, len(order), SIMULATED):
            some = order[start : start + SIMULATED]
            some = some[self._may_enter(bounds[some])]
            if not len(some):
                return True
            if len(self.step) and time.monotonic() > deadline:
                return False
            found = exact(priced.take(some))
            self.refined += len(some)
            fit = fits(self.task, found.memory, found.host)
            self.unfit += batch[some][~fit].tolist()
            self._add(batch[some][fit], found.step[fit], found.memory[fit])
        return True

    def _may_enter(self, bounds: Array) -> BoolArray:
        """Which of these could be among the best: better than the worst of them, or as good and preferred."""
        if len(self.step) < self.top:
            return np.ones(len(bounds), dtype=np.bool_)
        return np.asarray(_digits(bounds) <= _digits(self.step[-1:]))

    def _add(self, index: IntArray, step: Array, memory: Array) -> None:
        index = np.concatenate([self.index, index])
        step = np.concatenate([self.step, step])
        memory = np.concatenate([self.memory, memory])
        rows = self.candidates.take(index)
        order = preference(rows, np.arange(len(step)), step)
        chosen: list[int] = []
        seen: set[tuple[int, ...]] = set()
        columns = np.stack([getattr(rows, name) for name in SAME], axis=1)
        for row in order:
            key = tuple(columns[row])
            if key not in seen:
                seen.add(key)
                chosen.append(int(row))
        chosen = chosen[: self.top]
        self.index, self.step, self.memory = index[chosen], step[chosen], memory[chosen]

    def progress(self) -> Progress:
        best = float(self.step[0]) if len(self.step) else None
        bound = self._next() if self.place < len(self.order) else best
        return Progress(self.place, len(self.order), best, bound)

    def outcome(self, space: Space, fitting: int, *, stopped: bool) -> Outcome:
        """The answer so far."""
        best = None
        if len(self.index):
            best = self.bounded.priced(self.task, self.candidates, self.index)
        left = self.bounded.step[self.order[self.place :]]
        floor = float(left.min(initial=self.bound))
        bound = min(float(self.step[0]), floor) if len(self.step) else floor
        return Outcome(
            space=space,
            fitting=fitting,
            best=best,
            step=self.step,
            memory=self.memory,
            bound=bound,
            refined=self.refined,
            stopped=stopped,
            bounded=self.bounded,
            index=self.index,
            unfit=tuple(self.unfit),
        )
