"""Weights, gradients and optimizer states: their bytes, and the traffic and time that keep them in step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.candidates import RECOMPUTE, Candidates
from planner.cost.collectives import collective
from planner.cost.optimizers import orthogonal_seconds
from planner.cost.setting import axis_strides
from planner.graph.placement import AxisName, Kind
from planner.hardware.mesh import members
from planner.recipe import MOMENT_BYTES
from planner.trainers.trainer import Task
from planner.units import MIB, Array, BoolArray, IntArray

BUCKET = 128 * MIB
"""Bytes of one message of a gradient reduction or gather at least; its time a byte holds for all."""
NONE, OPTIMIZER, GRADIENTS, WEIGHTS = range(4)
COLUMNS = ("dp", "tp", "pp", "cp", "ep", "etp", "order", "sharding", "shard_group", "offload")
"""What the price of states depends on, whatever the trainer."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes a parameter of each kind of state."""

    weights: float
    gradients: float
    optimizer: float
    """Master copy and moments."""


def state_bytes(task: Task) -> StateBytes:
    """Bytes a parameter before sharding.

    Where low-precision weights exist only while gathered (``cast_weights``), what is stored is the fp32 copy; without
    fp32 weights gradients have the precision of the weights.
    """
    recipe, memory = task.recipe, task.trainer.memory
    low = recipe.precision != "fp32"
    cast = memory.cast_weights and low
    gradients = memory.gradient_bytes if low else 4.0
    if cast and not recipe.master_weights:
        gradients = min(gradients, recipe.weight_bytes)
    master = memory.master_bytes if low and recipe.master_weights else 0.0
    return StateBytes(
        weights=0.0 if cast and recipe.master_weights else recipe.weight_bytes,
        gradients=gradients,
        optimizer=master + MOMENT_BYTES[recipe.optimizer],
    )


@dataclass(frozen=True, slots=True, eq=False)
class StateCost:
    """Per parameter held by a rank, for dense (row 0) and expert (row 1) weights; arrays ``(2, n)``."""

    weights: Array
    """Bytes kept for a parameter."""
    gradients: Array
    optimizer: Array
    gathered: Array
    """Bytes of low-precision weights that stay gathered from forward to backward (no resharding between)."""
    once: Array
    """Seconds of communication once a step for every parameter."""
    each_forward: Array
    """Seconds of weight gathering for every parameter of a block, each micro-batch, forwards."""
    each_backward: Array
    """Seconds of gathering and reducing for every parameter of a block, each micro-batch, backwards."""
    update: Array
    """Seconds of the optimizer for every parameter."""
    temporary: Array
    """Bytes of temporaries for every parameter when activations are gone: of the optimizer, and what gradients take
    more before they are sharded, where they are reduced once a step."""
    host: Array
    """Bytes of host memory for every parameter."""
    frozen: Array
    """Bytes kept for a parameter that does not train."""
    frozen_host: Array
    """Bytes of host memory for it."""
    frozen_gather: Array
    """Seconds of gathering for it, each micro-batch, forwards and again backwards."""


def state_columns(task: Task) -> tuple[str, ...]:
    """What the price of states depends on, which few distinct combinations of many candidates have.

    Micro-batches count where gradients have no buffer of their own.
    """
    return COLUMNS + (() if task.trainer.memory.gradient_buffer else ("micro_batch",))


