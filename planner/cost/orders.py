"""Which operations each pipeline stage executes, and in which order.

A schedule is a table per stage: the kind of operation, the model chunk and the micro-batch, from left to right in the
order of execution. The three schedules here differ only in how many forwards a stage runs before its first backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from planner.units import Array, IntArray

FORWARD, BACKWARD = 0, 1
"""Kinds of operation in an order table."""


class Schedule(IntEnum):
    """A pipeline schedule; the value is its code in arrays of candidates."""

    GPIPE = 0
    ONE_F_ONE_B = 1
    INTERLEAVED = 2

    @property
    def label(self) -> str:
        """The name that people and plans use: ``gpipe``, ``1f1b`` or ``interleaved``."""
        return {0: "gpipe", 1: "1f1b", 2: "interleaved"}[self.value]

    @classmethod
    def named(cls, label: str) -> Schedule:
        """The schedule with this label.

        >>> Schedule.named("1f1b").name
        'ONE_F_ONE_B'
        """
        return next(schedule for schedule in cls if schedule.label == label)


@dataclass(frozen=True, slots=True, eq=False)
class Orders:
    """Order tables: row i is what stage i executes, from left to right."""

    kind: IntArray
    """``FORWARD`` or ``BACKWARD``; shape (stages, operations)."""
    chunk: IntArray
    """Model chunk of the stage, 0 is nearest to the input; same shape."""
    microbatch: IntArray
    """Micro-batch; same shape."""


def group_size(p: int | IntArray, m: int | IntArray) -> IntArray:
    """Micro-batches that interleaving runs through a chunk before the next chunk: p, where that comes out even.

    Else the least number above p that divides the micro-batches, so that rounds are equal; all of them where there are
    fewer than p.

    Shapes:
        All broadcast.

    Source:
        Megatron-LM (a multiple of p); torch.distributed.pipelining Interleaved1F1B, ``microbatches_per_round``.

    >>> group_size(4, np.array([8, 10, 3])).tolist()
    [4, 5, 3]
    """
    stages, batches = np.broadcast_arrays(np.asarray(p, np.int64), np.asarray(m, np.int64))
    group = stages.copy()
    odd = batches % stages != 0
    base = int(batches.max(initial=0)) + 1
    codes, index = np.unique(stages[odd] * base + batches[odd], return_inverse=True)
    pairs = (divmod(code, base) for code in codes.tolist())
    found = [
        next(g for g in range(min(low, count), count + 1) if count % g == 0) for low, count in pairs
    ]
    group[odd] = np.array(found, np.int64)[index]
    return group


def order(schedule: Schedule, p: int, m: int, v: int = 1, group: int | None = None) -> Orders:
    """The order tables of a schedule.

    Forwards and backwards each have a fixed sequence: micro-batch after micro-batch, and with several chunks a group of
    micro-batches through a chunk before the next chunk, backwards from the last chunk to the first. A stage runs its
    warm-up of forwards, then one forward and one backward in turn, then the backwards that are left.

    Args:
        schedule: GPipe is all warm-up.
        p: stages.
        m: micro-batches of a step; a multiple of the group when interleaved.
        v: chunks a stage; 1 unless interleaved.
        group: micro-batches in a group, see :func:`group_size`; p unless said otherwise.

    Shapes:
        Tables of (p, 2 m v).

    Raises:
        ValueError: the schedule does not exist for these numbers.

    Source:
        Megatron-LM core/pipeline_parallel/schedules.py; torch.distributed.pipelining.schedules.
    """
    if min(p, m, v) < 1 or (v > 1 and schedule != Schedule.INTERLEAVED):
        raise ValueError(f"{schedule.label} has no order for {p=}, {m=}, {v=}")
    group = group or p
    if schedule == Schedule.INTERLEAVED and m % group:
        raise ValueError(f"interleaved needs a multiple of {group} micro-batches, not {m}")
    number, stage = np.arange(m * v), np.arange(p)[:, None]
    warm = np.asarray(_warmup(schedule, p, m, v, stage, group))
    shape = (p, 2 * m * v)
    kind, position = np.empty(shape, np.int64), np.empty(shape, np.int64)
    for which, column in (
        (FORWARD, number + np.maximum(0, number - warm)),
        (BACKWARD, number + np.minimum(m * v, number + warm + 1)),
    ):
        np.put_along_axis(kind, column, which, axis=1)
        np.put_along_axis(position, column, number[None, :], axis=1)
    depth = position % (group * v) // group
    chunk = np.where(kind == FORWARD, depth, v - 1 - depth) if v > 1 else np.zeros_like(kind)
    microbatch = position // (group * v) * group + position % group if v > 1 else position
    return Orders(kind, chunk, microbatch)


def warmup(
    schedule: int | IntArray,
    p: int | IntArray,
    m: int | IntArray,
    v: int | IntArray,
    stage: int | IntArray,
) -> IntArray:
    """Forwards that a stage runs before its first pair of a forward and a backward, at most m v.

    Args:
        schedule: code of the :class:`Schedule`.
        p: stages.
        m: micro-batches.
        v: chunks a stage.
        stage: from 0, the stage that holds the input.

    Shapes:
        All broadcast.

    Source:
        Megatron-LM ``get_pp_rank_microbatches``; torch.distributed.pipelining Interleaved1F1B.
    """
    grouped = np.where(np.equal(schedule, Schedule.INTERLEAVED), m, p)
    return _warmup(schedule, p, m, v, stage, group_size(p, grouped))


def _warmup(
    schedule: int | IntArray,
    p: int | IntArray,
    m: int | IntArray,
    v: int | IntArray,
    stage: int | IntArray,
    group: int | IntArray,
) -> IntArray:
    behind = np.subtract(p, stage) - 1
    interleaved = 2 * behind + np.multiply(np.subtract(v, 1), group)
    chosen = np.select(
        [np.equal(schedule, Schedule.GPIPE), np.equal(schedule, Schedule.ONE_F_ONE_B)],
        [np.multiply(m, v), behind],
        interleaved,
    )
    return np.asarray(np.minimum(chosen, np.multiply(m, v)), np.int64)


def in_flight(
    schedule: int | IntArray,
    p: int | IntArray,
    m: int | IntArray,
    v: int | IntArray,
    stage: int | IntArray,
) -> Array:
    """Most micro-batches whose activations a stage holds at once.

    Args:
        schedule: code of the :class:`Schedule`.
        p: stages.
        m: micro-batches.
        v: chunks a stage.
        stage: from 0.

    Returns:
        Peak count in units of the activations of all chunks of the stage, so 1 / v is one chunk's: the warm-up and
        the forward that follows it.

    Shapes:
        All broadcast.
    """
    held = np.minimum(warmup(schedule, p, m, v, stage) + 1, np.multiply(m, v))
    return np.asarray(held / v, np.float64)
