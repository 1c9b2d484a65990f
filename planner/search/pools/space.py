"""Layouts of one stage, and the numbers of stages that pools may have of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np

from planner.candidates import RECOMPUTE, SCHEDULES, Candidates, concatenate
from planner.search.pins import Pin, Pins
from planner.search.pools.place import Seats, Site
from planner.search.space import build_space
from planner.trainers.rules import allowed
from planner.trainers.trainer import Task
from planner.trainers.wording import divisors
from planner.units import IntArray

TWO = (
    Pin("pp=2", "pp", "=", 2),
    Pin("vpp=1", "vpp", "=", 1),
    Pin("schedule=1f1b", "schedule", "=", SCHEDULES.index("1f1b")),
)
"""A pipeline of two stages stands for all of them: rules that look at their number are asked again."""
SEATED = ("pp", "vpp", "schedule")
"""Columns that seats decide, or that are the same for all of them."""


def plain(pins: Pins) -> bool:
    """Whether pins allow what is searched on several pools: one chunk a stage, under 1F1B."""
    return all(
        pin.keeps(np.array(each.value)) for each in TWO[1:] for pin in pins.on((each.column,))
    )


def spans(task: Task) -> bool:
    """Whether a trainer can put stages on different pools: it has a pipeline whose stages may be uneven."""
    return "pp" in task.trainer.axes and task.trainer.uneven_stages


def stage_layouts(site: Site, pins: Pins) -> tuple[Candidates, int]:
    """Every way to divide one stage, under 1F1B and with stages outermost on the chips; and how many there are.

    Every stage has the same degrees, as trainers need it.
    """
    fixed = tuple(pin for pin in pins.pins if pin.column not in SEATED)
    pins = Pins((*fixed, *TWO), pins.copy_kv)
    task = max(site.tasks, key=lambda each: each.cluster.num_chips)
    tables, searched = [], 0
    for chips in stage_sizes(site):
        cluster = replace(task.cluster, num_chips=2 * chips)
        space = build_space(replace(task, cluster=cluster), pins)
        tables.append(_kept(space.candidates, task, pins))
        searched += space.searched
    return concatenate(tables), searched


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


def may_run(site: Site, row: Candidates, seats: Seats) -> bool:
    """Whether a layout keeps every rule of the trainer with so many stages, on each of its pools."""
    row = replace(row, pp=np.array([sum(seats.stages)]))
    used = int(row.ranks[0])
    tasks = (site.tasks[pool] for pool in seats.pools)
    return all(
        allowed(replace(task, cluster=replace(task.cluster, num_chips=used)), row)[0]
        for task in tasks
    )
