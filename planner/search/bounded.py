"""What no candidate of a space can beat, in one pass of array operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.candidates import Candidates, distinct
from planner.cost.memory import host_bound, memory_bound, states_bound
from planner.cost.offload import host_room
from planner.cost.partition import block_counts
from planner.cost.prices import Prices, distinct_stages, prices, step_bound
from planner.cost.states import state_columns
from planner.cost.table import BlockTable, block_table
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import Array, BoolArray, IntArray, unique

SLICE = 1 << 15
"""Candidates bounded at a time; keeps the arrays of one pass in cache."""


MANY = 1 << 12
"""Candidates with the same stages that are bounded by themselves."""


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

    def take(self, index: IntArray) -> Bounded:
        """Those of some of the candidates."""
        return Bounded(self.step[index], self.fits[index], self.table, self.key[index])

    def joined(self, more: Bounded) -> Bounded:
        """With those of more candidates behind, whose table holds all that this one does."""
        columns = {
            n: np.concatenate([getattr(s, n) for s in (self, more)])
            for n in ("step", "fits", "key")
        }
        return Bounded(**columns, table=more.table)

    def priced(self, task: Task, candidates: Candidates, index: IntArray | slice) -> Prices:
        """Some of the candidates with their prices, blocks taken from the table."""
        return prices(task, candidates.take(index), (self.table, self.key[index]))

    def busy(self, task: Task, candidates: Candidates, index: IntArray) -> Array:
        """Seconds of the mean stage's work in a step of some candidates; costs little, and no step takes less."""
        return mean_work(task, candidates, self.table, self.key, index)

    def steps(self, task: Task, candidates: Candidates, index: IntArray) -> Array:
        """Lower bounds on the step of some of the candidates, whether they fit or not; seconds, shape of ``index``."""
        bounds = [step_bound(self.priced(task, candidates, part)) for part in slices(index)]
        return np.concatenate([np.empty(0), *bounds])

    def memory(self, task: Task, candidates: Candidates, index: IntArray) -> Array:
        """Least bytes on the fullest chip of some of the candidates; shape of ``index``."""
        bounds = [memory_bound(self.priced(task, candidates, part)) for part in slices(index)]
        return np.concatenate([np.empty(0), *bounds])


def bound_all(task: Task, candidates: Candidates) -> Bounded:
    """Whether the least memory of all candidates fits, and lower bounds on the step of those that do."""
    return bounds_of(task, candidates, *block_table(task, candidates))


def mean_work(
    task: Task, candidates: Candidates, table: BlockTable, key: IntArray, index: IntArray
) -> Array:
    """Seconds of the mean stage's work in a step of some candidates, from their blocks; shape of ``index``."""
    each = (table.total_forward + table.total_backward) @ block_counts(task.model)
    rows = (getattr(candidates, name)[index] for name in ("recompute", "dp", "micro_batch", "pp"))
    recompute, dp, micro_batch, pp = rows
    batches = task.recipe.global_batch // (dp * micro_batch)
    return np.asarray(each[recompute, key[index]] * batches / pp)


def bounds_of(task: Task, candidates: Candidates, table: BlockTable, key: IntArray) -> Bounded:
    """The same where the table of their blocks is known, with each candidate's row in it."""
    bounded = Bounded(
        step=np.full(len(candidates), np.inf),
        fits=np.zeros(len(candidates), dtype=bool),
        table=table,
        key=key,
    )
    for part in _alike(candidates, _open(task, candidates, bounded)):
        priced = bounded.priced(task, candidates, part)
        fit = fits(task, memory_bound(priced), host_bound(priced))
        bounded.fits[part] = fit
        bounded.step[part[fit]] = step_bound(priced.take(np.flatnonzero(fit)))
    return bounded


def _open(task: Task, candidates: Candidates, bounded: Bounded) -> IntArray:
    """Candidates whose states fit, which costs little: many candidates have the same, and most are ruled out."""
    names = ("vpp", "schedule", "sp", "operators", *state_columns(task))
    first, index = distinct([getattr(candidates, name) for name in names])
    closed = np.zeros(len(first), dtype=bool)
    for part in slices(np.arange(len(first))):
        closed[part] = states_bound(bounded.priced(task, candidates, first[part])) > room(task)
    return np.flatnonzero(~closed[index])


def _alike(rows: Candidates, index: IntArray) -> Iterator[IntArray]:
    """Some candidates in slices, those with the same stages by themselves where they are many, which is faster."""
    first, shape = distinct_stages(rows.take(index))
    many = np.bincount(shape, minlength=len(first)) >= MANY
    group = np.where(many, np.arange(len(first)), -1)[shape]
    for each in unique(group).tolist():
        yield from slices(index[group == each])


def slices(index: IntArray) -> Iterator[IntArray]:
    """An index in parts of so many candidates as are bounded at a time."""
    return (index[start : start + SLICE] for start in range(0, len(index), SLICE))


def fits(task: Task, memory: Array, host: Array) -> BoolArray:
    """Whether chips hold the upper quantile of their memory, and hosts what is moved to them; shapes broadcast."""
    return np.asarray((memory <= room(task)) & (host <= host_room(task)))