def state_cost(task: Task, rows: Candidates, where: Mapping[AxisName, IntArray]) -> StateCost:
    """Bytes and seconds for every parameter, by sharding level and group.

    Args:
        task: the question.
        rows: the candidates.
        where: members of every axis at each level (:func:`planner.cost.setting.axis_members`).
    """
    kinds = state_bytes(task)
    level = rows.sharding
    ranks = shard_ranks(rows)

    def shared(bytes_each: float, from_level: int) -> Array:
        return bytes_each / np.where(level >= from_level, ranks, 1.0)

    chip = task.cluster.chip
    optimizer = shared(kinds.optimizer, OPTIMIZER)
    stepped = 1.0 / np.where(level >= OPTIMIZER, ranks, 1.0)
    moved = kinds.gradients + 2.0 * kinds.optimizer + task.recipe.weight_bytes
    once, forward, backward, gather = _traffic(task, rows, where, kinds)
    cast = task.trainer.memory.cast_weights and task.recipe.precision != "fp32"
    stays = cast & (level < WEIGHTS)
    whole = level < (GRADIENTS if task.trainer.memory.gradient_buffer else OPTIMIZER)
    whole = whole | ((level < GRADIENTS) & _accumulates(task, rows))
    waits = summed_whole(task, rows)
    whole = whole | staged(task, rows) | waits
    waiting = (level == GRADIENTS) & ~np.asarray(task.trainer.reduces_each)
    return StateCost(
        weights=shared(kinds.weights, WEIGHTS),
        gradients=np.where(waits, task.trainer.memory.gradient_bytes, kinds.gradients)
        / np.where(whole, 1.0, ranks),
        optimizer=optimizer,
        gathered=np.where(stays, task.recipe.weight_bytes, 0.0) * np.ones_like(ranks),
        once=once,
        each_forward=forward,
        each_backward=backward,
        update=moved * stepped / (chip.memory_bandwidth * chip.memory_efficiency)
        + orthogonal_seconds(task) * stepped,
        temporary=temporary_bytes(task) * stepped
        + np.where(waiting, kinds.gradients * (1.0 - 1.0 / ranks), 0.0),
        host=np.zeros_like(ranks),
        frozen=shared(task.recipe.frozen_bytes, WEIGHTS),
        frozen_host=np.zeros_like(ranks),
        frozen_gather=np.where(level == WEIGHTS, task.recipe.frozen_bytes * gather, 0.0),
    )


def temporary_bytes(task: Task) -> float:
    """Temporaries for a parameter that the optimizer steps on; none in 8 bits, where one kernel updates in place.

    Source: bitsandbytes' block-wise optimizers (arXiv 2110.02861, section 2).
    """
    return 0.0 if task.recipe.optimizer == "adamw-8bit" else task.trainer.memory.optimizer_bytes


def shard_ranks(rows: Candidates) -> Array:
    """Ranks over which states are sharded: of dense and of expert weights; ``(2, n)``."""
    return np.stack([rows.shard_group, shard_ranks_expert(rows)]).astype(np.float64)


def regathered(task: Task, rows: Candidates) -> BoolArray:
    """Whether sharded weights are gathered once more, for what runs again."""
    full = rows.recompute == RECOMPUTE.index("full")
    return np.asarray(task.trainer.regathers & (rows.sharding == WEIGHTS) & full)


def _accumulates(task: Task, rows: Candidates) -> BoolArray:
    """Whether the gradients of several micro-batches are added up before they are reduced."""
    return (rows.num_micro_batches(task.recipe.global_batch) > 1) | (rows.pp > 1)


def summed_whole(task: Task, rows: Candidates) -> BoolArray:
    """Whether data ranks add up whole gradients and reduce them once a step, weights being gathered each time."""
    waits = task.trainer.memory.accumulates_whole & (rows.sharding >= GRADIENTS)
    return np.asarray(waits & _accumulates(task, rows) & (rows.shard_group > 1))


def staged(task: Task, rows: Candidates) -> BoolArray:
    """Whether stages add up whole gradients and reduce them once a step."""
    return np.asarray(task.trainer.memory.stages_accumulate) & (rows.pp > 1)


