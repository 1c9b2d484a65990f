"""The fastest pipeline over pools of different chips, best bound first, with a proof.

Layouts of a stage are opened in the order of what no number of stages on any pool can beat. An open layout has a bound
for every numbers of stages; those come up in turn, and are cut into stages on both pools, in every order of the pools,
by the solver of stages. What was not looked at when the next bound exceeds the best step can be no better.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

import numpy as np

from planner.candidates import RECOMPUTE, Candidates
from planner.cost.prices import Prices, prices
from planner.search.engine import Progress
from planner.search.pins import Pins
from planner.search.pools.bounds import Beside, Speeds, speeds, step_bounds
from planner.search.pools.place import Seats, Site, placed, rooms
from planner.search.pools.room import Needs, makespans, needs
from planner.search.pools.space import may_run, orders, plain, seatings, spans, stage_layouts
from planner.search.stages.options import Mixing
from planner.search.stages.refine import refine
from planner.trainers.trainer import Trainer
from planner.units import Array, IntArray

EQUAL = 1e-9
"""Relative difference of two steps that counts as none."""
BATCH = 64
"""Numbers of stages whose memory is looked at together."""


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
    """The best layouts that were looked at, best first; the first of them is proven, none where nothing fits."""
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


_Node: TypeAlias = "int | _Open | _Seated"
"""A layout by its row, the same opened, or with its seats."""


@dataclass(slots=True)
class _State:
    site: Site
    pins: Pins
    rows: Candidates
    parts: tuple[Prices, ...]
    speeds: Speeds
    needs: Needs
    reached: float
    top: int
    seats: Seats | None = None
    """The only ones that are looked at."""
    best: list[Placed] = field(default_factory=list)
    refined: int = 0
    seatings: dict[int, IntArray] = field(default_factory=dict)
    numbered: Iterator[int] = field(default_factory=count)
    """Numbers for the nodes, so that equal bounds come up in the order in which they were found."""

    @property
    def limit(self) -> float:
        """Seconds that a layout must beat to matter."""
        return min(self.reached, self.best[0].step if self.best else np.inf)

    def after(self, row: int) -> float:
        """Least seconds of a layout's step that its schedule does not know."""
        return self.beside.overhead + float(self.speeds.ends[row])

    @property
    def beside(self) -> Beside:
        task = self.site.tasks[0]
        overhead = task.trainer.overhead
        return Beside(overhead.step, overhead.jitter, task.model.num_layers)

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
        reached: seconds of a step that is known; slower ones may be left out.
        deadline: monotonic seconds after which the best so far is returned with its bound.
        top: how many layouts to return.
        seats: where the stages stand, if that is stated.
        progress: called between layouts; what it counts as done are those that are no open question any more.
    """
    if not spans(site.tasks[0]) or not plain(pins):
        return Pipelines((), np.inf, 0, 0, stopped=False)
    rows, _ = stage_layouts(site, pins)
    if not len(rows):
        return Pipelines((), np.inf, 0, 0, stopped=False)
    parts = tuple(prices(task, rows) for task in site.tasks)
    modes = [_modes(site.tasks[0].trainer, pins, int(own)) for own in rows.recompute]
    state = _State(
        site, pins, rows, parts, speeds(parts, site.link), needs(parts, modes), reached, top, seats
    )
    heap, stopped = _first(state), False
    searched = sum(state.numbers(int(chips)).shape[1] for chips in state.speeds.chips)
    bound = heap[0][0] if heap else np.inf
    try:
        while heap and (bound := heap[0][0]) < state.limit * (1.0 - EQUAL):
            if stopped := time.monotonic() > deadline:
                break
            if progress is not None:
                progress(Progress(state.refined, state.refined + len(heap), state.limit, bound))
            _, _, each = heapq.heappop(heap)
            for least, more in _next(state, each):
                if least < state.limit:
                    heapq.heappush(heap, (least, next(state.numbered), more))
    except KeyboardInterrupt:
        stopped = True
    bound = min(state.limit, bound if stopped or heap else np.inf)
    return Pipelines(tuple(state.best), bound, searched, state.refined, stopped)


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
    pools = np.full((len(seats), max(sum(found.stages) for _, found in seats)), -1)
    for row, (_, found) in enumerate(seats):
        pools[row, -sum(found.stages) :] = found.of_stage
    m = int(state.speeds.micro_batches[each.row])
    slower, after = 1.0 + state.beside.jitter, state.after(each.row)
    longest = (state.limit - after) / slower
    seconds = makespans(state.needs, each.row, pools, m, state.beside.layers, longest)
    for (bound, found), least in zip(seats, seconds.tolist(), strict=True):
        yield max(bound, least * slower + after), _Seated(each.row, found)


def _look(state: _State, each: _Seated) -> None:
    """Cut a layout into stages on its pools."""
    row = state.rows.take(np.array([each.row]))
    if not may_run(state.site, row, each.seats):
        return
    known = tuple(part.take(np.array([each.row])) for part in state.parts)
    p = placed(state.site, row, each.seats, known)
    state.refined += 1
    trainer = state.site.tasks[0].trainer
    mixing = _mixing(trainer.mixes_recompute, state.pins, int(row.recompute[0]))
    found = refine(p, mixing, rooms(state.site, each.seats), state.limit)
    if found is not None and found.step < state.reached:
        state.best.append(Placed(found.prices, each.seats, found.step, found.gap))
        state.best.sort(key=lambda each: each.step)
        del state.best[state.top :]


def _modes(trainer: Trainer, pins: Pins, own: int) -> list[int]:
    """Modes of recompute that the layers of a layout may have."""
    mixing = _mixing(trainer.mixes_recompute, pins, own)
    if mixing == "alike":
        return [own]
    words = ("none", "full") if mixing == "count" else tuple(trainer.recompute)
    return [RECOMPUTE.index(word) for word in words if word in trainer.recompute]


def _mixing(mixing: Mixing, pins: Pins, own: int) -> Mixing:
    """How the layers of a layout may differ in what they recompute."""
    if pins.fixed("recompute") is not None:
        return "alike"
    selective = own == RECOMPUTE.index("selective")
    return "alike" if mixing == "count" and selective else mixing
