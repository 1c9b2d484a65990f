"""Layouts of virtual stages with unequal numbers of layers, where these may be faster than what is known.

Any number of layers goes into any number of chunks where the trainer can say so, so that there are many more layouts
than with equal chunks, and few of them are near the best. Two bounds hold whatever the number of chunks is: that of a
stage as busy as the mean one, and the memory of the mean stage. Layouts are made only where both leave hope.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from planner.candidates import SCHEDULES, SPLIT, Candidates
from planner.cost.memory import any_chunks_memory
from planner.cost.prices import any_step_bound, prices
from planner.cost.step import exact_memory
from planner.cost.table import BlockTable, with_rows
from planner.search.bounded import Bounded, bounds_of, mean_work, slices
from planner.search.engine import Outcome, beside
from planner.search.in_host import with_moved
from planner.search.pins import ANY_CHUNKS, TWO_CHUNKS, Pins
from planner.search.space import Space, behind, build_space, joined, numbers_of_chunks, ramp
from planner.trainers.rules.pipeline import CHUNKS, equal_chunks
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import Array, BoolArray, IntArray

ANY_ORDER = SCHEDULES.index("zb-h1")
"""A schedule of which no more is known than that some stage is as busy as the mean one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Seeds:
    """Layouts of two chunks a stage, each for all that differ in the number of chunks only."""

    space: Space
    table: BlockTable
    key: IntArray
    group: IntArray
    """Which rows differ in nothing but what they recompute and keep in host memory: ascending numbers; ``(n,)``."""

    def least(self, index: IntArray, values: Array) -> Array:
        """The least value of every group, of some of the rows; ``(groups,)``."""
        found = np.full(int(self.group.max(initial=-1)) + 1, np.inf)
        np.minimum.at(found, self.group[index], values)
        return found


def widened(
    task: Task, pins: Pins, found: Outcome, worst: float, best: float, top: int, deadline: float
) -> Outcome:
    """An outcome with layouts of unequal chunks that may be faster, behind all its rows.

    Args:
        task: the question.
        pins: its restrictions.
        found: of its search.
        worst: seconds that a layout must beat.
        best: the same where something is in host memory that pins leave open.
        top: how many distinct layouts to return.
        deadline: monotonic seconds.
    """
    if not _may_be(task, pins):
        return found
    seeds = _seeds(task, pins, found.space, found.bounded)
    made, place = _made(task, pins, seeds, _hopeful(task, pins, seeds, worst, best))
    task = replace(task, operators=made.operators)
    bounded = bounds_of(task, made.candidates, seeds.table, seeds.key[place])
    alike = seeds.group[place] * (task.model.num_layers + 1) + made.candidates.vpp
    few = np.flatnonzero(np.isin(alike, alike[bounded.fits]))
    more, some = made.take(few), bounded.take(few)
    if not pins.on(("offload",)):
        moved, extra = with_moved(task, made, bounded, _too_large(task, made, bounded, best), best)
        more, some = joined(more, moved), some.joined(extra)
    return beside(task, found, more, some, top, deadline) if len(more.candidates) else found


def without_unequal(task: Task, pins: Pins, found: Outcome) -> Outcome:
    """An outcome whose search ended before these were looked at; its bound holds for them, too."""
    if not _may_be(task, pins):
        return found
    seeds = _seeds(task, pins, found.space, found.bounded)
    step, _ = _bounds(task, seeds, np.arange(len(seeds.key)), None)
    return replace(found, bound=float(step.min(initial=found.bound)))


def _may_be(task: Task, pins: Pins) -> bool:
    """Whether there are any that are not in the space anyway."""
    able = task.trainer.uneven_stages or task.trainer.pads_layers
    return able and pins.fixed("vpp") is None and ANY_CHUNKS not in pins.pins


def _too_large(task: Task, space: Space, bounded: Bounded, best: float) -> IntArray:
    """Layouts that may be faster and do not fit although their least memory does."""
    may = np.flatnonzero(bounded.fits & (bounded.step < best))
    memory = exact_memory(bounded.priced(task, space.candidates, may))
    return np.asarray(may[memory > room(task)])


def equal(task: Task, pins: Pins, rows: Candidates) -> BoolArray:
    """Layouts that are in the space before unequal chunks are looked at."""
    return np.isin(rows.vpp, numbers_of_chunks(task, pins)) & equal_chunks(task, rows)


