"""The fastest pipeline over pools of different chips, best bound first, with a proof or a gap.

Layouts of a stage are opened in the order of what no number of stages on any pool can beat. An open layout has a bound
for every numbers of stages; those come up in turn, and are cut into stages on both pools, in every order of the pools,
by the solver of stages. What was not looked at when the next bound exceeds the best step can be no better.

Bounds of seats of several chunks know little of how the first micro-batch gets to the last stage, so that too many are
below the best step. Paths that other schedules have met rule out nearly all of them
(:mod:`planner.search.stages.programs`); of the rest those are cut that lose least so with equal chunks, and what is
left is a bound.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias

import numpy as np

from planner.candidates import Candidates
from planner.cost.prices import Prices, prices
from planner.search.engine import Progress
from planner.search.pins import Pins
from planner.search.pools.bounds import Beside, Speeds, speeds, step_bounds
from planner.search.pools.place import Seats, Site, placed, rooms
from planner.search.pools.room import Needs, Rounds, makespans, needs
from planner.search.pools.space import (
    may_pipe,
    may_run,
    mixing_of,
    modes_of,
    orders,
    seatings,
    stage_layouts,
)
from planner.search.stages.on_pools import Looked
from planner.search.stages.options import Mixing
from planner.search.stages.paths import Met
from planner.search.stages.refine import refine, refine_chunks
from planner.search.stages.solver import PROVEN
from planner.search.stages.table import EQUAL
from planner.units import Array, IntArray

BATCH = 64
"""Numbers of stages whose memory is looked at together."""
TOGETHER = 32
"""Of them, how many come up before the most hopeful are cut."""
WORK = 480
"""Chunks of those that are cut by moving layers; the others are bounded."""
EXACT = 12
"""Chunks of a layout up to which its cuts are looked for with programs."""
HOPES = 1000
"""Seats with numbers of chunks that are looked at, those of the least bounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A layout on its pools, with its best cut."""

    prices: Prices
    seats: Seats
    step: float
    """Seconds."""
    gap: float
    """Share by which an unknown cut may still be faster."""


@dataclass(frozen=True, slots=True, eq=False)
class Pipelines:
    """What was found."""

    best: tuple[Placed, ...]
    """The best layouts that were looked at, best first; none where nothing fits."""
    bound: float
    """Seconds; no pipeline over several pools that fits is faster."""
    searched: int
    """Layouts of a stage times the numbers of stages that pools may have."""
    refined: int
    """Placings that were cut into stages."""
    stopped: bool


@dataclass(slots=True, eq=False)
class _Open:
    """A layout whose numbers of stages are being looked at."""

    row: int
    stages: IntArray
    """In the order of their bounds; ``(pools, n)``."""
    bounds: Array
    place: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Seated:
    """A layout with its pools, not cut yet."""

    row: int
    seats: Seats
    chunks: int | None = None
    """Of every stage, once they are chosen."""


_Node: TypeAlias = "int | _Open | _Seated"
"""A layout by its row, the same opened, or with its seats."""


@dataclass(frozen=True, slots=True, eq=False)
class _Hope:
    """Seats of a layout of several chunks."""

    step: float
    """Seconds that it may take: its bound, and what the first micro-batch and the last gradient lose on their way
    over stages of equal chunks."""
    bound: float
    """Seconds that no cut of it beats."""
    seated: _Seated

    @property
    def size(self) -> int:
        """Chunks of all stages."""
        return len(self.seated.seats.of_stage) * (self.seated.chunks or 1)


@dataclass(slots=True)
class _State:
    site: Site
    pins: Pins
    rows: Candidates
    chunks: list[tuple[int, ...]]
    """Numbers of chunks that the stages of every layout may have, ascending."""
    parts: tuple[Prices, ...]
    speeds: Speeds
    needs: Needs
    reached: float
    deadline: float
    top: int
    seats: Seats | None = None
    """The only ones that are looked at."""
    best: list[Placed] = field(default_factory=list)
    least: float = np.inf
    """Seconds that no cut of what was looked at beats."""
    refined: int = 0
    work: int = 0
    """Chunks of those layouts of several chunks a stage that were cut."""
    met: Met = field(default_factory=Met)
    """Paths of schedules of several chunks."""
    stopped: bool = False
    """Whether time ended before the search."""
    seatings: dict[int, IntArray] = field(default_factory=dict)
    numbered: Iterator[int] = field(default_factory=count)
    """Numbers for the nodes, so that equal bounds come up in the order in which they were found."""

    @property
    def late(self) -> bool:
        """Whether time has ended."""
        self.stopped |= time.monotonic() > self.deadline
        return self.stopped

    @property
    def limit(self) -> float:
        """Seconds that a layout must beat to matter."""
        return min(self.reached, self.best[0].step if self.best else np.inf)

    def rounds(self, row: int, chunks: int | None = None) -> Rounds:
        """What stages of a layout repeat, of so many chunks where they are chosen."""
        some = self.chunks[row] if chunks is None else (chunks,)
        m = int(self.speeds.micro_batches[row])
        return Rounds(m, (some[0], some[-1]), self.beside.layers)

    def after(self, row: int) -> float:
        """Least seconds of a layout's step that its schedule does not know."""
        return self.beside.overhead + float(self.speeds.ends[row])

    @property
    def beside(self) -> Beside:
        task = self.site.tasks[0]
        overhead = task.trainer.overhead
        return Beside(overhead.step, overhead.jitter, task.model.num_layers)

    def counted(self, row: int) -> int:
        """Numbers of stages of a layout, times those of chunks."""
        return len(self.numbers(int(self.speeds.chips[row])).T) * len(self.chunks[row])

    def numbers(self, chips: int) -> IntArray:
        """Numbers of stages of so many chips, made once."""
        if chips not in self.seatings:
            found = seatings(self.site, chips, self.pins)
            if self.seats is not None:
                stated = np.zeros((len(found), 1), dtype=np.int64)
                stated[list(self.seats.pools), 0] = self.seats.stages
                found = found[:, (found == stated).all(axis=0)]
            self.seatings[chips] = found
        return self.seatings[chips]


