"""Memory of a rank, by stage: states, activations in flight, what is alive at the worst moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.candidates import RECOMPUTE, SCHEDULES
from planner.cost.activations import held_at_least, held_at_once
from planner.cost.offload import IN_TRANSIT
from planner.cost.optimizers import table_moments
from planner.cost.partition import block_counts
from planner.cost.prices import Prices, ends_of, leaving, outer_stages
from planner.cost.states import WEIGHTS, staged
from planner.units import Array, Counts, IntArray

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
INTERLEAVED = SCHEDULES.index("interleaved")


@dataclass(frozen=True, slots=True, eq=False)
class StageMemory:
    """Bytes by kind; ``parts`` has shape ``(n, stages, kinds)`` with kinds as in ``TERMS``."""

    parts: Array
    in_flight: Array
    """Micro-batches whose activations a stage holds; ``(n, stages)``."""
    host: Array
    """Bytes of host memory for a rank of every stage; ``(n, stages)``."""

    @property
    def total(self) -> Array:
        """Bytes of a rank of every stage; ``(n, stages)``."""
        return np.asarray(self.parts.sum(axis=-1))


def stage_memory(p: Prices, blocks: Counts, stage: IntArray) -> StageMemory:
    """Memory of all stages of every candidate; arguments as in :func:`memory_parts`, stages in order."""
    flying = held_at_once(p, blocks, stage)
    return StageMemory(
        parts=np.stack(memory_parts(p, blocks, flying), axis=-1),
        in_flight=flying,
        host=host_bytes(p, blocks, flying),
    )


def host_bytes(p: Prices, blocks: Counts, flying: Array) -> Array:
    """Bytes of host memory for a rank of some stages; arguments and shape as in :func:`memory_parts`."""
    if not np.any(p.rows.offload):
        return np.zeros_like(flying)
    columns = _columns(blocks)
    states = _of(p, p.states.host, _parameters(p, columns))
    states = states + _frozen(p, columns, p.states.frozen_host)
    return np.asarray(states + _total(columns, leaving(p)) * flying)


def _frozen(p: Prices, columns: Array, each: Array) -> Array:
    """Bytes of weights that do not train, at ``each`` bytes for dense and expert ones; ``(n, stages)``."""
    if p.task.recipe.lora is None:
        return np.zeros(columns.shape[1:])
    each = p.each(each)[..., None]
    total = (_total(columns, held) * share for held, share in zip(p.frozen, each, strict=True))
    return sum(total, np.zeros(columns.shape[1:]))


def of_tables(p: Prices, blocks: Counts) -> Array:
    """Bytes by which optimizer states of embedding and head exceed those of other weights; ``(n, stages)``."""
    more = table_moments(p.task)
    if not more:
        return np.zeros(blocks.shape[:2])
    held = blocks[..., 0] * p.dense[:, None, 0] + blocks[..., -1] * p.dense[:, None, -1]
    return np.asarray(more * p.each(p.states.optimizer)[0, :, None] * held)


def memory_parts(p: Prices, blocks: Counts, flying: Array) -> tuple[Array, ...]:
    """Memory of some stages of every candidate, by kind as in ``TERMS``, at the worst moment of a step.

    States are always there. Beside them the activations in flight and either the logits, when the loss runs backwards,
    or what a layer needs that runs backwards; or, when all of these are gone, the temporaries of the optimizer.
    Allocator overhead is a share of what is not state.

    Args:
        p: the candidates.
        blocks: how many of each block stand on the stage, all chunks; ``(n, stages, blocks)``.
        flying: micro-batches whose activations each stage holds; ``(n, stages)``.

    Shapes: ``(n, stages)`` each.

    Units: bytes.
    """
    memory, columns = p.task.trainer.memory, _columns(blocks)
    parameters = _parameters(p, columns)
    copies = _of(p, p.states.gathered, parameters)
    alive = _alive(p, columns, flying, parameters)
    spare = (memory.fragmentation - 1.0) * (alive.most + copies)
    worst, none = alive.worst, np.zeros_like(copies)
    return (
        _of(p, p.states.weights, parameters) + copies + _frozen(p, columns, p.states.frozen),
        _of(p, p.states.gradients, parameters),
        _of(p, p.states.optimizer, parameters) + of_tables(p, blocks),
        np.choose(worst, (alive.activations + alive.head, alive.activations, none)),
        np.where(worst == 1, alive.working, none),
        np.where(worst == 0, alive.logits, none),
        np.choose(worst, (alive.tables, alive.layers, alive.temporary)) + alive.always + spare,
        np.full_like(copies, memory.runtime_bytes),
    )


def memory_total(p: Prices, blocks: Counts, flying: Array) -> Array:
    """The sum of :func:`memory_parts`, without telling them apart; ``(n, stages)``."""
    memory, columns = p.task.trainer.memory, _columns(blocks)
    parameters = _parameters(p, columns)
    most = _alive(p, columns, flying, parameters).most
    copies = _of(p, p.states.gathered, parameters) if p.states.gathered.any() else 0.0
    spare = (memory.fragmentation - 1.0) * (most + copies)
    return _states(p, columns, blocks, parameters) + most + spare


@dataclass(frozen=True, slots=True, eq=False)
class _Alive:
    """What is alive beside the states when the loss, a layer or the optimizer runs. Bytes, ``(n, stages)``."""

    activations: Array
    """Of all micro-batches in flight, when the loss or a layer runs."""
    head: Array
    """What the head keeps of one of them; gone when a layer runs."""
    logits: Array
    """When the loss runs, as are the gathered ``tables``."""
    tables: Array
    working: Array
    """When a layer runs backwards, as are the gathered ``layers``."""
    layers: Array
    temporary: Array
    """When the optimizer runs."""
    always: Array
    """What stands for gradients, and workspaces."""

    @property
    def _moments(self) -> tuple[Array, Array, Array]:
        loss, layer = self.head + self.logits + self.tables, self.working + self.layers
        return self.activations + loss, self.activations + layer, self.temporary

    @property
    def worst(self) -> IntArray:
        """Which moment needs most: 0 the loss, 1 a layer, 2 the optimizer."""
        return np.asarray(np.stack(self._moments).argmax(axis=0))

    @property
    def most(self) -> Array:
        """What it needs."""
        loss, layer, step = self._moments
        return np.maximum(np.maximum(loss, layer), step) + self.always


def _alive(p: Prices, columns: Array, flying: Array, parameters: tuple[Array, Array]) -> _Alive:
    rows, key, memory = p.rows, p.key, p.task.trainer.memory
    wide = (slice(None), None)
    saved = p.table.saved[rows.recompute, key]
    ends = ends_of(p.task)
    head = _total(columns[-ends:], saved[:, -ends:])
    each = _total(columns[:-ends], saved[:, :-ends])
    body = each * flying
    if np.any(rows.offload):
        share = p.task.cut.hosted
        passing = IN_TRANSIT * _most(columns, leaving(p)) / share
        stays = (1.0 - share) * body + np.minimum(passing, share * body)
        body = np.where(rows.in_host("activations")[wide], stays, body)
    at_loss = np.where(rows.schedule[wide] == 0, flying, 1.0)
    working = _most(columns, _at_work(p.table.working[rows.recompute, key], saved, ends))
    split = memory.logit_bytes + memory.logit_whole_bytes * rows.tp[wide]
    layers, tables = (size * p.task.recipe.weight_bytes for size in _gathered(p, columns))
    whole = _total(columns[:-ends], p.table.saved[RECOMPUTE.index("none"), key][:, :-ends])
    layers = np.maximum(layers, _left_gathered(p, parameters) - whole / rows.vpp[wide])
    temporary = _of(p, p.states.temporary, parameters)
    if memory.optimizer_bytes:
        at_once = np.where(rows.sharding == WEIGHTS, memory.step_params, np.inf)[wide]
        temporary = np.minimum(temporary, memory.optimizer_bytes * at_once)
    logits = split * p.table.logits[key][wide] + at_head(p)
    matrices = p.table.matrices[key]
    standing = _most(columns[:-1], matrices[:, :-1]) + columns[-1] * matrices[:, -1:]
    return _Alive(
        activations=body + head * (at_loss - 1.0),
        head=head,
        logits=columns[-1] * logits,
        tables=tables,
        working=working,
        layers=layers,
        temporary=temporary,
        always=memory.standing_bytes * standing + memory.workspace_bytes,
    )


def _at_work(working: Array, saved: Array, ends: int) -> Array:
    """What a block needs while it runs backwards; a module behind the layers has its own activations with it then."""
    own = np.zeros_like(working)
    own[:, -ends:-1] = saved[:, -ends:-1]
    return working + own


def at_head(p: Prices) -> Array:
    """Bytes of the gradient of the head's input, and of that input where tp ranks gather it; ``(n, 1)``."""
    split = p.rows.sp.astype(bool) & (p.rows.tp > 1)
    whole = p.table.stream[p.key] * np.where(split, 2.0 * p.rows.tp, 1.0)
    return np.asarray(whole[:, None])