def shard_ranks_expert(rows: Candidates) -> IntArray:
    """Ranks over which an expert's states are sharded: its replicas, or the part that the shard group covers."""
    parts = rows.dp * rows.cp // rows.shard_group
    return np.maximum(rows.edp // parts, 1)


def _traffic(
    task: Task, rows: Candidates, where: Mapping[AxisName, IntArray], kinds: StateBytes
) -> tuple[Array, Array, Array, Array]:
    """Seconds for every parameter: once a step, each micro-batch forwards and backwards; of gathering one byte.

    No sharding: one all-reduce. Sharded states: a reduce-scatter of gradients and an all-gather of weights, once a
    step. Sharded gradients: the reduce-scatter each micro-batch. Sharded weights: gathered forwards and backwards; on
    stages that add up gradients what a backward pass gathered stays until the next forward pass has used it, so that
    m micro-batches gather m + 1 times in whatever order, and the reduce-scatter comes once, as does the gather of what
    is kept between passes. A shard group smaller than the data ranks adds an all-reduce of the shard over its copies. A
    trainer that reduces whole gradients takes an all-reduce in the place of the reduce-scatter that optimizer sharding
    needs.

    Source: torch 2.13 PipelineStage.backward_maybe_with_nosync (reshard_after_backward and gradient sync off until the
        last micro-batch); counted on gloo ranks under 1F1B, GPipe and interleaved 1F1B.
    """
    trainer = task.trainer
    weight, grad = task.recipe.weight_bytes, kinds.gradients
    shard, copies = _members(task, rows, where)
    ranks = shard_ranks(rows)
    seconds = {
        kind: np.stack([_per_byte(task, kind, group) for group in shard])
        for kind in ("all-gather", "reduce-scatter", "all-reduce")
    }
    between = np.stack([_per_byte(task, "all-reduce", group) for group in copies])
    gather, scatter = weight * seconds["all-gather"], grad * seconds["reduce-scatter"]
    reduced = trainer.reduced_bytes or grad
    reduce_all = reduced * (seconds["all-reduce"] + between)
    whole = reduced * seconds["all-reduce" if trainer.reduces_whole else "reduce-scatter"]
    across = grad * between / ranks
    level, adds_up = rows.sharding, staged(task, rows)
    per_use = level == WEIGHTS
    if trainer.memory.cast_weights:
        per_use = per_use | ((level == GRADIENTS) & ~adds_up)
    zero = np.zeros_like(gather)
    sharded_once = np.where(per_use & ~adds_up, across, gather + across)
    once = np.where(
        level == NONE,
        reduce_all,
        np.where(level >= GRADIENTS, sharded_once, whole + gather + across),
    )
    each = (level >= GRADIENTS) & (trainer.reduces_each | (level == WEIGHTS)) & ~adds_up
    each = each & ~summed_whole(task, rows)
    once = once + np.where((level >= GRADIENTS) & ~each, scatter, zero)
    forward = np.where(per_use, gather, zero)
    again = (level == WEIGHTS) & ~adds_up
    backward = np.where(each, scatter, zero) + np.where(again, gather, zero)
    return once, forward, backward, seconds["all-gather"]


def _per_byte(task: Task, kind: Kind, where: IntArray) -> Array:
    """Seconds a byte in messages of the trainer's size, which may grow with the ranks."""
    ranks = np.prod(where, axis=0)
    size = np.maximum(BUCKET, task.trainer.bucket_per_rank * ranks)
    return np.asarray(collective(kind, size, where, task.cluster) / size)


def _members(
    task: Task, rows: Candidates, found: Mapping[AxisName, IntArray]
) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    """Members of the shard groups (dense, expert) and of the groups of their copies.

    Where the shard group is all data ranks it is dp and cp together, level by level; a smaller one is their inner part.
    """
    whole = found["dp"] * found["cp"]
    data = rows.dp * rows.cp
    if bool(np.all(rows.shard_group == data)):
        return (whole, found["edp"]), (np.ones_like(whole), np.ones_like(whole))
    groups, strides = task.cluster.groups, axis_strides(task, rows)
    inner, outer = _parts(rows, strides, groups)
    expert, stride = shard_ranks_expert(rows), strides["edp"]
    inner_expert = members(expert, stride, groups)
    outer_expert = members(rows.edp // expert, stride * expert, groups)
    same = rows.shard_group == data
    return (
        (np.where(same, whole, inner), np.where(same, found["edp"], inner_expert)),
        (
            np.where(same, np.ones_like(whole), outer),
            np.where(same, np.ones_like(whole), outer_expert),
        ),
    )


def _parts(
    rows: Candidates, strides: Mapping[AxisName, IntArray], groups: Sequence[int]
) -> tuple[IntArray, IntArray]:
    """Members of a shard group and of its copies: cp inside dp, next to one another or with stages between them."""
    group, cp, dp = rows.shard_group, strides["cp"], strides["dp"]
    inner = members(group, cp, groups)
    outer = members(rows.dp * rows.cp // group, cp * group, groups)
    of_cp = np.gcd(group, rows.cp)
    of_dp = group // of_cp
    apart = members(of_cp, cp, groups) * members(of_dp, dp, groups)
    others = members(rows.cp // of_cp, cp * of_cp, groups)
    others = others * members(rows.dp // of_dp, dp * of_dp, groups)
    joined = dp == cp * rows.cp
    return np.where(joined, inner, apart), np.where(joined, outer, others)
