"""A layout that a person states on pools of different chips, with what it leaves open filled in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import Candidates
from planner.cost.prices import Prices, any_step_bound, prices, with_cut
from planner.cost.step import exact
from planner.errors import PlannerError
from planner.plan.layout import DIVISION, SEATS, layout_of, plain
from planner.plan.left_open import LeftOpen, Usual
from planner.plan.schema import Proof
from planner.question import Understood
from planner.search.alternatives import seated
from planner.search.answer import mfu
from planner.search.breakdown import breakdown
from planner.search.pins import Pins, from_layout
from planner.search.pools.answer import PROVEN
from planner.search.pools.place import Seats, Site, placed, rooms, spanning_tasks, spread
from planner.search.pools.search import search_pipelines
from planner.search.pools.stated import seats_of, stated_row
from planner.search.pools.uses import replicas
from planner.search.space import Space
from planner.search.stages.stated import stated_cut
from planner.stated import Filled, Stated, fastest, ways
from planner.trainers.registry import faults
from planner.trainers.rules import allowed
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import Array, BoolArray

BEST = 5
"""Ways with even stages that are divided, the fastest first, where every stage has chips of all pools."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OnPools:
    """A stated layout on pools."""

    site: Site
    stated: Stated
    """On the first of its pools, of as many chips as it takes."""
    tasks: tuple[Task, ...]
    """The question on each pool that it uses, of as many chips."""
    seats: Seats | None
    """None where every stage has chips of all pools."""

    @property
    def limits(self) -> Array:
        """Bytes that the median of each stage's memory may reach; ``(stages,)`` or one for all."""
        if self.seats is not None:
            return rooms(self.site, self.seats)
        return np.array([min(room(task) for task in self.site.tasks)])

    def priced(self, row: Candidates) -> Prices:
        """One way to fill it in, layers divided as it says."""
        if self.seats is None:
            found = spread(self.site, row)
        elif len(self.seats.pools) == 1:
            found = prices(self.site.tasks[self.seats.pools[0]], row)
        else:
            found = placed(self.site, row, self.seats)
        cut = stated_cut(self.stated.layout, row, self.stated.task)
        return found if cut is None else with_cut(found, cut)

    def bounds(self, rows: Candidates) -> Array:
        """Seconds that no division into stages beats: those on the fastest pool of all that are used; ``(n,)``."""
        tasks = spanning_tasks(self.site)
        if self.seats is not None:
            tasks = tuple(self.site.tasks[pool] for pool in self.seats.pools)
        each = np.stack([any_step_bound(prices(task, rows)) for task in tasks])
        return np.asarray(each.max(axis=0) if self.seats is None else each.min(axis=0))

    def may_run(self, rows: Candidates) -> BoolArray:
        """Ways that every pool's rules allow, stages outermost on the chips where they stand on several."""
        keeps = np.logical_and.reduce([allowed(task, rows) for task in self.tasks])
        if self.seats is not None:
            orders = self.stated.task.trainer.orders
            keeps &= np.array([order[-1] == "pp" for order in orders])[rows.order]
        return np.asarray(keeps)


def read_on_pools(known: Understood, site: Site, layout: Mapping[str, int | str]) -> OnPools:
    """A layout on pools read against a question.

    Raises:
        PlannerError: a key or a value that no layout has (N01, N02), pools that are not there, or more chips than they
            have (D01).
    """
    words = {plain(key): value for key, value in layout.items()}
    seats = seats_of(str(words.pop(SEATS)), site) if SEATS in words else None
    pins = from_layout(words, known.task.trainer)
    uneven = any(key in DIVISION for key in words)
    site = replace(site, tasks=tuple(replace(t, uneven_chunks=uneven) for t in site.tasks))
    row, tasks = stated_row(site, pins, seats)
    first = tasks[0]
    if seats is not None and len(seats.pools) == 1:
        own = site.tasks[seats.pools[0]]
        first = replace(own, chips=(int(row.ranks[0]),))
    return OnPools(
        site=site,
        stated=Stated(task=first, layout=words, pins=pins, row=row),
        tasks=tasks,
        seats=seats,
    )


