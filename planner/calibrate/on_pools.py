"""Runs on chips of several kinds, priced where their ranks stood: stage by stage, the slowest chips set the pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import Candidates
from planner.cost.prices import Mix, Prices, prices
from planner.hardware.cluster import Cluster
from planner.hardware.pools import slowest_link, spanning
from planner.trainers.trainer import Task
from planner.units import Array, BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A run's layout on its pools."""

    prices: Prices
    limits: Array
    """Bytes that a chip of each stage has, of the smallest chips there; ``(stages,)``."""


def placed(task: Task, row: Candidates, pools: Sequence[Cluster]) -> Placed:
    """Stages in the order of the ranks, pools in theirs: a stage may have chips of several.

    Args:
        task: the question, on whatever cluster.
        row: the layout, a table of one row whose stages are outermost on the chips.
        pools: clusters whose chips are numbered one after another.
    """
    pp, total = int(row.pp[0]), sum(pool.num_chips for pool in pools)
    each = total // pp
    stands = np.zeros((len(pools), pp), dtype=bool)
    ends = np.cumsum([pool.num_chips for pool in pools])
    for rank in range(total):
        stands[int(np.searchsorted(ends, rank, side="right")), rank // each] = True
    link = slowest_link(tuple(pools))
    own = [replace(task, cluster=replace(pool, num_chips=total)) for pool in pools]
    wide = [replace(task, cluster=spanning(pool, total, link)) for pool in pools]
    parts = tuple(prices(one, row) for one in (*own, *wide))
    several = stands.sum(axis=0) > 1
    whole = np.concatenate([stands & ~several, stands & several])
    exposed = _boundaries([part.sends.boundaries(pp)[0] for part in parts], stands)
    hidden = _boundaries([part.sends.hidden_boundaries(pp)[0] for part in parts], stands)
    chips = tuple(pool.num_chips for pool in pools) + (0,) * len(pools)
    first = parts[int(np.argmax(whole[:, 0]))]
    limits = np.where(stands, np.array([[pool.chip.memory_bytes] for pool in pools]), np.inf)
    return Placed(replace(first, mix=Mix(parts, whole, exposed, hidden, chips)), limits.min(axis=0))


def _boundaries(seconds: Sequence[Array], stands: BoolArray) -> Array:
    """Seconds behind every stage: of its own pool where the next stage has the same, else over the network between."""
    kinds = len(stands)
    after = np.roll(stands, -1, axis=1)
    both = stands | after
    crossing = both.sum(axis=0) > 1
    inside, across = np.stack(seconds[:kinds]), np.stack(seconds[kinds:])
    chosen = np.where(crossing, across, inside)
    return np.asarray(np.where(both, chosen, -np.inf).max(axis=0))