def search_pipelines(
    site: Site,
    pins: Pins,
    *,
    chunked: bool = False,
    reached: float = np.inf,
    deadline: float = np.inf,
    top: int = 5,
    seats: Seats | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Pipelines:
    """The fastest pipeline whose stages stand on two pools or more.

    Args:
        site: the question.
        pins: restrictions of degrees.
        chunked: of several chunks a stage, interleaved; else of one, under 1F1B.
        reached: seconds of a step that is known; slower ones may be left out.
        deadline: monotonic seconds after which the best so far is returned with its bound.
        top: how many layouts to return.
        seats: where the stages stand, if that is stated.
        progress: called between layouts; what it counts as done are those that are no open question any more.
    """
    may = may_pipe(site, pins, chunked=chunked)
    layouts = stage_layouts(site, pins, chunked=chunked) if may else None
    if layouts is None or not len(layouts[0]):
        return Pipelines((), np.inf, 0, 0, stopped=False)
    rows, chunks = layouts
    parts = tuple(prices(task, rows) for task in site.tasks)
    modes = [modes_of(site.tasks[0].trainer, pins, int(own)) for own in rows.recompute]
    fast, need = speeds(parts, site.link), needs(parts, modes)
    state = _State(site, pins, rows, chunks, parts, fast, need, reached, deadline, top, seats)
    heap = _first(state)
    searched = sum(map(state.counted, range(len(rows))))
    several, left = list[_Hope](), list[tuple[float, _Hope]]()
    bound = heap[0][0] if heap else np.inf
    try:
        while heap and (bound := heap[0][0]) < state.limit * (1.0 - EQUAL):
            if len(left) >= HOPES or state.late:
                break
            if progress is not None:
                progress(Progress(state.refined, state.refined + len(heap), state.limit, bound))
            _, _, each = heapq.heappop(heap)
            if isinstance(each, _Seated) and chunked:
                several += _several(state, each)
                if len(several) >= TOGETHER or not state.best:  # what they reach rules out others
                    left += _cut_some(state, several)
                    several = []
                continue
            for least, more in _next(state, each):
                if least < state.limit:
                    heapq.heappush(heap, (least, next(state.numbered), more))
        left += _cut_some(state, several)
        state.least = min([state.least, *_cut_exactly(state, left)])
    except KeyboardInterrupt:
        state.stopped = True
        left += [(hope.bound, hope) for hope in several]
        state.least = min([state.least, *(least for least, _ in left)])
    bound = min(state.limit, state.least, bound if state.stopped or heap else np.inf)
    return Pipelines(tuple(state.best), bound, searched, state.refined, state.stopped)


def _next(state: _State, each: _Node) -> Iterator[tuple[float, _Node]]:
    """What comes of a node, with bounds: a layout is opened, some of its seats get tighter bounds, seats are cut."""
    if isinstance(each, _Seated):
        _look(state, each)
        return
    opened = each if isinstance(each, _Open) else _opened(state, each)
    if opened.place < len(opened.bounds):
        yield from _tightened(state, opened)
    if opened.place < len(opened.bounds):
        yield float(opened.bounds[opened.place]), opened


def _several(state: _State, each: _Seated) -> Iterator[_Hope]:
    """Seats with every number of chunks that their stages may have."""
    number, m = len(each.seats.of_stage), int(state.speeds.micro_batches[each.row])
    for chunks in state.chunks[each.row]:
        if number * chunks > state.beside.layers:
            return
        (bound,) = _bounds(state, each.row, [each.seats], chunks)
        if bound < state.limit:
            lost = bound * (number - 1) / (chunks * m)
            yield _Hope(bound + lost, bound, replace(each, chunks=chunks))


def _in_turn(several: Sequence[_Hope]) -> list[_Hope]:
    """The most hopeful of every number of chunks, few chunks first, then the second of each, and so on."""
    ranks: dict[int | None, Iterator[int]] = defaultdict(count)
    several = sorted(several, key=lambda hope: hope.step)
    turns = [next(ranks[hope.seated.chunks]) for hope in several]
    places = sorted(range(len(several)), key=lambda place: (turns[place], several[place].size))
    return [several[place] for place in places]


def _first(state: _State) -> list[tuple[float, int, _Node]]:
    """Every layout with what no numbers of stages can beat."""
    chips = np.array([task.cluster.num_chips for task in state.site.tasks])[:, None]
    most = chips // state.speeds.chips
    possible = np.flatnonzero((most > 0).sum(axis=0) > 1)
    bounds = step_bounds(state.speeds, most, state.beside, at_most=True)
    heap: list[tuple[float, int, _Node]] = [
        (float(bounds[row]), next(state.numbered), int(row)) for row in possible
    ]
    heapq.heapify(heap)
    return heap


def _opened(state: _State, row: int) -> _Open:
    """A layout with its numbers of stages that could be faster than what is known, best bound first."""
    stages = state.numbers(int(state.speeds.chips[row]))
    bounds = step_bounds(state.speeds.repeat(row, stages.shape[1]), stages, state.beside)
    order = np.argsort(bounds, kind="stable")
    order = order[bounds[order] < state.limit]
    order = order[may_run(state.site, state.rows.take(np.array([row])), stages[:, order])]
    return _Open(row, stages[:, order], bounds[order])


def _tightened(state: _State, each: _Open) -> Iterator[tuple[float, _Node]]:
    """The next seats of a layout, with bounds that know their memory."""
    some = slice(each.place, each.place + BATCH)
    seats = [
        (float(bound), found)
        for bound, stages in zip(each.bounds[some], each.stages[:, some].T, strict=True)
        for found in orders(stages)
        if state.seats in (None, found)
    ]
    each.place += BATCH
    tighter = _bounds(state, each.row, [found for _, found in seats])
    for (bound, found), least in zip(seats, tighter, strict=True):
        yield max(bound, least), _Seated(each.row, found)


def _bounds(
    state: _State, row: int, seats: Sequence[Seats], chunks: int | None = None
) -> list[float]:
    """Seconds that no cut of a layout beats, on each of these seats, of so many chunks or of any number."""
    pools = np.full((len(seats), max((sum(each.stages) for each in seats), default=0)), -1)
    for place, each in enumerate(seats):
        pools[place, -sum(each.stages) :] = each.of_stage
    slower, after = 1.0 + state.beside.jitter, state.after(row)
    longest = (state.limit - after) / slower
    found = makespans(state.needs, row, pools, state.rounds(row, chunks), longest)
    return list(map(float, found * slower + after))


def _look(state: _State, each: _Seated, how: Looked = "moves") -> float:
    """Cut a layout into stages on its pools; seconds that no cut of it beats, 0 where that is not told apart."""
    asked = _asked(state, each)
    if asked is None:
        return np.inf
    state.refined += 1
    if each.chunks is None:
        found, bound = refine(*asked, state.limit), 0.0
    else:
        found, bound = refine_chunks(*asked, state.limit, state.met, how)
    if found is not None and found.step < state.reached:
        state.best.append(Placed(found.prices, each.seats, found.step, found.gap))
        state.best.sort(key=lambda each: each.step)
        del state.best[state.top :]
    return bound


def _cut_some(state: _State, several: Sequence[_Hope]) -> list[tuple[float, _Hope]]:
    """Cut layouts into stages of several chunks by moving layers, first those that hope most.

    Returns:
        Seconds that no cut of each of them beats.
    """
    found = []
    for hope in _in_turn(several):
        bound = hope.bound
        if bound < state.limit * (1.0 - PROVEN) and not state.late:
            state.work += hope.size
            how: Looked = "moves" if state.work <= WORK else "bound"
            bound = max(bound, _look(state, hope.seated, how))
        found.append((bound, hope))
    return found


def _cut_exactly(state: _State, left: Sequence[tuple[float, _Hope]]) -> Iterator[float]:
    """The same with programs where chunks are few and a cut may be faster, the least bounds first."""
    for bound, hope in sorted(left, key=lambda each: each[0]):
        open_ = bound < state.limit * (1.0 - PROVEN) and not state.late
        if open_ and hope.size <= EXACT:
            bound = max(bound, _look(state, hope.seated, "programs"))
        yield bound


def _asked(state: _State, each: _Seated) -> tuple[Prices, Mixing, Array] | None:
    """What :func:`refine` takes of a layout; None where a rule of the trainer forbids it."""
    row = state.rows.take(np.array([each.row]))
    if each.chunks is not None:
        row = replace(row, vpp=np.array([each.chunks]))
    known = tuple(part.take(np.array([each.row])) for part in state.parts)
    trainer = state.site.tasks[0].trainer
    mixing = mixing_of(trainer.mixes_recompute, state.pins, int(row.recompute[0]))
    return placed(state.site, row, each.seats, known), mixing, rooms(state.site, each.seats)
