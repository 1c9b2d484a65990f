"""Layouts whose stages stand on pools of different chips, or reach over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.candidates import Candidates
from planner.cost.prices import Mix, Prices, prices
from planner.cost.sends import Sends, sends
from planner.cost.setting import axis_members
from planner.hardware.cluster import Level
from planner.hardware.pools import spanning
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import Array


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One question on pools of different chips."""

    tasks: tuple[Task, ...]
    """The question on each pool alone."""
    link: Level
    """The network between pools."""

    @property
    def num_chips(self) -> int:
        """Chips of all pools."""
        return sum(task.cluster.num_chips for task in self.tasks)


@dataclass(frozen=True, slots=True)
class Seats:
    """Which pools the stages stand on, from the first stage to the last: each pool's stages follow one another."""

    pools: tuple[int, ...]
    """Index of every pool that has stages."""
    stages: tuple[int, ...]
    """How many each of them has."""

    @property
    def of_stage(self) -> tuple[int, ...]:
        """The pool of every stage."""
        return tuple(
            pool for pool, count in zip(self.pools, self.stages, strict=True) for _ in range(count)
        )


def placed(site: Site, row: Candidates, seats: Seats, known: Sequence[Prices] = ()) -> Prices:
    """A layout with its stages on pools.

    Args:
        site: the question.
        row: the layout, a table of one row; its pipeline has as many stages as the seats.
        seats: where they stand, on two pools or more.
        known: the same layout priced on every pool, whatever number of stages it has there.
    """
    pp = sum(seats.stages)
    row = replace(row, pp=np.array([pp]))
    known = known or [prices(task, row) for task in site.tasks]
    parts = tuple(part.stated(row) for part in known)
    stands = np.zeros((len(parts), pp), dtype=bool)
    stands[seats.of_stage, np.arange(pp)] = True
    exposed, hidden = _boundaries(site, parts, seats)
    chips = tuple(int(count) for count in stands.sum(axis=1) * int(row.ranks[0]) // pp)
    first = parts[seats.pools[0]]
    ends = [linked(parts[seats.pools[end]], site.link) for end in (0, -1)]
    own = replace(
        first.sends,
        ends=np.maximum(*(end.ends for end in ends)),
        exchange=np.maximum(*(end.exchange for end in ends)),
    )
    return replace(first, sends=own, mix=Mix(parts, stands, exposed, hidden, chips))


def _boundaries(site: Site, parts: Sequence[Prices], seats: Seats) -> tuple[Array, Array]:
    """Exposed and hidden seconds of the send behind every stage: within a pool, or over the link to the next.

    That of the last stage leads back to the first, as between virtual stages.
    """
    found: list[tuple[Array, Array]] = []
    for pool, count in zip(seats.pools, seats.stages, strict=True):
        inside = _sends(site.tasks[pool], parts[pool], count)
        found.append((inside.boundaries(count)[0], inside.hidden_boundaries(count)[0]))
    around = pairwise((*seats.pools, seats.pools[0]))
    across = [_over(site, parts, pool, after) for pool, after in around]
    for (exposed, hidden), between in zip(found, across, strict=True):
        exposed[-1], hidden[-1] = between
    return tuple(np.concatenate(each) for each in zip(*found, strict=True))  # type: ignore[return-value]


def _over(site: Site, parts: Sequence[Prices], pool: int, after: int) -> tuple[float, float]:
    """Exposed and hidden seconds of a send from one pool to another, as the slower of both ends sees it."""
    ends = []
    for end in (pool, after):
        found = linked(parts[end], site.link)
        ends.append((float(found.exposed[-1, 0]), float(found.hidden[-1, 0])))
    return max(end[0] for end in ends), max(end[1] for end in ends)


def linked(part: Prices, link: Level) -> Sends:
    """What a rank of a layout's pool and one of another pool send to one another over the link between them."""
    cluster = part.task.cluster
    task = replace(part.task, cluster=replace(cluster, levels=(*cluster.levels, link)))
    rows = replace(part.rows, pp=np.full(len(part.rows), 2))
    apart = np.ones((len(task.cluster.levels), len(rows)), dtype=np.int64)
    apart[-1] = 2
    return sends(task, rows, part.table, part.key, {**axis_members(task, rows), "pp": apart})


def _sends(task: Task, part: Prices, stages: int) -> Sends:
    """What sends cost between so many stages of one pool."""
    row = replace(part.rows, pp=np.array([stages]))
    return sends(task, row, part.table, part.key, axis_members(task, row))


def spread(site: Site, row: Candidates) -> Prices:
    """A layout every stage of which has chips of all pools: replicas here and there, the slowest sets the pace."""
    tasks = spanning_tasks(site)
    parts = tuple(prices(task, row) for task in tasks)
    pp = int(row.pp[0])
    exposed = np.max([part.sends.boundaries(pp)[0] for part in parts], axis=0)
    hidden = np.max([part.sends.hidden_boundaries(pp)[0] for part in parts], axis=0)
    stands = np.ones((len(parts), pp), dtype=bool)
    chips = tuple(task.cluster.num_chips for task in site.tasks)
    return replace(parts[0], mix=Mix(parts, stands, exposed, hidden, chips))


def spanning_tasks(site: Site) -> tuple[Task, ...]:
    """The question as if all chips were like those of each pool in turn, with the link between pools."""
    return tuple(
        replace(task, cluster=spanning(task.cluster, site.num_chips, site.link))
        for task in site.tasks
    )


def rooms(site: Site, seats: Seats) -> Array:
    """Bytes that the median of each stage's memory may reach; ``(stages,)``."""
    return np.array([room(site.tasks[pool]) for pool in seats.of_stage])