def memory_bound(p: Prices) -> Array:
    """Bytes that the fullest of the first, second and last stage needs: at least one rank needs as much; ``(n,)``."""
    last = p.rows.pp[:, None] - 1
    stage = np.concatenate([np.zeros_like(last), np.minimum(1, last), last], axis=1)
    blocks = outer_stages(p)
    return np.asarray(memory_total(p, blocks, held_at_least(p, blocks, stage)).max(axis=1))


def states_bound(p: Prices) -> Array:
    """Bytes of what stays on the first stage whatever runs, and whatever a micro-batch is; ``(n,)``."""
    blocks = outer_stages(p)[:, :1]
    columns = _columns(blocks)
    return _states(p, columns, blocks, _parameters(p, columns))[:, 0]


def any_chunks_memory(p: Prices) -> Array:
    """Bytes that some rank needs at least, whatever number of chunks stages hold, if more than one; ``(n,)``.

    Proof: the fullest stage needs no less than the mean one. Interleaved, the last stage holds all its chunks but one
    for every stage, or for every micro-batch where these are fewer, and one more chunk; the others hold more.
    """
    rows, memory, ends = p.rows, p.task.trainer.memory, ends_of(p.task)
    blocks = block_counts(p.task.model) / rows.pp[:, None, None]
    columns = _columns(blocks)
    saved = _total(columns[:-ends], p.table.saved[rows.recompute, p.key][:, :-ends])[:, 0]
    flying = (np.minimum(rows.pp, p.micro_batches) + 1) / 2
    here = (rows.schedule == INTERLEAVED) & ~rows.in_host("activations")
    states = _states(p, columns, blocks, _parameters(p, columns))[:, 0]
    return np.asarray(states + memory.fragmentation * np.where(here, saved * flying, 0.0))


