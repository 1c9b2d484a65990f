"""Memory of a rank, by stage: states, activations in flight, what is alive at the worst moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.orders import in_flight
from planner.cost.prices import Prices, outer_stages
from planner.units import Array, BoolArray, IntArray

TERMS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "working",
    "logits",
    "buffers",
    "runtime",
)
"""Kinds of memory, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class StageMemory:
    """Bytes by kind; ``parts`` has shape ``(n, stages, kinds)`` with kinds as in ``TERMS``."""

    parts: Array
    in_flight: Array
    """Micro-batches whose activations a stage holds; ``(n, stages)``."""

    @property
    def total(self) -> Array:
        """Bytes of a rank of every stage; ``(n, stages)``."""
        return np.asarray(self.parts.sum(axis=-1))


def stage_memory(p: Prices, blocks: IntArray, stage: IntArray, *, last: BoolArray) -> StageMemory:
    """Memory of some stages of every candidate.

    The peak of a step is the larger of two moments: states with the activations in flight and the block that runs
    backwards, and states with the temporaries of the optimizer. Allocator overhead is a share of what is not state.

    Args:
        p: the candidates.
        blocks: how many of each block stand on the stage, all chunks; ``(n, stages, blocks)``.
        stage: index of each stage; ``(n, stages)``.
        last: whether the stage has the head; ``(n, stages)``.

    Shapes: ``(n, stages, …)``.

    Units: bytes.
    """
    recipe, memory = p.task.recipe, p.task.trainer.memory
    rows, key = p.rows, p.key
    wide = (slice(None), None)
    dense = np.einsum("nsb,nb->ns", blocks, p.table.dense[key])
    expert = np.einsum("nsb,nb->ns", blocks, p.table.expert[key])

    def states(each: Array) -> Array:
        return np.asarray(each[0][wide] * dense + each[1][wide] * expert)

    flying = in_flight_of(p, stage)
    saved = p.table.saved[rows.recompute, key][:, None, :] * blocks
    head = saved[..., -1] + (saved[..., -2] if p.task.model.mtp else 0.0)
    body = saved.sum(axis=-1) - head
    at_loss = np.where(rows.schedule[wide] == 0, flying, 1.0)
    activations = body * flying + head * at_loss
    present = blocks > 0
    working = np.max(
        np.where(present, p.table.working[rows.recompute, key][:, None, :], 0), axis=-1
    )
    working = working + memory.wgrad_bytes * np.max(
        np.where(present, p.table.largest[key][:, None, :], 0), axis=-1
    )
    logits = np.where(last, memory.logit_bytes * p.table.logits[key][wide], 0.0)
    gathered = states(p.states.gathered) + _gathered(p, present) * recipe.weight_bytes
    optimizer = states(p.states.temporary)
    moving = activations + working + logits + gathered
    spare = (memory.fragmentation - 1.0) * moving
    extra = np.maximum(optimizer - moving, 0.0)
    parts = np.stack(
        [
            states(p.states.weights),
            states(p.states.gradients),
            states(p.states.optimizer),
            activations,
            working,
            logits,
            gathered + spare + extra,
            np.full_like(dense, memory.runtime_bytes),
        ],
        axis=-1,
    )
    return StageMemory(parts=parts, in_flight=flying)


def in_flight_of(p: Prices, stage: IntArray) -> Array:
    """Micro-batches whose activations each stage holds at its peak; shape of ``stage``."""
    rows, m = p.rows, p.micro_batches
    wide = (slice(None), None)
    return in_flight(rows.schedule[wide], rows.pp[wide], m[wide], rows.vpp[wide], stage)


def memory_bound(p: Prices) -> Array:
    """Bytes that the fullest of the first, second and last stage needs: at least one rank needs as much; ``(n,)``."""
    blocks = outer_stages(p)
    pp = p.rows.pp[:, None]
    stage = np.minimum(np.array([[0, 1, 0]]), pp - 1)
    stage = np.where(np.array([[False, False, True]]), pp - 1, stage)
    found = stage_memory(p, blocks, stage, last=stage == pp - 1)
    return np.asarray(found.total.max(axis=1))


def _gathered(p: Prices, present: BoolArray) -> Array:
    """Elements of weights gathered at once under sharded weights: a few layers, or the largest single block."""
    sharded = (p.rows.sharding == 3)[:, None]
    if not np.any(sharded):
        return np.zeros(present.shape[:2])
    sizes = (p.table.dense + p.table.expert)[p.key][:, None, :]
    inner = np.where(present, sizes, 0.0)
    layers = p.task.trainer.memory.gathered_layers * inner[..., 1:-1].max(axis=-1)
    ends = np.maximum(inner[..., 0], inner[..., -1])
    return np.where(sharded, np.maximum(layers, ends), 0.0)
