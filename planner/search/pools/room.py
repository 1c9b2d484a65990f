"""What memory forces on a stage: how many layers it holds within a time, and so how long the busiest stage takes.

A stage that holds n layers and the activations of q micro-batches needs n (s + q a) bytes at least, s of states and a
of activations for each layer. Beyond that it recomputes: every byte less costs r seconds at least, the least of what
the modes of recompute take for each byte that they free. Within T seconds it holds no more than the least of T / t,
(T + M r / q) / (t + (s + q a) r / q), and M / (s + q a') with a' the fewest bytes that any mode keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.candidates import RECOMPUTE
from planner.cost.orders import Schedule, in_flight
from planner.cost.prices import Prices, block_seconds
from planner.trainers.trust import room
from planner.units import Array, BoolArray, IntArray

ROUNDING = 1e-9
ROUNDS = 6
"""Halvings of the time that is known, for the order in which seats come up."""


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """What one layer takes at least; arrays ``(pools, n)``."""

    seconds: Array
    """Of one micro-batch."""
    states: Array
    """Bytes of weights, gradients and optimizer."""
    kept: Array
    """Bytes of activations of one micro-batch without more recompute than the layout says."""
    least: Array
    """The fewest that a mode of recompute keeps."""
    freed: Array
    """Seconds for each byte that recompute frees; infinite where it frees none."""
    ends: Array
    """Seconds of embedding and head; ``(2, pools, n)``."""
    end_states: Array
    """Bytes of their states; ``(2, pools, n)``."""
    room: Array
    """Bytes of a chip for states and activations."""


def needs(parts: Sequence[Prices], modes: Sequence[Sequence[int]]) -> Needs:
    """Needs of the same layouts priced on every pool.

    Args:
        parts: the prices.
        modes: for every layout the modes of recompute that its layers may have, indices into ``RECOMPUTE``.
    """
    may = np.zeros((len(RECOMPUTE), len(modes)), dtype=bool)
    for row, some in enumerate(modes):
        may[list(some), row] = True
    columns = [_needs(part, may) for part in parts]
    stacked = [np.stack(each, axis=-2) for each in zip(*columns, strict=True)]
    return Needs(*stacked)


def _needs(p: Prices, may: BoolArray) -> tuple[Array, ...]:
    kinds = slice(1, 1 + len(p.task.model.blocks))
    memory = p.task.trainer.memory
    forward, backward = block_seconds(p)
    seconds = forward + backward
    again = p.table.recompute[:, p.key, kinds]
    base = again[p.rows.recompute, np.arange(len(p.rows))]
    more = again - base
    dense, expert = p.dense, p.table.expert[p.key]
    held = p.states.weights + p.states.gathered + p.states.gradients + p.states.optimizer
    each = p.each(held)
    states = each[0][:, None] * dense + each[1][:, None] * expert
    kept = memory.fragmentation * p.table.saved[:, p.key, kinds]
    own = kept[p.rows.recompute, np.arange(len(p.rows))]
    saved = own - kept
    with np.errstate(divide="ignore", invalid="ignore"):
        price = np.where(may[..., None] & (saved > 0), np.maximum(more, 0.0) / saved, np.inf)
    least = np.where(may[..., None], kept, np.inf).min(axis=(0, 2))
    return (
        seconds[:, kinds].min(axis=-1),
        states[:, kinds].min(axis=-1),
        own.min(axis=-1),
        np.minimum(least, own.min(axis=-1)),
        price.min(axis=(0, 2)),
        seconds[:, [0, -1]].T,
        states[:, [0, -1]].T,
        np.full(len(p.rows), room(p.task) - memory.runtime_bytes),
    )


@dataclass(frozen=True, slots=True)
class Rounds:
    """What stages of a layout repeat."""

    micro_batches: int
    chunks: tuple[int, int]
    """Of every stage, the fewest and the most that it may have: 1 under 1F1B, more interleaved."""
    layers: int
    """Of the model."""


def makespans(found: Needs, row: int, pools: IntArray, rounds: Rounds, known: float) -> Array:
    """Seconds of a schedule that no cut of these stages beats; infinite where none is faster than what is known.

    Args:
        found: needs of the layouts.
        row: which layout.
        pools: of every stage, the last stage in the last column; -1 before the first; ``(n, most stages)``.
        rounds: of the schedule.
        known: seconds; slower ones need not be told apart.

    Shapes: ``(n,)``.
    """
    held, layers = _holding(found, row, pools, rounds), rounds.layers
    result = np.where(held.most.sum(axis=1) < layers, np.inf, 0.0)
    going = np.flatnonzero(result == 0.0)
    going = going[_possible(held.take(going), layers, np.full(len(going), known))]
    low, high = np.zeros(len(going)), np.full(len(going), known)
    left = held.take(going)
    for _ in range(ROUNDS if np.isfinite(known) else 0):
        middle = (low + high) / 2
        can = _possible(left, layers, middle)
        low, high = np.where(can, low, middle), np.where(can, middle, high)
    result[:] = np.inf
    result[going] = low
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Holding:
    """Stages of several seatings, the last in the last column; ``(n, most stages)``."""

    there: BoolArray
    seconds: Array
    """Of a layer."""
    full: Array
    """Bytes of a layer and its activations."""
    rate: Array
    """Seconds for each byte that is too much."""
    space: Array
    used: Array
    """Seconds of embedding and head."""
    most: Array
    """Layers."""
    lead: Array
    """Seconds in which a first micro-batch passes a layer of every stage between the first and this one, and its
    gradient in the end; none of 1F1B, whose paths say more."""
    rounds: Rounds

    def take(self, index: IntArray) -> _Holding:
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return _Holding(**{n: v if n == "rounds" else v[index] for n, v in parts.items()})

    def layers(self, limit: Array) -> Array:
        """Whole layers that every stage holds within so many seconds for a micro-batch."""
        left = np.maximum(limit - self.used, 0.0)
        held = (left + self.space * self.rate) / (self.seconds + self.full * self.rate)
        held = np.minimum(held, left / self.seconds)
        return np.minimum(np.floor(held + ROUNDING), self.most)


def _holding(found: Needs, row: int, pools: IntArray, rounds: Rounds) -> _Holding:
    there, several = pools >= 0, rounds.chunks[0] > 1
    behind, number = np.arange(pools.shape[1])[::-1], there.sum(axis=1)[:, None]
    schedule = Schedule.INTERLEAVED if several else Schedule.ONE_F_ONE_B
    stage = np.maximum(number - 1 - behind, 0)
    flying = np.minimum(
        *(in_flight(schedule, number, rounds.micro_batches, v, stage) for v in rounds.chunks)
    )
    every, last = np.arange(len(pools)), np.full(len(pools), pools.shape[1] - 1)
    space, used = found.room[pools, row], np.zeros(pools.shape)
    for end, place in enumerate((pools.shape[1] - there.sum(axis=1), last)):
        space[every, place] -= found.end_states[end][pools[every, place], row]
        used[every, place] += found.ends[end][pools[every, place], row]
    space = np.maximum(space, 0.0)
    states, kept, least = (part[pools, row] for part in (found.states, found.kept, found.least))
    rate = np.where(np.isinf(found.freed), 0.0, found.freed)[pools, row] / flying
    most = np.floor(space / (states + flying * least) + ROUNDING)
    passed = np.where(there, found.seconds[pools, row], 0.0) * several
    passed[every, pools.shape[1] - number[:, 0]] = 0.0
    return _Holding(
        there=there,
        seconds=found.seconds[pools, row],
        full=states + flying * kept,
        rate=rate,
        space=space,
        used=used,
        most=np.where(there, most, 0.0),
        lead=np.cumsum(passed, axis=1) - passed,
        rounds=rounds,
    )


def _possible(held: _Holding, layers: int, known: Array) -> BoolArray:
    """Whether the stages could hold all layers in a schedule no longer than ``known``; ``(n,)``.

    As :func:`planner.search.stages.solver.solve` tells for a table of stages: no stage works longer on a micro-batch
    than its own path allows, which grows with what the stages before it work. Of several chunks none but the first may
    be empty (:mod:`planner.search.stages.chunked`).
    """
    m, width = held.rounds.micro_batches, held.there.shape[1]
    each = held.layers(known[:, None] / m)
    whole = _least_work(held, each, layers)
    least = held.rounds.chunks[0] - 1
    can = (each.sum(axis=1) >= layers) & (~held.there | (each >= least)).all(axis=1)
    spare, before, total = known - 2.0 * whole, np.zeros(len(known)), np.zeros(len(known))
    for column in range(width):
        times = m - (width - column) - 1  # m - p + i - 1, i counted from the last stage
        limit = (known - held.lead[:, column]) / m
        if times > 0 and held.rounds.chunks[0] == 1:
            limit = np.minimum(limit, (spare + before) / times)
        limit = np.where(held.there[:, column], limit, 0.0)
        before += np.maximum(limit, 0.0)
        total += _column(held, column, limit)
    return np.asarray(can & (total >= layers))


def _column(held: _Holding, column: int, limit: Array) -> Array:
    left = np.maximum(limit - held.used[:, column], 0.0)
    seconds, rate = held.seconds[:, column], held.rate[:, column]
    slow = (left + held.space[:, column] * rate) / (seconds + held.full[:, column] * rate)
    return np.minimum(np.floor(np.minimum(left / seconds, slow) + ROUNDING), held.most[:, column])


def _least_work(held: _Holding, each: Array, layers: int) -> Array:
    """Least seconds of one micro-batch through all stages: the fastest take as many layers as they can."""
    order = np.argsort(np.where(held.there, held.seconds, np.inf), axis=1, kind="stable")
    counts = np.take_along_axis(np.where(held.there, each, 0.0), order, axis=1)
    taken = np.minimum(np.cumsum(counts, axis=1), layers)
    taken = np.diff(taken, axis=1, prepend=0.0)
    seconds = np.take_along_axis(held.seconds, order, axis=1)
    return np.asarray((taken * seconds).sum(axis=1) + held.used.sum(axis=1))