def _seeds(task: Task, pins: Pins, space: Space, bounded: Bounded) -> _Seeds:
    others = tuple(pin for pin in pins.pins if pin.column != "vpp")
    two = replace(pins, pins=(*others, TWO_CHUNKS))
    seeds = behind(space, build_space(replace(task, uneven_chunks=True), two))
    rows, task = seeds.candidates, replace(task, operators=seeds.operators)
    table, key = with_rows(task, space.candidates, (bounded.table, bounded.key), rows)
    differs = np.arange(len(rows)) == 0
    for name in (each.name for each in fields(rows)):
        if name not in ("recompute", "offload"):
            differs[1:] |= np.diff(getattr(rows, name).astype(np.int64)) != 0
    return _Seeds(seeds, table, key, np.cumsum(differs) - 1)


def _hopeful(task: Task, pins: Pins, seeds: _Seeds, worst: float, best: float) -> BoolArray:
    """Groups of which a layout may be faster with some number of chunks, and fit; ``(groups,)``."""
    every = np.arange(len(seeds.key))
    busy = mean_work(task, seeds.space.candidates, seeds.table, seeds.key, every)
    quick = seeds.least(every, busy)
    found = np.zeros(len(quick), dtype=bool)
    kinds = () if pins.on(("offload",)) else [kind for kind in task.trainer.offload.kinds if kind]
    for kind, reach in ((None, worst), *((kind, best) for kind in kinds)):
        index = np.flatnonzero(((quick < reach) & ~found)[seeds.group])
        step, memory = _bounds(task, seeds, index, kind)
        low = seeds.least(index, step)
        found |= (low < reach) & (seeds.least(index, memory) <= room(task))
        if kind is None:
            quick = np.maximum(quick, low)
    return found


def _bounds(task: Task, seeds: _Seeds, index: IntArray, kind: int | None) -> tuple[Array, Array]:
    """Seconds of a step and bytes of a rank at least, of some rows with any number of chunks; ``(len(index),)`` each.

    Args:
        task: the question.
        seeds: the rows.
        index: which of them.
        kind: of what they keep in host memory; None for what they say themselves.
    """
    task = replace(task, operators=seeds.space.operators)
    step, memory = [np.empty(0)], [np.empty(0)]
    for part in slices(index):
        rows = seeds.space.candidates.take(part)
        if kind is not None:
            rows = replace(rows, offload=np.full(len(rows), kind))
        priced = prices(task, rows, (seeds.table, seeds.key[part]))
        schedule = np.where(np.isin(rows.schedule, SPLIT), rows.schedule, ANY_ORDER)
        memory.append(any_chunks_memory(priced))
        step.append(any_step_bound(priced.stated(replace(rows, schedule=schedule))))
    return np.concatenate(step), np.concatenate(memory)


def _made(task: Task, pins: Pins, seeds: _Seeds, groups: BoolArray) -> tuple[Space, IntArray]:
    """All layouts of unequal chunks of some groups, and which seed each was made of.

    What the list of numbers of chunks has is no longer removed for them.
    """
    first = np.searchsorted(seeds.group, np.arange(len(groups) + 1))
    rows, size, some = seeds.space.candidates, np.diff(first), np.flatnonzero(groups)
    most = task.model.num_layers // rows.pp[first[some]]
    which, chunks = np.repeat(some, most - 1), ramp(most - 1) + 2
    place = np.repeat(first[which], size[which]) + ramp(size[which])
    made = replace(rows.take(place), vpp=np.repeat(chunks, size[which]))
    keeps = ~equal(task, pins, made)
    for pin in pins.on(("vpp",)):
        keeps &= pin.keeps(made.vpp)
    made, place = made.take(keeps), place[keeps]
    counted = int(np.isin(made.vpp, numbers_of_chunks(task, pins)).sum())
    removed, keeps = {CHUNKS.name: -counted}, np.ones(len(made), dtype=bool)
    task = replace(task, uneven_chunks=True)
    for rule in (rule for rule in task.trainer.rules if "vpp" in rule.needs):
        kept = keeps & rule.keeps(task, made)
        removed[rule.name] = removed.get(rule.name, 0) + int((keeps & ~kept).sum())
        keeps = kept
    more = Space(made.take(keeps), len(made) - counted, removed, seeds.space.operators)
    return more, place[keeps]
