"""Which operations each pipeline stage executes, and in which order.

A schedule is a table per stage: the kind of operation, the model chunk and the micro-batch, from left to right in the
order of execution. The schedules here are formulas: they differ in how many forwards a stage runs before its first
backward and in how long it puts off the gradients of its weights. Those that stand in a V are in
:mod:`planner.cost.folded`, those that follow the times of the stages in :mod:`planner.cost.adaptive`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from planner.candidates import FOLDED, LOOPED, SCHEDULES, SPLIT
from planner.units import Array, BoolArray, IntArray, Number

FORWARD, BACKWARD, INPUT, WEIGHT, NOTHING = range(5)
"""Kinds of operation in an order table: a backward pass is whole, or the gradient of the input and, later, those of the
weights; rows that are shorter than the longest end in ``NOTHING``."""
_SPLITS = np.isin(np.arange(len(SCHEDULES)), SPLIT)


class Schedule(IntEnum):
    """A pipeline schedule; the value is its code in arrays of candidates."""

    GPIPE = 0
    ONE_F_ONE_B = 1
    INTERLEAVED = 2
    ZB_H1 = 3
    """Zero-bubble in the memory of 1F1B; with several chunks torch's InterleavedZeroBubble."""
    ZB_H2 = 4
    """Zero-bubble in twice that memory."""
    ZB_1P = 5
    """Made for the times of the stages, in the memory of one pass over the stages."""
    ZB_2P = 6
    """The same in twice that memory."""
    ZBV = 7
    DUALPIPEV = 8

    @property
    def label(self) -> str:
        """The name that people and plans use, such as ``1f1b``."""
        return SCHEDULES[self.value]

    @property
    def splits(self) -> bool:
        """Whether gradients of weights are made later than those of the input."""
        return self.value in SPLIT

    @property
    def folded(self) -> bool:
        """Whether the two chunks of every stage stand in a V."""
        return self.value in FOLDED

    @property
    def adaptive(self) -> bool:
        """Whether the order follows the times of the stages."""
        return self in (Schedule.ZB_1P, Schedule.ZB_2P)

    @property
    def grouped(self) -> bool:
        """Whether groups of micro-batches go through a chunk before the next chunk."""
        return self.value in LOOPED

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
    """``FORWARD``, ``BACKWARD``, ``INPUT``, ``WEIGHT`` or ``NOTHING``; shape (stages, operations)."""
    chunk: IntArray
    """Model chunk of the stage, 0 is nearest to the input; same shape."""
    microbatch: IntArray
    """Micro-batch; same shape."""
    depth: IntArray
    """How many chunks of the model come before; shape (stages, chunks)."""

    def held(self) -> tuple[IntArray, IntArray]:
        """Chunk passes whose activations a stage holds after each operation: all of them, or what weights need.

        Shapes: (stages, operations) each.
        """
        kind = self.kind
        ended = (kind == BACKWARD) | (kind == INPUT)
        whole = ((kind == FORWARD).astype(np.int64) - ended).cumsum(axis=1)
        waiting = ((kind == INPUT).astype(np.int64) - (kind == WEIGHT)).cumsum(axis=1)
        return whole, waiting


def looped(p: int, v: int) -> IntArray:
    """Depth of every chunk where chunks follow one another over the stages, then from the first stage again."""
    return np.arange(p)[:, None] + p * np.arange(v)


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
    if not odd.any():
        return group
    base = int(batches.max(initial=0)) + 1
    codes, index = np.unique(stages[odd] * base + batches[odd], return_inverse=True)
    pairs = (divmod(code, base) for code in codes.tolist())
    found = [
        next(g for g in range(min(low, count), count + 1) if count % g == 0) for low, count in pairs
    ]
    group[odd] = np.array(found, np.int64)[index]
    return group


