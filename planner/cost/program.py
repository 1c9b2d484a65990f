"""Exact simulation of a schedule: operations start once their stage is free and their input has arrived."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from planner.cost.folded import folded_order
from planner.cost.orders import BACKWARD, FORWARD, INPUT, WEIGHT, Orders, Schedule, order
from planner.units import Array, IntArray, Number


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A schedule made ready for simulation: operations numbered so that each follows all that it waits for."""

    orders: Orders
    """What each stage executes."""
    chunks: int
    """Chunks a stage."""
    microbatches: int
    """Micro-batches of a step."""
    number: IntArray
    """Number of each operation in the order tables; shape (stages, operations a stage)."""
    levels: tuple[int, ...]
    """Bounds of the levels: operations numbered from one bound to the next do not wait for one another."""
    task: IntArray
    """Row of the durations, ordered (kind, stage, chunk), of each operation."""
    hop: IntArray
    """Boundary that each operation's input crosses, numbered by the earlier stage; ``stages`` where none."""
    after_own: IntArray
    """1 + number of the operation that precedes on the same stage; 0 where none."""
    after_data: IntArray
    """1 + number of the operation that produces the input; 0 where none."""


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """Result of a simulation."""

    makespan: Array
    """Seconds from the first forward to the last backward; shape (...)."""
    idle: Array
    """Seconds of the makespan in which a stage does not compute; shape (..., stages)."""
    span: Array
    """Seconds from a stage's first start to its last end, of the stage where that is most; shape (...). Steps follow
    one another at this distance where no stage waits for the others between two steps."""
    program: Program
    ends: Array
    """Seconds at which each operation ends, by number; shape (operations, ...)."""
    costs: Array
    """Seconds that it takes; same shape."""

    @property
    def starts(self) -> Array:
        """Seconds at which each operation starts, at the places of the order table.

        Shape: (..., stages, operations).
        """
        return self.between(0, self.program.number.shape[1])

    def between(self, first: int, end: int) -> Array:
        """The same of some columns of the order table."""
        number = self.program.number[:, first:end]
        return np.moveaxis(self.ends[number] - self.costs[number], (0, 1), (-2, -1))


@lru_cache(maxsize=64)
def compile_schedule(
    schedule: Schedule, p: int, m: int, v: int = 1, group: int | None = None
) -> Program:
    """The program of a schedule whose order does not depend on times.

    Args:
        schedule: see :func:`planner.cost.orders.order`.
        p: stages.
        m: micro-batches.
        v: chunks a stage.
        group: micro-batches that go through a chunk before the next, p unless said otherwise.

    Raises:
        ValueError: the schedule does not exist for these numbers, or its order deadlocks.
    """
    if schedule.folded:
        return compile_orders(folded_order(schedule, p, m, v))
    return compile_orders(order(schedule, p, m, v, group))


def compile_orders(orders: Orders) -> Program:
    """Numbers the operations of order tables by dependency level, by executing them in steps of equal length.

    Raises:
        ValueError: the order deadlocks.
    """
    p, v = orders.depth.shape
    producer, hop = _data_edges(orders)
    size = orders.kind.size
    waves = _waves(producer.reshape(p, -1))
    ranked = np.concatenate(waves)
    number = np.empty(size + 1, np.int64)
    number[ranked] = np.arange(size)
    number[size] = -1
    own = np.arange(size).reshape(p, -1) - 1
    own[:, 0] = size
    stage = np.arange(p)[:, None]
    task = ((orders.kind * p + stage) * v + orders.chunk).ravel()
    return Program(
        orders=orders,
        chunks=v,
        microbatches=int(orders.microbatch.max()) + 1,
        number=number[:size].reshape(p, -1),
        levels=(0, *np.cumsum([len(wave) for wave in waves]).tolist()),
        task=task[ranked],
        hop=hop[ranked],
        after_own=number[own.ravel()[ranked]] + 1,
        after_data=number[producer[ranked]] + 1,
    )


def _data_edges(orders: Orders) -> tuple[IntArray, IntArray]:
    """For each operation, in table order, its input's producer and the boundary crossed (sentinels: size, p)."""
    kind, size = orders.kind, orders.kind.size
    p, v = orders.depth.shape
    stage, last = np.arange(p)[:, None], p * v - 1
    depth = orders.depth[stage, orders.chunk]
    back = (kind == BACKWARD) | (kind == INPUT)
    gradient, forward = _places(orders, depth, back), _places(orders, depth, kind == FORWARD)
    micro = orders.microbatch
    turn = back & (depth == last)
    producer = np.select(
        [kind == FORWARD, turn, back, kind == WEIGHT],
        [
            np.where(depth == 0, size, forward[depth - 1, micro]),
            forward[depth, micro],
            gradient[np.minimum(depth + 1, last), micro],
            gradient[depth, micro],
        ],
        size,
    )
    edge = np.where(kind == FORWARD, depth - 1, depth)
    moved = ((kind == FORWARD) & (depth > 0)) | (back & ~turn)
    hop = np.where(moved, _boundaries(orders.depth)[np.clip(edge, 0, last)], p)
    return producer.ravel(), hop.ravel()


