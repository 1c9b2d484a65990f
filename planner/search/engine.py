"""Best-bound-first search over the whole space, with a proof.

Every candidate has a proven lower bound on its step, from one pass of array operations. Candidates are priced exactly
in the order of their bounds until the next bound is worse than the worst of the best: what was not priced can neither
be better nor tie with it.

What must fit is the upper quantile of memory, a factor above the median that is priced; dividing the limit by it once
keeps the bound on memory a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import Candidates
from planner.cost.memory import host_bound, memory_bound
from planner.cost.offload import host_room
from planner.cost.prices import Prices, prices, step_bound
from planner.cost.step import exact, tight_bound
from planner.cost.table import BlockTable, block_table
from planner.search.pins import Pins
from planner.search.space import Space, build_space, with_offload
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import Array, BoolArray, IntArray

BATCH = 64
"""Candidates whose stages are looked at together."""
SIMULATED = 8
"""Candidates whose schedules are simulated together."""
SLICE = 1 << 15
"""Candidates bounded at a time; keeps the arrays of one pass in cache."""
SAME = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "recompute", "offload")
"""Candidates that agree on these are one row of the answer: the best of them is shown."""


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
) -> Outcome:
    """The fastest candidates that fit.

    Layouts that keep something in host memory are looked at where a pin is on it, and where nothing fits on the chips
    alone: copies over the host's links are less well known than what runs on the chips.

    Args:
        task: the question.
        pins: restrictions of the space.
        top: how many distinct layouts to return, at least one; all of them proven to be the best.
        time_limit: seconds after which the best so far is returned with its gap; something that fits is
            waited for within the first batch.
        progress: called between batches.
        space: what to search, where that is not all that the task and the pins allow.

    Returns:
        The outcome; its ``bound`` is proven also where the search was stopped.
    """
    deadline = time.monotonic() + time_limit
    uneven = pins.fixed("vpp") is not None
    task = replace(task, copy_kv=task.copy_kv or pins.copy_kv, uneven_chunks=uneven)
    whole = space is None
    space = space or build_space(task, pins)
    found = _search(task, space, top, deadline, progress)
    nothing = not len(space.candidates)  # and host memory lifts no rule
    if found.best is not None or found.stopped or not whole or nothing or pins.on(("offload",)):
        return found
    return _search(task, with_offload(task, pins, space), top, deadline, progress)


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
    bounded = replace(
        found.bounded,
        step=found.bounded.step[index],
        fits=found.bounded.fits[index],
        key=found.bounded.key[index],
    )
    space = replace(found.space, candidates=found.space.candidates.take(index))
    return _search(task, space, top, time.monotonic() + time_limit, None, bounded)


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
    bounds, fit = bounded.step, bounded.fits
    index = np.flatnonzero(fit)
    index = index[preference(space.candidates.take(index), bounds[index])]
    state = _Incumbents(task, space.candidates, bounded, index, top)
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
    return state.outcome(space, int(fit.sum()), stopped=stopped)


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Candidates with their bounds, and the blocks that these were made from."""

    step: Array
    """Lower bounds on the step, seconds, infinite where the least memory does not fit; ``(n,)``."""
    fits: BoolArray
    """Whether the least memory leaves room for its upper quantile; ``(n,)``."""
    table: BlockTable
    key: IntArray
    """Each candidate's row in the table."""

    def priced(self, task: Task, candidates: Candidates, index: IntArray | slice) -> Prices:
        """Some of the candidates with their prices, blocks taken from the table."""
        return prices(task, candidates.take(index), (self.table, self.key[index]))

    def steps(self, task: Task, candidates: Candidates, index: IntArray) -> Array:
        """Lower bounds on the step of some of the candidates, whether they fit or not; seconds, shape of ``index``."""
        bounds = [step_bound(self.priced(task, candidates, part)) for part in _slices(index)]
        return np.concatenate([np.empty(0), *bounds])

    def memory(self, task: Task, candidates: Candidates, index: IntArray) -> Array:
        """Least bytes on the fullest chip of some of the candidates; shape of ``index``."""
        bounds = [memory_bound(self.priced(task, candidates, part)) for part in _slices(index)]
        return np.concatenate([np.empty(0), *bounds])


def bound_all(task: Task, candidates: Candidates) -> Bounded:
    """Whether the least memory of all candidates fits, and lower bounds on the step of those that do."""
    table, key = block_table(task, candidates)
    bounded = Bounded(
        step=np.full(len(candidates), np.inf),
        fits=np.zeros(len(candidates), dtype=bool),
        table=table,
        key=key,
    )
    for part in _slices(np.arange(len(candidates))):
        priced = bounded.priced(task, candidates, part)
        fit = fits(task, memory_bound(priced, room(task)), host_bound(priced))
        bounded.fits[part] = fit
        bounded.step[part[fit]] = step_bound(priced.take(np.flatnonzero(fit)))
    return bounded


def _slices(index: IntArray) -> Iterator[IntArray]:
    return (index[start : start + SLICE] for start in range(0, len(index), SLICE))


def fits(task: Task, memory: Array, host: Array) -> BoolArray:
    """Whether chips hold the upper quantile of their memory, and hosts what is moved to them; shapes broadcast."""
    return np.asarray((memory <= room(task)) & (host <= host_room(task)))


def preference(rows: Candidates, value: Array) -> IntArray:
    """Indices by value; ties by fewer axes, smaller tp, smaller pp, then the other columns.

    Values are compared to nine digits, so that rounding never decides.
    """
    axes = sum(
        (getattr(rows, axis) > 1).astype(np.int64) for axis in ("dp", "tp", "pp", "cp", "ep")
    )
    rounded = _digits(value)
    ties = (
        rows.order,
        rows.sp,
        rows.shard_group,
        rows.sharding,
        rows.recompute,
        rows.offload,
        rows.micro_batch,
        rows.vpp,
        rows.etp,
        rows.ep,
        rows.cp,
        rows.pp,
        rows.tp,
        axes,
    )
    order = np.argsort(rounded, kind="stable")
    same = rounded[order[1:]] == rounded[order[:-1]]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same)[: len(order)])
    if len(tied):
        some = order[tied]
        order[tied] = some[np.lexsort((*(column[some] for column in ties), rounded[some]))]
    return order


def _digits(value: Array) -> Array:
    scale = 10.0 ** (9 - np.ceil(np.log10(np.maximum(value, 1e-30))))
    return np.asarray(np.round(value * scale) / scale)


class _Incumbents:
    """The best candidates so far, and the place reached in the order of bounds."""

    def __init__(
        self, task: Task, candidates: Candidates, bounded: Bounded, order: IntArray, top: int
    ) -> None:
        self.task = task
        self.candidates = candidates
        self.bounded = bounded
        self.order = order
        self.top = max(1, top)
        self.place = 0
        self.refined = 0
        self.index = np.empty(0, dtype=np.int64)
        self.step = np.empty(0)
        self.memory = np.empty(0)

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
        order = preference(rows, step)
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
        floor = float(left.min(initial=np.inf))
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
        )