def order(schedule: Schedule, p: int, m: int, v: int = 1, group: int | None = None) -> Orders:
    """The order tables of a schedule that is a formula.

    Forwards, backwards and gradients of weights each have a fixed sequence: micro-batch after micro-batch, and with
    several chunks a group of micro-batches through a chunk before the next chunk, backwards from the last chunk to the
    first. A stage runs its warm-up of forwards, then one forward and one backward in turn, then the backwards that are
    left. Where backwards are split, the weights of a pass follow its input's gradient some passes later, so that
    gradients run ahead to the earlier stages and weights fill what would be waiting.

    Args:
        schedule: GPipe is all warm-up.
        p: stages.
        m: micro-batches of a step; a multiple of the group when interleaved.
        v: chunks a stage; 1 unless interleaved.
        group: micro-batches in a group, see :func:`group_size`; p unless said otherwise.

    Shapes:
        Tables of (p, 2 m v), or (p, 3 m v) where backwards are split.

    Raises:
        ValueError: the schedule does not exist for these numbers.

    Source:
        Megatron-LM core/pipeline_parallel/schedules.py; torch.distributed.pipelining.schedules; Qi et al. 2024, Zero
        Bubble Pipeline Parallelism, section 2.
    """
    formula = not (schedule.folded or schedule.adaptive)
    if min(p, m, v) < 1 or not formula or (v > 1 and not schedule.grouped):
        raise ValueError(f"{schedule.label} has no order for {p=}, {m=}, {v=}")
    group = group or p
    if v > 1 and m % group:
        raise ValueError(f"{schedule.label} needs a multiple of {group} micro-batches, not {m}")
    total, stage = m * v, np.arange(p)[:, None]
    number = np.arange(total)
    warm = np.asarray(_warmup(schedule, p, m, v, stage, group))
    late = np.asarray(_delay(schedule, stage)) if schedule.splits else total
    columns = [
        (FORWARD, number + np.maximum(0, number - warm) + np.maximum(0, number - warm - late)),
        (
            INPUT if schedule.splits else BACKWARD,
            number + np.minimum(total, number + warm + 1) + np.maximum(0, number - late),
        ),
    ]
    if schedule.splits:
        before = np.minimum(total, number + late + 1)
        columns.append((WEIGHT, number + before + np.minimum(total, warm + before)))
    shape = (p, len(columns) * total)
    kind, position = np.empty(shape, np.int64), np.empty(shape, np.int64)
    for which, column in columns:
        np.put_along_axis(kind, column, which, axis=1)
        np.put_along_axis(position, column, number[None, :], axis=1)
    place = position % (group * v) // group
    chunk = np.where(kind == FORWARD, place, v - 1 - place) if v > 1 else np.zeros_like(kind)
    microbatch = position // (group * v) * group + position % group if v > 1 else position
    return Orders(kind, chunk, microbatch, looped(p, v))


def warmup(
    schedule: int | IntArray,
    p: int | IntArray,
    m: int | IntArray,
    v: int | IntArray,
    stage: int | IntArray,
) -> IntArray:
    """Forwards that a stage runs before its first pair of a forward and a backward, at most m v.

    Args:
        schedule: code of a :class:`Schedule` that is a formula.
        p: stages.
        m: micro-batches.
        v: chunks a stage.
        stage: from 0, the stage that holds the input.

    Shapes:
        All broadcast.

    Source:
        Megatron-LM ``get_pp_rank_microbatches``; torch.distributed.pipelining, Interleaved1F1B and
        InterleavedZeroBubble.
    """
    return _warmup(schedule, p, m, v, stage, group_size(p, np.where(np.greater(v, 1), m, p)))


def _warmup(
    schedule: int | IntArray,
    p: int | IntArray,
    m: int | IntArray,
    v: int | IntArray,
    stage: int | IntArray,
    group: int | IntArray,
) -> IntArray:
    behind = np.subtract(p, stage) - 1
    chunks = np.multiply(np.subtract(v, 1), group)
    twice = np.equal(schedule, Schedule.INTERLEAVED) | np.equal(schedule, Schedule.ZB_H2)
    chosen = np.where(twice, 2 * behind, behind) + chunks
    whole = np.multiply(m, v)
    return np.asarray(
        np.where(np.equal(schedule, Schedule.GPIPE), whole, np.minimum(chosen, whole)), np.int64
    )


def _delay(schedule: int | IntArray, stage: int | IntArray) -> IntArray:
    """Passes by which the gradients of weights follow the input's, under ZB-H1 and ZB-H2."""
    return np.asarray(np.where(np.equal(schedule, Schedule.ZB_H2), 2, 1) * np.asarray(stage))


def in_flight(
    schedule: int | IntArray,
    p: int | IntArray,
    m: int | IntArray,
    v: int | IntArray,
    stage: int | IntArray,
    kept: Number = 0.0,
) -> Array:
    """Most micro-batches whose activations a stage holds at once.

    Args:
        schedule: code of a :class:`Schedule` that is a formula.
        p: stages.
        m: micro-batches.
        v: chunks a stage.
        stage: from 0.
        kept: what the gradients of weights still need once the input's is made, as a share of the activations.

    Returns:
        Peak count in units of the activations of all chunks of the stage, so 1 / v is one chunk's: the warm-up and the
        forward that follows it, and what waits for the gradients of weights.

    Shapes:
        All broadcast.

    Proof:
        Split backwards: passes in flight and passes that wait for weights change by one in turn, so that the peak is
        reached after a forward of the steady state, or after the last input's gradient that no weights follow.
    """
    whole = np.multiply(m, v)
    warm = warmup(schedule, p, m, v, stage)
    held = np.minimum(warm + 1, whole)
    split = splits(schedule)
    if not split.any():
        return np.asarray(held / v, np.float64)
    late = np.where(split, _delay(schedule, stage), -1)
    waiting = np.clip(whole - held, 0, np.maximum(late, 0))
    last = np.minimum(late + 1, whole)
    first = held + waiting * kept
    second = np.maximum(np.minimum(warm, whole - last), 0) + last * kept
    return np.asarray(np.maximum(first, second) / v, np.float64)


def splits(schedule: int | IntArray) -> BoolArray:
    """Which of these codes are schedules with split backwards."""
    return np.asarray(_SPLITS[schedule])