def _places(orders: Orders, depth: IntArray, chosen: IntArray) -> IntArray:
    """Place in the flat tables of the chosen kind of pass of every chunk, by depth and micro-batch."""
    size = orders.kind.size
    places = np.full((orders.depth.size, int(orders.microbatch.max()) + 1), size)
    flat = np.arange(size).reshape(chosen.shape)
    places[depth[chosen], orders.microbatch[chosen]] = flat[chosen]
    return places


def _boundaries(depth: IntArray) -> IntArray:
    """The boundary between every chunk and the next deeper one, numbered by the earlier stage; ``p`` within a stage."""
    p = len(depth)
    stage = np.empty(depth.size, np.int64)
    stage[depth.ravel()] = np.repeat(np.arange(p), depth.shape[1])
    here, there = stage, np.append(stage[1:], stage[:1])
    within = here == there
    crossed = np.minimum(here, there) if within[:-1].any() else here
    return np.where(within, p, crossed)


def _waves(producer: IntArray) -> list[IntArray]:
    """Operations that become ready together when each takes one step, as positions in the flat tables."""
    p, length = producer.shape
    start, never = p * length, p * length + 1
    waits = np.column_stack([producer, np.full(p, never)])
    done = np.zeros(never + 1, np.bool_)
    done[start] = True
    stage, base, cursor = np.arange(p), np.arange(p) * length, np.zeros(p, np.int64)
    waves = []
    while (ready := done[waits[stage, cursor]]).any():
        wave = (base + cursor)[ready]
        done[wave] = True
        cursor += ready
        waves.append(wave)
    if (cursor < length).any():
        raise ValueError(f"stages {np.flatnonzero(cursor < length).tolist()} wait for one another")
    return waves


def simulate(
    program: Program,
    forward: Array,
    backward: Array,
    send: Number = 0.0,
    weight: Array | None = None,
    microbatches: int | IntArray | None = None,
) -> Timing:
    """Exact makespan: each operation starts once its stage is free and its input has arrived.

    Args:
        program: from :func:`compile_schedule`.
        forward: time of each stage's chunk for one micro-batch.
        backward: the same backwards.
        send: delay of an activation or gradient over the boundary between a stage and the next (the last one's next
            is the first); stages do not wait while they send.
        weight: the part of the backward time in which gradients of weights are made; matters where they are split off.
        microbatches: with how many of the program's the step ends, at least its warm-up; all, unless said otherwise.

    Shapes:
        forward, backward and weight (..., stages, chunks); send broadcasts to (..., stages), microbatches to (...).

    Units:
        Seconds.
    """
    held = np.asarray(program.microbatches if microbatches is None else microbatches)
    ends, costs = _execute(program, forward, backward, send, weight, held)
    first, last = program.number[:, 0], program.number[:, -1]
    lasts = ends[last]
    makespan = np.asarray(lasts.max(axis=0))
    busy = held[..., None] * (forward + backward).sum(axis=-1)
    return Timing(
        makespan=makespan,
        idle=makespan[..., None] - busy,
        span=np.asarray((lasts - (ends[first] - costs[first])).max(axis=0)),
        program=program,
        ends=ends,
        costs=costs,
    )


def _execute(
    program: Program,
    forward: Array,
    backward: Array,
    send: Number,
    weight: Array | None,
    microbatches: IntArray,
) -> tuple[Array, Array]:
    """End and duration of each operation, by number; those of later micro-batches take and await nothing."""
    p, v = len(program.orders.kind), program.chunks
    late = np.zeros(()) if weight is None else weight
    shape = np.broadcast_shapes(forward.shape, backward.shape, (*np.shape(send), 1))
    if shape[-2:] != (p, v):
        raise ValueError(f"times must end in the shape ({p}, {v}), not {shape[-2:]}")
    lead = shape[:-2]
    by_kind = (forward, backward, backward - late, late, np.zeros(()))
    kinds = np.stack([np.broadcast_to(times, shape) for times in by_kind])
    durations = np.moveaxis(kinds, (-2, -1), (1, 2)).reshape(len(by_kind) * p * v, *lead)
    delays = np.zeros((p + 1, *lead))
    delays[:p] = np.moveaxis(np.broadcast_to(send, shape[:-1]), -1, 0)
    costs = durations[program.task]
    lags = costs + delays[program.hop]
    if (microbatches < program.microbatches).any():
        number = np.empty(len(costs), np.int64)
        number[program.number] = program.orders.microbatch
        none = np.greater_equal.outer(number, microbatches)
        costs[none], lags[none] = 0.0, -np.inf
    ends = np.zeros((len(costs) + 1, *lead))
    own, data = program.after_own, program.after_data
    for first, last in pairwise(program.levels):
        free, fed = ends.take(own[first:last], 0), ends.take(data[first:last], 0)
        free += costs[first:last]
        fed += lags[first:last]
        np.maximum(free, fed, out=ends[first + 1 : last + 1])
    return ends[1:], costs
