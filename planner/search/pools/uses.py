"""The ways to use pools of different chips: one of them alone, replicas on all, stages on several."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.prices import Prices
from planner.cost.step import makespans, memory_of_stages, stage_times, step_seconds
from planner.search.engine import Outcome, Progress, search
from planner.search.pins import Pins
from planner.search.pools.place import Site, spanning_tasks, spread
from planner.search.pools.search import Pipelines, search_pipelines
from planner.search.pools.space import may_pipe
from planner.search.space import Space
from planner.search.stages.options import Mixing
from planner.search.stages.refine import refine
from planner.search.stages.winners import searched
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import show_seconds

SLACK = 1.2
"""How many times as long as the best other way stages on several pools may take to be told."""

ALIKE = "all chips alike, the slowest sets the pace"
SEVERAL, CHUNKED = "stages on several pools", "stages of several chunks on several pools"
UNSEEN = "not looked at"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Way:
    """One way to use the pools, and the best that was found."""

    text: str
    chips: int
    bound: float
    """Seconds; it does no better."""
    rows: tuple[Prices, ...] = ()
    """Its best layouts, best first; none where nothing fits, or nothing beats a way that is known."""
    steps: tuple[float, ...] = ()
    """Their steps, seconds."""
    note: str = ""
    pool: int | None = None
    """The pool that is used alone."""
    outcome: Outcome | None = None
    """The search of that pool."""
    searched: int = 0
    refined: int = 0
    gap: float = 0.0
    """Share by which another cut of its best layout may be faster."""
    stopped: bool = False

    @property
    def step(self) -> float:
        """Seconds of its best layout; infinite without one."""
        return self.steps[0] if self.steps else np.inf


def ways(
    site: Site,
    pins: Pins,
    *,
    top: int = 5,
    time_limit: float = 60.0,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Way, ...]:
    """All ways to use the pools, fastest first.

    Args:
        site: the question.
        pins: restrictions of degrees.
        top: how many layouts to return of each.
        time_limit: seconds, after which what is left is not looked at.
        progress: called between batches of the searches.
    """
    deadline = time.monotonic() + time_limit
    found: list[Way] = []

    def told(state: Progress) -> None:
        best = min(state.best or np.inf, *(way.step for way in found), np.inf)
        if progress is not None:
            progress(replace(state, best=best if best < np.inf else None))

    def stages(until: float, *, chunked: bool = False) -> Way:
        reached = (1.0 if chunked else SLACK) * min(way.step for way in found)
        pipelines = search_pipelines(
            site, pins, chunked=chunked, reached=reached, deadline=until, top=top, progress=told
        )
        return _stages(site, CHUNKED if chunked else SEVERAL, pipelines)

    def alone(pool: int) -> Callable[[float], Way]:
        return lambda until: _alone(site, pool, pins, top, until, told)

    looks = [(_only(task), task.cluster.num_chips, alone(i)) for i, task in enumerate(site.tasks)]
    looks.append((ALIKE, site.num_chips, lambda until: replicas(site, pins, top, until, told)))
    if may_pipe(site, pins):
        looks.append((SEVERAL, site.num_chips, stages))
    if may_pipe(site, pins, chunked=True):
        looks.append((CHUNKED, site.num_chips, partial(stages, chunked=True)))
    for text, chips, look in looks:
        try:
            found.append(look(deadline))
        except KeyboardInterrupt:
            if not any(way.steps for way in found):
                raise
            least = _at_peak(site)
            found.append(Way(text=text, chips=chips, bound=least, note=UNSEEN, stopped=True))
        if found[-1].stopped:
            deadline = time.monotonic()
    return tuple(sorted(found, key=lambda way: way.step))


def _only(task: Task) -> str:
    return f"only {task.cluster.name}"


def _at_peak(site: Site) -> float:
    """Seconds that no step of all chips is below: its FLOPs at their peak."""
    recipe = site.tasks[0].recipe
    clusters = [task.cluster for task in site.tasks]
    peak = sum(each.num_chips * each.chip.peak_for(recipe.precision) for each in clusters)
    return site.tasks[0].model.training_flops() * recipe.global_batch / peak


def _alone(
    site: Site,
    pool: int,
    pins: Pins,
    top: int,
    deadline: float,
    progress: Callable[[Progress], None] | None,
) -> Way:
    """One pool with the others idle: a search as on any cluster."""
    task = site.tasks[pool]
    _, outcome = searched(task, pins, top, deadline, progress)
    count = len(outcome.step)
    return Way(
        text=_only(task),
        chips=task.cluster.num_chips,
        bound=outcome.bound,
        rows=tuple(outcome.row(row) for row in range(count)),
        steps=tuple(outcome.step.tolist()),
        note="" if count else "nothing fits",
        pool=pool,
        outcome=outcome,
        searched=outcome.space.searched,
        refined=outcome.refined,
        gap=outcome.cut_gap,
        stopped=outcome.stopped,
    )


def replicas(
    site: Site,
    pins: Pins,
    top: int,
    deadline: float,
    progress: Callable[[Progress], None] | None = None,
    space: Space | None = None,
) -> Way:
    """All chips as if they were alike: every rank has as many micro-batches, so that the slowest pool sets the pace.

    What is searched is a cluster of the slowest chips alone; a layout is no faster beside faster ones.

    Args:
        site: the question.
        pins: restrictions of degrees.
        top: how many layouts to return.
        deadline: monotonic seconds.
        progress: called between batches of the search.
        space: what to search, where that is not all that the pins allow.
    """
    tasks = spanning_tasks(site)
    least = min(room(task) for task in site.tasks)
    slowest = min(tasks, key=_rate)
    limit = min(task.memory_limit for task in site.tasks)
    outcome = search(
        replace(slowest, memory_limit=limit),
        pins,
        top=top,
        time_limit=deadline - time.monotonic(),
        progress=progress,
        space=space,
    )
    rows = []
    for number in range(len(outcome.step)):
        assert outcome.best is not None
        p = spread(site, outcome.best.rows.take(np.array([number])))
        even = _priced(p)
        cut = refine(p, _mixing(slowest, pins, p), least)
        if cut is not None and cut.step < even[0]:
            rows.append((cut.step, cut.prices, cut.gap))
        elif even[1] <= least:
            rows.append((even[0], p, 0.0))
    rows.sort(key=lambda row: row[0])
    return Way(
        text=ALIKE,
        chips=site.num_chips,
        bound=outcome.bound,
        rows=tuple(row for _, row, _ in rows),
        steps=tuple(step for step, _, _ in rows),
        note="" if rows else "nothing fits",
        searched=outcome.space.searched,
        refined=outcome.refined,
        gap=rows[0][2] if rows else 0.0,
        stopped=outcome.stopped,
    )


def _rate(task: Task) -> float:
    """FLOP/s that large products reach."""
    chip, precision = task.cluster.chip, task.recipe.precision
    return chip.peak_for(precision) * chip.efficiency_for(precision)


def _mixing(task: Task, pins: Pins, p: Prices) -> Mixing:
    return "alike" if pins.fixed("recompute") is not None else task.trainer.mixes_recompute


def _priced(p: Prices) -> tuple[float, float]:
    """Seconds of a step, and bytes on the fullest chip."""
    times = stage_times(p)
    step = step_seconds(p, times, makespans(p, times))[0]
    return float(step), float(memory_of_stages(p, times.blocks).total.max())


def _stages(site: Site, text: str, found: Pipelines) -> Way:
    """Stages on several pools."""
    note = ""
    if not found.best:
        note = "nothing fits" if np.isinf(found.bound) else f"{show_seconds(found.bound)} or more"
    gap = found.best[0].gap if found.best else 0.0
    if found.best and text == CHUNKED:  # what bounds them bounds other cuts of the best one too
        gap = min(gap, max(0.0, 1.0 - found.bound / found.best[0].step))
    return Way(
        text=text,
        chips=int(found.best[0].prices.rows.ranks[0]) if found.best else site.num_chips,
        bound=found.bound,
        rows=tuple(each.prices for each in found.best),
        steps=tuple(each.step for each in found.best),
        note=note,
        searched=found.searched,
        refined=found.refined,
        gap=gap,
        stopped=found.stopped,
    )
