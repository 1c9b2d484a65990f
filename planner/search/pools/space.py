"""Layouts of one stage, and the numbers of stages that pools may have of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import permutations, product

import numpy as np

from planner.candidates import RECOMPUTE, SCHEDULES, Candidates, concatenate, distinct
from planner.search.pins import Pin, Pins
from planner.search.pools.place import Seats, Site
from planner.search.space import build_space
from planner.search.stages.options import Mixing
from planner.trainers.trainer import Task, Trainer
from planner.trainers.wording import divisors
from planner.units import BoolArray, IntArray, unique

TWO = Pin("pp=2", "pp", "=", 2)
"""A pipeline of two stages stands for all of them: rules that look at their number are asked again."""


def may_pipe(site: Site, pins: Pins, *, chunked: bool = False) -> bool:
    """Whether stages can stand on different pools, of several chunks or of one.

    The trainer needs a pipeline whose stages may be uneven, and pins leave such schedules.
    """
    trainer, name = site.tasks[0].trainer, "interleaved" if chunked else "1f1b"
    schedule = np.array(SCHEDULES.index(name))
    if not (trainer.uneven_stages and name in trainer.schedules) or pins.fixed("pp") == 1:
        return False
    if not all(pin.keeps(schedule) for pin in pins.on(("schedule",))):
        return False
    one = all(pin.keeps(np.array(1)) for pin in pins.on(("vpp",)))
    return pins.fixed("vpp") != 1 if chunked else one


def stage_layouts(
    site: Site, pins: Pins, *, chunked: bool = False
) -> tuple[Candidates, list[tuple[int, ...]]]:
    """Every way to divide one stage, with stages outermost on the chips; and how many chunks it may have.

    Every stage has the same degrees, as trainers need it, and the same number of chunks, of as many layers as its chips
    are fast.

    Args:
        site: the question.
        pins: restrictions of degrees.
        chunked: several chunks, interleaved; else one, under 1F1B.

    Returns:
        Layouts with the fewest chunks that each may have, and for each all numbers of them, ascending.
    """
    fixed = tuple(pin for pin in pins.pins if pin.column != "pp")
    pins = Pins((*fixed, TWO), pins.copy_kv)
    task = max(site.tasks, key=lambda each: each.cluster.num_chips)
    task = replace(task, uneven_chunks=True)
    schedule = SCHEDULES.index("interleaved" if chunked else "1f1b")
    tables = []
    for chips in stage_sizes(site):
        cluster = replace(task.cluster, num_chips=2 * chips)
        space = build_space(replace(task, cluster=cluster), pins)
        rows = space.candidates
        tables.append(_kept(rows.take(rows.schedule == schedule), task, pins))
    every = concatenate(tables)
    names = [each.name for each in fields(every) if each.name != "vpp"]
    order = np.argsort(every.vpp, kind="stable")
    first, index = distinct([getattr(every, name)[order] for name in names])
    ends = np.cumsum(np.bincount(index, minlength=len(first)))[:-1]
    counts = np.split(every.vpp[order][np.argsort(index, kind="stable")], ends)
    return every.take(order[first]), [tuple(each.tolist()) for each in counts]


def _kept(rows: Candidates, task: Task, pins: Pins) -> Candidates:
    """Rows whose stages are outermost, without those that the choice of recompute by stage makes anyway."""
    outermost = np.array([order[-1] == "pp" for order in task.trainer.orders])
    keeps = outermost[rows.order] & (rows.offload == 0)
    if pins.fixed("sharding") is None:  # over one rank all levels are the same
        keeps &= (rows.dp * rows.cp > 1) | (rows.sharding == min(task.trainer.shardings))
    if pins.fixed("recompute") is None:
        full, selective = (RECOMPUTE.index(mode) for mode in ("full", "selective"))
        if task.trainer.mixes_recompute != "alike":
            keeps &= rows.recompute != full
        if task.trainer.mixes_recompute == "stages":
            keeps &= rows.recompute != selective
    return rows.take(keeps)


def stage_sizes(site: Site) -> list[int]:
    """Numbers of chips that a stage may have, ascending: they divide a pool, and two pools have room for one."""
    counts = sorted(task.cluster.num_chips for task in site.tasks)
    return sorted({size for count in counts for size in divisors(count) if size <= counts[-2]})


def seatings(site: Site, chips: int, pins: Pins) -> IntArray:
    """How many stages of so many chips each pool may have: at least two pools some, no more than there are layers.

    Shapes: ``(pools, n)``.
    """
    layers = site.tasks[0].model.num_layers
    most = (min(layers, task.cluster.num_chips // chips) for task in site.tasks)
    table = np.array(list(product(*(range(each + 1) for each in most))), np.int64).T
    number = table.sum(axis=0)
    keeps = ((table > 0).sum(axis=0) > 1) & (number <= layers)
    for pin in pins.on(("pp",)):
        keeps &= pin.keeps(number)
    return np.asarray(table[:, keeps])


def orders(stages: IntArray) -> Iterator[Seats]:
    """The orders in which the pools that have stages may follow one another."""
    used = [int(pool) for pool in np.flatnonzero(stages)]
    for order in permutations(used):
        yield Seats(order, tuple(int(stages[pool]) for pool in order))


def may_run(site: Site, row: Candidates, stages: IntArray) -> BoolArray:
    """Whether a layout, a table of one row, keeps the trainer's rules with so many stages on each of its pools.

    Only those are asked that look at the number of stages: the layout keeps the others as one of two stages.

    Shapes: ``stages`` ``(pools, n)``; result ``(n,)``.
    """
    numbers = stages.sum(axis=0)
    every = unique(numbers)
    rows = replace(row.take(np.zeros(len(every), dtype=np.int64)), pp=every)
    tasks = (replace(t, uneven_chunks=True, chips=tuple(rows.ranks.tolist())) for t in site.tasks)
    keeps = np.stack(
        [
            np.all([r.keeps(task, rows) for r in task.trainer.rules if "pp" in r.needs], axis=0)
            for task in tasks
        ]
    )
    return np.asarray((keeps[:, np.searchsorted(every, numbers)] | (stages == 0)).all(axis=0))


def modes_of(trainer: Trainer, pins: Pins, own: int) -> list[int]:
    """Modes of recompute that the layers of a layout may have."""
    mixing = mixing_of(trainer.mixes_recompute, pins, own)
    if mixing == "alike":
        return [own]
    words = ("none", "full") if mixing == "count" else tuple(trainer.recompute)
    return [RECOMPUTE.index(word) for word in words if word in trainer.recompute]


def mixing_of(mixing: Mixing, pins: Pins, own: int) -> Mixing:
    """How the layers of a layout may differ in what they recompute."""
    if pins.fixed("recompute") is not None:
        return "alike"
    selective = own == RECOMPUTE.index("selective")
    return "alike" if mixing == "count" and selective else mixing