def fastest_on_pools(
    on: OnPools, pins: Pins, time_limit: float, *, usual: bool = False
) -> tuple[Filled, LeftOpen | None]:
    """The fastest way that fits to fill in a layout on pools, as :func:`planner.stated.fastest`; and what was open.

    Args:
        on: the layout.
        pins: of the question.
        time_limit: seconds.
        usual: take the trainer's usual way instead.

    Raises:
        PlannerError: pins that contradict it (N03), or every rule of the trainer that the layout breaks.
    """
    if on.seats is not None and len(on.seats.pools) == 1:
        found = fastest(on.stated, pins, time_limit, usual=usual)
    else:
        found = _filled(on, pins, time_limit, usual=usual)
    return found, _left_open(on, found)


def _filled(on: OnPools, pins: Pins, time_limit: float, *, usual: bool) -> Filled:
    rows = ways(on.stated, pins, usual=usual)
    rows = rows.take(on.may_run(rows))
    if not len(rows):
        wrong = [fault for task in on.tasks for fault in faults(task, on.stated.row)]
        raise PlannerError(*dict.fromkeys(wrong))
    if len(rows) == 1:
        only = on.priced(rows)
        return Filled(only, rows, _proof(float(exact(only).step[0]), 1))
    deadline, free = time.monotonic() + time_limit, Pins((*on.stated.fixed.pins, *pins.pins))
    if on.seats is None and not on.stated.divides:
        way = replicas(on.site, pins, BEST, deadline, space=Space(rows, len(rows)))
        if way.rows:
            gap, stopped = 1.0 - min(way.bound, way.step) / way.step, way.stopped
            return Filled(way.rows[0], rows, _proof(way.step, len(rows), gap, stopped=stopped))
    elif on.seats is not None and not on.stated.divides:
        both = [
            search_pipelines(
                on.site, free, chunked=chunked, deadline=deadline, top=1, seats=on.seats
            )
            for chunked in (False, True)
        ]
        if best := [found.best[0] for found in both if found.best]:
            first = min(best, key=lambda each: each.step)
            gap = 1.0 - min(found.bound for found in both) / first.step
            proof = _proof(first.step, len(rows), gap, stopped=any(f.stopped for f in both))
            return Filled(first.prices, rows, proof)
    return _of_all(on, rows, deadline)


def _of_all(on: OnPools, rows: Candidates, deadline: float) -> Filled:
    """The fastest way that fits, else the one that needs least memory, of those that no search divides: one by one."""
    bounds, stopped = on.bounds(rows), False
    best: tuple[bool, float, Prices] | None = None
    for index in np.argsort(bounds, kind="stable").tolist():
        if best is not None and not best[0] and bounds[index] >= best[1]:
            break
        stopped = best is not None and time.monotonic() > deadline
        if stopped:
            break
        priced = on.priced(rows.take(np.array([index])))
        over = float((breakdown(priced, 0).memory.total[0] - on.limits).max())
        mine = (over > 0, over if over > 0 else float(exact(priced).step[0]), priced)
        if best is None or mine[:2] < best[:2]:
            best = mine
    assert best is not None
    proof = _proof(float(exact(best[2]).step[0]), len(rows), stopped=stopped)
    return Filled(best[2], rows, proof.model_copy(update={"fitting": int(not best[0])}))


def _proof(step: float, ways: int, gap: float = 0.0, *, stopped: bool = False) -> Proof:
    gap = max(0.0, gap)
    gap = gap if gap >= PROVEN else 0.0
    return Proof(
        optimal=ways > 1 and gap == 0.0 and not stopped,
        bound=step * (1.0 - gap),
        gap=gap,
        searched=ways,
        allowed=ways,
        fitting=ways,
        refined=ways,
        stopped=stopped,
    )


def _left_open(on: OnPools, found: Filled) -> LeftOpen | None:
    """What the layout left open, and what the trainer would do there by itself; None where nothing was to choose."""
    chosen = found.chosen
    if not chosen:
        return None
    row = on.stated.row
    if wrong := [fault for task in on.tasks for fault in faults(task, row)]:
        return LeftOpen(chosen=chosen, refused=wrong[0].what)
    usual = on.priced(row)
    degrees = seated(usual)
    if layout_of(degrees) == layout_of(seated(found.prices)):
        return LeftOpen(chosen=chosen)
    b = breakdown(usual, 0)
    memory = b.memory.total[0]
    return LeftOpen(
        chosen=chosen,
        usual=Usual(
            degrees=degrees,
            step=b.step,
            mfu=mfu(b.prices.task, b.step, b.paid, usual.chip),
            memory=float(memory[b.fullest]),
            fits=bool((memory <= on.limits).all()),
        ),
    )
