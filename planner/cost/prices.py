"""Many candidates priced at once: what their blocks cost, and proven lower bounds on step and memory.

Bounds are for stages as even as they can be: an exact price (:mod:`planner.cost.step`) is never below one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import Candidates, distinct
from planner.cost.bounds import lower_bound
from planner.cost.cut import Cut, cut_blocks, narrowed, widened
from planner.cost.kernels import stream_seconds
from planner.cost.offload import activation_copies, offloaded
from planner.cost.partition import block_counts, even_cut, stages_of
from planner.cost.sends import Sends, sends
from planner.cost.setting import axis_members, axis_strides
from planner.cost.shared_ends import with_shared_ends
from planner.cost.states import StateCost, regathered, state_columns, state_cost
from planner.cost.table import BlockTable, block_table
from planner.hardware.chip import Chip
from planner.hardware.pools import blended
from planner.trainers.trainer import Task
from planner.units import Array, BoolArray, Counts, IntArray, unique


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """A task's candidates with everything that their price is made of."""

    task: Task
    rows: Candidates
    table: BlockTable
    key: IntArray
    """For every candidate its row of the table."""
    states: StateCost
    """Of the distinct meshes among them."""
    mesh: IntArray
    """For every candidate its column of ``states``."""
    sends: Sends
    micro_batches: IntArray
    cut: Cut | None = None
    """How the layers of candidates of one shape are divided, with a widened table; None for the even cut."""
    mix: Mix | None = None
    """Where the stages of a single candidate stand on pools of different chips; None on chips of one kind."""

    def at(self, stage: int) -> Prices:
        """The prices of a stage's own chips; of those with least memory, should it stand on several pools."""
        if self.mix is None:
            return self
        return min(self.mix.at(stage), key=lambda part: part.task.memory_limit)

    @property
    def chip(self) -> Chip:
        """The chip, or the average of those that train."""
        if self.mix is None:
            return self.task.cluster.chip
        kinds = (part.task.cluster.chip for part in self.mix.parts)
        return blended(list(zip(kinds, self.mix.chips, strict=True)))

    @property
    def dense(self) -> Array:
        """Elements of weights on a rank that train, without experts, a shared table once a stage; ``(n, blocks)``."""
        return self._once(self.table.dense, 0)

    @property
    def frozen(self) -> Array:
        """The same of weights that do not train, and of those of experts; ``(2, n, blocks)``."""
        return np.stack([self._once(self.table.frozen[0], 1), self.table.frozen[1, self.key]])

    def _once(self, held: Array, kind: int) -> Array:
        tied, both = self.table.tied[kind], (self.rows.pp == 1) | self.rows.folded
        return held[self.key] - tied[self.key] * both[:, None] if tied.any() else held[self.key]

    def delays(self, pp: int) -> Array:
        """Exposed seconds of the boundary behind every stage, as :meth:`planner.cost.sends.Sends.boundaries`."""
        return self.sends.boundaries(pp) if self.mix is None else self.mix.send[None]

    def without_sends(self) -> Prices:
        """The same where no send delays anybody."""
        mix = self.mix and replace(self.mix, send=0.0 * self.mix.send)
        return replace(self, sends=self.sends.free(), mix=mix)

    def stated(self, rows: Candidates) -> Prices:
        """The same for other rows that differ in nothing that the table depends on."""
        mix = self.mix and replace(self.mix, parts=tuple(p.stated(rows) for p in self.mix.parts))
        return replace(self, rows=rows, mix=mix)

    def each(self, values: Array) -> Array:
        """Values of the meshes in ``states``, for every candidate; ``(2, n)``."""
        return values.take(self.mesh, axis=1)

    def take(self, index: IntArray) -> Prices:
        """The same for some of the candidates; the tables stay whole."""
        return Prices(
            task=self.task,
            rows=self.rows.take(index),
            table=self.table,
            key=self.key[index],
            states=self.states,
            mesh=self.mesh[index],
            sends=self.sends.take(index),
            micro_batches=self.micro_batches[index],
            cut=self.cut,
            mix=self.mix,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """The stages of a single candidate on pools of different chips."""

    parts: tuple[Prices, ...]
    """The candidate priced on each pool as if all its stages stood there."""
    stands: BoolArray
    """Which stage has chips of which pool: of one, unless its ranks reach over several; ``(pools, stages)``."""
    send: Array
    """Exposed seconds of the boundary behind every stage; ``(stages,)``."""
    hidden: Array
    """The same of what runs behind compute."""
    chips: tuple[int, ...]
    """Chips of each pool that train."""

    def at(self, stage: int) -> tuple[Prices, ...]:
        """The prices of the pools that a stage stands on."""
        here = self.stands[:, stage]
        return tuple(part for part, stands in zip(self.parts, here, strict=True) if stands)

    def slowest(self, values: Sequence[Array]) -> Array:
        """Of values on every pool, ``(n, stages, ...)`` each, the largest among the pools of each stage.

        A stage's ranks wait for one another, in tensor parallelism within an operator and in data parallelism at the
        end of the step, when all replicas have the same number of micro-batches.
        """
        whole = np.stack(values)
        here = self.stands.reshape(len(values), 1, -1, *[1] * (whole.ndim - 3))
        return np.asarray(np.where(here, whole, -np.inf).max(axis=0))


def prices(
    task: Task, rows: Candidates, blocks: tuple[BlockTable, IntArray] | None = None
) -> Prices:
    """Price blocks, states and sends for all candidates.

    Args:
        task: the question.
        rows: the candidates.
        blocks: a table that holds their blocks already, with each candidate's row in it.
    """
    table, key = blocks or block_table(task, rows)
    if task.cut.shared_ends:
        table, key = with_shared_ends(task, rows, table, key)
    first, index = distinct([getattr(rows, name) for name in state_columns(task)])
    meshes = rows.take(first)
    where = axis_members(task, meshes)
    lies = {axis: where[axis].take(index, axis=1) for axis in ("pp", "tp")}
    return Prices(
        task=task,
        rows=rows,
        table=table,
        key=key,
        states=offloaded(task, meshes, state_cost(task, meshes, where)),
        mesh=index,
        sends=sends(task, rows, table, key, lies, axis_strides(task, meshes)["pp"][index]),
        micro_batches=rows.num_micro_batches(task.recipe.global_batch),
    )


def block_seconds(p: Prices) -> tuple[Array, Array]:
    """Seconds of every block forwards and backwards for one micro-batch, everything exposed included.

    Weight gathering and gradient scattering of sharded states hide behind the block's own compute: exposed is a share
    of them, or what exceeds the compute if that is more.

    Shapes: ``(n, blocks)`` each.
    """
    forward = p.table.total_forward[p.key]
    backward = p.table.total_backward[p.rows.recompute, p.key]
    more_forward, more_backward = np.zeros(1), np.zeros(1)
    if np.any(p.rows.offload):
        more_forward, more_backward, _ = copies(p)
    if p.task.trainer.overhead.accumulation:
        more_backward = more_backward + accumulation_seconds(p)
    if np.any(p.states.each_forward) or np.any(p.states.each_backward):
        gather, scatter = state_seconds(p)
        share = p.task.trainer.overlap.weights
        more_forward = more_forward + np.maximum(share * gather, gather - forward)
        more_backward = more_backward + np.maximum(share * scatter, scatter - backward)
    return forward + more_forward, backward + more_backward


def accumulation_seconds(p: Prices) -> Array:
    """Seconds of adding every block's gradients to those of earlier micro-batches; ``(n, blocks)``."""
    held = p.table.dense[p.key] + p.table.expert[p.key]
    passed = stream_seconds(p.task.cluster.chip, p.task.trainer.overhead.accumulation * held)
    return np.where(p.micro_batches[:, None] > 1, passed, 0.0)


def copies(p: Prices) -> tuple[Array, Array, Array]:
    """Copies of activations to host memory and back, as :func:`planner.cost.offload.activation_copies` says."""
    forward = p.table.total_forward[p.key]
    backward = p.table.total_backward[p.rows.recompute, p.key]
    return activation_copies(p.task, leaving(p), forward, backward)


def leaving(p: Prices) -> Array:
    """Bytes of one micro-batch's activations that every block sends to host memory; ``(n, blocks)``.

    What the head and the modules before it keep stays: it is wanted again at once. Where only some layers' activations
    leave the chip, every block counts for its share of them.
    """
    away = p.task.cut.hosted * p.rows.in_host("activations")[:, None]
    saved = away * p.table.saved[p.rows.recompute, p.key]
    saved[:, -ends_of(p.task) :] = 0.0
    return saved


def ends_of(task: Task) -> int:
    """How many of the last distinct blocks hold what is wanted again at once: the head, and modules before it."""
    return 2 if task.model.mtp else 1


def weight_seconds(p: Prices) -> Array:
    """The part of the backward seconds of every block in which gradients of weights are made; ``(n, blocks)``."""
    return p.table.weight[p.key]


def after_seconds(p: Prices, blocks: Counts, room: Array) -> Array:
    """Exposed seconds of gradients, and of the optimizer, once a step on stages of a single candidate.

    Args:
        p: the candidate.
        blocks: how many of each block stand on a stage; ``(..., blocks)``.
        room: seconds of one micro-batch on it, behind which gradients hide; ``(...)``.
    """
    dense, expert = (blocks @ part[0] for part in (p.dense, p.table.expert[p.key]))
    once, update = (
        each[0, 0] * dense + each[1, 0] * expert
        for each in (p.each(p.states.once), p.each(p.states.update))
    )
    share = p.task.trainer.overlap.gradients
    return np.asarray(np.maximum(share * once, once - room) + update)


def state_seconds(p: Prices) -> tuple[Array, Array]:
    """Seconds of state traffic of every block each micro-batch, forwards and backwards; ``(n, blocks)``."""
    dense, expert = p.dense, p.table.expert[p.key]
    each_f, each_b, gather = (
        p.each(values)[..., None]
        for values in (p.states.each_forward, p.states.each_backward, p.states.frozen_gather)
    )
    each_b = each_b + each_f * regathered(p.task, p.rows)[:, None]
    frozen = (gather * p.frozen).sum(axis=0)
    return (
        each_f[0] * dense + each_f[1] * expert + frozen,
        each_b[0] * dense + each_b[1] * expert + frozen,
    )


def step_bound(p: Prices) -> Array:
    """A lower bound on the step with stages as even as they can be. Seconds, ``(n,)``.

    The makespan is no less than that of any division into stages, nor than the work of the busiest stage.
    """
    forward, backward = block_seconds(p)
    busiest = p.micro_batches * busiest_stage(p, forward + backward)
    return _step_bound(p, forward, backward, busiest)


def any_step_bound(p: Prices) -> Array:
    """A lower bound on the step that holds for any division into stages. Seconds, ``(n,)``."""
    return _step_bound(p, *block_seconds(p), np.zeros(1))


def _step_bound(p: Prices, forward: Array, backward: Array, least: Array) -> Array:
    """A lower bound on the step where the makespan takes no less than some seconds.

    Nor is it less than :func:`planner.cost.bounds.lower_bound`, which holds for any division into stages. Gradient
    reduction, its hiding behind one micro-batch and the optimizer are convex in a stage's parameters and time, so that
    the worst stage is no better than the mean one (Jensen).
    """
    task = p.task
    counts = block_counts(task.model)
    total_forward, total_backward = forward @ counts, backward @ counts
    stages = p.rows.pp
    makespan = lower_bound(
        p.rows.schedule,
        stages,
        p.micro_batches,
        p.rows.vpp,
        total_forward,
        total_backward,
        p.sends.least,
    )
    makespan = np.maximum(makespan, least)
    once, update = mean_states(p)
    share = task.trainer.overlap.gradients
    room = (total_forward + total_backward) / stages
    exposed = np.maximum(share * once, once - room)
    overhead = task.trainer.overhead
    return np.asarray(makespan * jitter(p) + exposed + update + p.sends.ends + overhead.step)


def mean_states(p: Prices) -> tuple[Array, Array]:
    """Seconds of gradient reduction and of the optimizer once a step, of the mean stage; ``(n,)`` each."""
    counts = block_counts(p.task.model)
    dense, expert = (part @ counts / p.rows.pp for part in (p.dense, p.table.expert[p.key]))
    once, update = (
        each[0] * dense + each[1] * expert
        for each in (p.each(p.states.once), p.each(p.states.update))
    )
    return once, update


def jitter(p: Prices) -> Array:
    """By how much a pipeline is slower than its parts; ``(n,)``."""
    return np.where(p.rows.pp > 1, 1.0 + p.task.trainer.overhead.jitter, 1.0)


def busiest_stage(p: Prices, seconds: Array) -> Array:
    """What the busiest stage of every candidate takes for one micro-batch under the even cut.

    Args:
        p: the candidates.
        seconds: of every block; ``(n, blocks)``.

    Shapes: ``(n,)``.
    """
    first, index = distinct_stages(p.rows)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(first) + 1))
    busiest = np.full(len(index), -np.inf)
    for pair in range(len(first)):
        mine = order[starts[pair] : starts[pair + 1]]
        own = seconds if len(first) == 1 else seconds[mine]
        for held in unique(cut_of(p.take(mine[:1])).sum(axis=1)):
            busiest[mine] = np.maximum(busiest[mine], own @ held)
    return busiest