def _states(p: Prices, columns: Array, blocks: Counts, parameters: tuple[Array, Array]) -> Array:
    """What stays on a stage whatever runs; ``(n, stages)``."""
    states = p.states
    always = states.weights + states.gathered + states.gradients + states.optimizer
    total = _of(p, always, parameters) + _frozen(p, columns, states.frozen) + of_tables(p, blocks)
    return np.asarray(total + p.task.trainer.memory.runtime_bytes)


def host_bound(p: Prices) -> Array:
    """Bytes of host memory that the fullest of the first and the second stage needs; ``(n,)``."""
    if not np.any(p.rows.offload):
        return np.zeros(len(p.rows))
    stage = np.minimum(np.array([[0, 1]]), p.rows.pp[:, None] - 1)
    blocks = outer_stages(p)[:, :2]
    return np.asarray(host_bytes(p, blocks, held_at_least(p, blocks, stage)).max(axis=1))


def _columns(blocks: Counts) -> Array:
    """Counts with the blocks first; ``(blocks, n, stages)``."""
    return np.ascontiguousarray(np.moveaxis(blocks, -1, 0), dtype=np.float64)


def _parameters(p: Prices, columns: Array) -> tuple[Array, Array]:
    """Parameters of dense and of expert weights on a rank; ``(n, stages)`` each."""
    return _total(columns, p.dense), _total(columns, p.table.expert[p.key])


def _of(p: Prices, values: Array, parameters: tuple[Array, Array]) -> Array:
    """Bytes of parameters at so many each, by mesh; ``(n, stages)``."""
    each = p.each(values)[..., None]
    return np.asarray(each[0] * parameters[0] + each[1] * parameters[1])


def _total(columns: Array, values: Array) -> Array:
    """Sum over blocks: ``columns`` (blocks, n or 1, stages), ``values`` (n, blocks), result (n, stages)."""
    if columns.shape[1] == 1 < len(values):
        return np.asarray(values @ columns[:, 0])
    total = np.zeros(columns.shape[1:])
    for column, value in zip(columns, values.T, strict=True):
        total += column * value[:, None]
    return total


def _most(columns: Array, values: Array) -> Array:
    """Largest value of the blocks that are there; shapes as in :func:`_total`."""
    if columns.shape[1] == 1 < len(values):
        most = np.zeros((columns.shape[2], len(values)))
        for block, stage in np.argwhere(columns[:, 0] > 0):
            np.maximum(most[stage], values[:, block], out=most[stage])
        return most.T
    most = np.zeros(columns.shape[1:])
    for column, value in zip(columns, values.T, strict=True):
        np.maximum(most, value[:, None] * (column > 0), out=most)
    return most


def _left_gathered(p: Prices, parameters: tuple[Array, Array]) -> Array:
    """Bytes of weights that a backward pass leaves gathered on a stage, when one micro-batch's activations are gone."""
    left = (p.rows.sharding == WEIGHTS) & staged(p.task, p.rows)
    return np.where(left[:, None], p.task.recipe.weight_bytes * sum(parameters), 0.0)


def _gathered(p: Prices, columns: Array) -> tuple[Array, Array]:
    """Elements of weights gathered at once under sharded weights: of layers, and of the larger of embedding and head.

    A few layers, all where a stage has no more.
    """
    sharded = (p.rows.sharding == WEIGHTS)[:, None]
    if not np.any(sharded):
        return np.zeros(columns.shape[1:]), np.zeros(columns.shape[1:])
    sizes = p.dense + p.table.expert[p.key] + p.frozen.sum(axis=0)
    layers = p.task.trainer.memory.gathered_layers * _most(columns[1:-1], sizes[:, 1:-1])
    layers = np.minimum(layers, _total(columns[1:-1], sizes[:, 1:-1]))
    ends = np.maximum(_most(columns[:1], sizes[:, :1]), _most(columns[-1:], sizes[:, -1:]))
    return np.where(sharded, layers, 0.0), np.where(sharded, ends, 0.0)
