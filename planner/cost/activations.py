"""How many micro-batches' activations the stages of every candidate hold at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.candidates import distinct
from planner.cost.makespan import adaptive_timings
from planner.cost.orders import Schedule, in_flight, splits
from planner.cost.prices import Prices, block_seconds, weight_seconds
from planner.cost.program import compile_schedule
from planner.units import Array, Counts, IntArray

ADAPTIVE = (Schedule.ZB_1P, Schedule.ZB_2P)
STEADY = 4
"""Micro-batches over stages from which on a V holds no more than with fewer."""


def held_at_once(p: Prices, blocks: Counts, stage: IntArray) -> Array:
    """Most micro-batches whose activations a stage holds, in units of the activations of all its chunks.

    Args:
        p: the candidates.
        blocks: how many of each block stand on the stage, all chunks; ``(n, stages, blocks)``.
        stage: index of each stage; ``(n, stages)``, all stages in order.

    Shapes: ``(n, stages)``.
    """
    held = _held(p, blocks, stage, adaptive=True)
    return np.minimum(held + 1, p.micro_batches[:, None]) if p.task.cut.shared_ends else held


def held_at_least(p: Prices, blocks: Counts, stage: IntArray) -> Array:
    """The same for any choice of stages, where orders are not made: a lower bound."""
    return _held(p, blocks, stage, adaptive=False)


def kept_share(p: Prices, blocks: Counts) -> Array:
    """What gradients of weights still need once the input's is made, as a share of a stage's activations.

    Shapes: ``blocks`` ``(..., stages, blocks)``; result ``(n, stages)``.
    """
    ends = 2 if p.task.model.mtp else 1
    saved = p.table.saved[p.rows.recompute, p.key][:, None, :-ends]
    kept = (blocks * p.table.kept[p.key][:, None]).sum(axis=-1)
    return np.asarray(kept / np.maximum((blocks[..., :-ends] * saved).sum(axis=-1), 1.0))


def _held(p: Prices, blocks: Counts, stage: IntArray, *, adaptive: bool) -> Array:
    rows, m = p.rows, p.micro_batches
    wide = (slice(None), None)
    split = splits(rows.schedule)
    share = kept_share(p, blocks) if split.any() else np.zeros(stage.shape)
    held = in_flight(rows.schedule[wide], rows.pp[wide], m[wide], rows.vpp[wide], stage, share)
    if rows.folded.any():
        _fill_folded(p, stage, share, held)
    for index in np.flatnonzero(np.isin(rows.schedule, ADAPTIVE)):
        held[index] = _adaptive(p.take(np.array([index])), blocks[index]) if adaptive else 1.0
    return held


def _fill_folded(p: Prices, stage: IntArray, share: Array, held: Array) -> None:
    """The counts of candidates whose chunks stand in a V, from their order tables."""
    rows = p.rows
    chosen = np.flatnonzero(rows.folded)
    count = np.minimum(p.micro_batches, STEADY * rows.pp)[chosen]
    first, index = distinct([rows.schedule[chosen], rows.pp[chosen], count])
    for group, row in enumerate(first):
        mine = chosen[index == group]
        schedule, stages = Schedule(int(rows.schedule[mine[0]])), int(rows.pp[mine[0]])
        whole, waiting = _folded_peaks(schedule, stages, int(count[row]))
        at = stage[mine]
        held[mine] = (whole[at] + waiting[at] * share[mine][..., None]).max(axis=-1)


@lru_cache(maxsize=256)
def _folded_peaks(schedule: Schedule, p: int, m: int) -> tuple[Array, Array]:
    """What a stage holds after each operation, in units of its activations: in flight, and waiting for weights.

    Shapes: ``(stages, operations)`` each.
    """
    whole, waiting = compile_schedule(schedule, p, m, 2).orders.held()
    return whole / 2, waiting / 2


def _adaptive(p: Prices, blocks: Counts) -> Array:
    """The counts of one candidate whose order follows the times of its stages; ``(stages,)``."""
    share = kept_share(p, blocks)
    forward, backward = block_seconds(p)
    times = [
        (blocks @ seconds[0])[None, :, None] for seconds in (forward, backward, weight_seconds(p))
    ]
    send = p.sends.boundaries(len(blocks))
    schedule, m = Schedule(int(p.rows.schedule[0])), int(p.micro_batches[0])
    timings = adaptive_timings(schedule, m, times[0], times[1], send, times[2], share.max(axis=1))
    whole, waiting = timings[0][1].held()
    return np.asarray((whole + waiting * share[0][:, None]).max(axis=1))