def distinct_stages(rows: Candidates) -> tuple[IntArray, IntArray]:
    """Candidates with the same stages and chunks, as :func:`planner.candidates.distinct`."""
    return distinct([rows.pp, rows.vpp, rows.folded.astype(np.int64)])


def outer_stages(p: Prices) -> IntArray:
    """Blocks of the first, the second and the last stage of every candidate under the even cut.

    Shapes: ``(n, 3, blocks)``; ``(1, 3, blocks)`` where all candidates have as many stages and chunks.
    """
    first, index = distinct_stages(p.rows)
    held = [cut_of(p.take(np.array([row]))).sum(axis=1) for row in first]
    chosen = np.stack([each[[0, min(1, len(each) - 1), -1]] for each in held])
    return chosen if len(chosen) == 1 else chosen[index]


def cut_of(p: Prices) -> Counts:
    """How many of each block stand in every chunk of every stage of the first candidate.

    The even cut, unless it has its own or the task states another; ends that all stages share count in fractions.

    Shapes: ``(stages, chunks, blocks)``.
    """
    pp, vpp, folded = int(p.rows.pp[0]), int(p.rows.vpp[0]), bool(p.rows.folded[0])
    if p.cut is not None:
        return cut_blocks(p.task.model, p.cut, pp, folded=folded)
    blocks = stages_of(p.task.model, pp, vpp, folded=folded, last=p.task.cut.last)
    if not p.task.cut.shared_ends:
        return blocks
    shared = blocks.astype(np.float64)
    shared[..., [0, -1]] = 1.0 / (pp * vpp)
    return shared


def with_cut(p: Prices, cut: Cut) -> Prices:
    """Candidates of one shape with another division of their layers than the even one."""
    kinds = len(p.task.model.blocks)
    table = p.table if p.cut is not None else widened(p.table, kinds, cut)
    mix = p.mix and replace(p.mix, parts=tuple(with_cut(part, cut) for part in p.mix.parts))
    return replace(p, table=table, cut=cut, mix=mix)


def as_stated(p: Prices) -> Prices:
    """Candidates of one shape, cut evenly, with as many layers of every chunk run again as the task states."""
    if p.task.cut.whole is None or p.cut is not None:
        return p
    chunks = int(p.rows.pp[0]), int(p.rows.vpp[0])
    layers = even_cut(p.task.model.num_layers, *chunks, p.task.cut.last)
    return with_cut(p, Cut(layers, np.minimum(layers, p.task.cut.whole), np.zeros_like(layers)))


def without_cut(p: Prices) -> Prices:
    """The same candidate with the even cut: its layers under their own mode, where they differ under ``none``."""
    if p.cut is None:
        return p
    return replace(p, table=narrowed(p.table, len(p.task.model.blocks), p.cut), cut=None)
