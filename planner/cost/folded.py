"""Schedules of two chunks a stage that stand in a V: down the stages and back up.

The last chunk is on the first stage, so that the first gradient needs no trip, and every stage holds as much as the
others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from planner.cost.orders import BACKWARD, FORWARD, INPUT, NOTHING, WEIGHT, Orders, Schedule
from planner.units import IntArray

Phase = tuple[int, str]
"""How often, and passes in turn: ``F0 I1 W1`` is forward of chunk 0, input's gradient of chunk 1 and its weights;
``B`` is a whole backward, ``W`` alone the weights that have waited longest."""
KINDS = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}
Pass = tuple[int, int, int]
"""Kind, chunk, micro-batch."""


def folded_depth(p: int) -> IntArray:
    """Depth of both chunks of every stage.

    >>> folded_depth(3).tolist()
    [[0, 5], [1, 4], [2, 3]]
    """
    stage = np.arange(p)
    return np.stack([stage, 2 * p - 1 - stage], axis=1)


def folded_order(schedule: Schedule, p: int, m: int, v: int = 2) -> Orders:
    """The order tables of ZBV or DualPipeV.

    Args:
        schedule: one of the two.
        p: stages.
        m: micro-batches of a step; DualPipeV needs 2 p or more.
        v: chunks a stage, always 2.

    Shapes:
        Tables of (p, longest row).

    Raises:
        ValueError: the schedule does not exist for these numbers.

    Source:
        Qi et al. 2024, Zero Bubble Pipeline Parallelism, section 6; DeepSeek-AI, DualPipe; orders as in
        torch.distributed.pipelining 2.13, ZBVZeroBubble and DualPipeV.
    """
    if min(p, m) < 1 or v != 2 or (schedule == Schedule.DUALPIPEV and m < 2 * p):
        raise ValueError(f"{schedule.label} has no order for {p=}, {m=}, {v=}")
    phases = _zbv if schedule == Schedule.ZBV else _dualpipev
    return tabled([_numbered(phases(p, m, stage), m) for stage in range(p)], folded_depth(p))


def tabled(rows: Sequence[Sequence[Pass]], depth: IntArray) -> Orders:
    """Order tables of the passes of every stage."""
    length = max(len(row) for row in rows)
    table = np.zeros((len(rows), length, 3), np.int64)
    table[:, :, 0] = NOTHING
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return Orders(table[..., 0], table[..., 1], table[..., 2], depth)


def _numbered(phases: Sequence[Phase], m: int) -> list[Pass]:
    """Passes with their micro-batches, each kind counted by chunk; those beyond the last are left out."""
    forwards, backwards = [0, 0], [0, 0]
    waiting: deque[tuple[int, int]] = deque()
    passes: list[Pass] = []
    for word in (word for times, words in phases for word in words.split() * times):
        kind = word[0]
        if kind == "W":
            chunk = int(word[1]) if len(word) > 1 else waiting[0][0]
            entry = next(each for each in waiting if each[0] == chunk)
            waiting.remove(entry)
            number = entry[1]
        else:
            chunk = int(word[1])
            counts = forwards if kind == "F" else backwards
            number = counts[chunk]
            counts[chunk] += 1
            if kind == "I":
                waiting.append((chunk, number))
        if number < m:
            passes.append((KINDS[kind], chunk, number))
    return passes


def _zbv(p: int, m: int, stage: int) -> list[Phase]:
    """As many forwards as gradients come back after; then six passes a micro-batch; weights last."""
    total, behind = max(2 * p - 1, m), p - stage
    ahead = total - (2 * p - 1 - stage)
    return [
        (2 * behind - 1, "F0"),
        (stage, "F1 F0"),
        (behind, "F1 I1 W1"),
        (ahead, "F0 I0 W0 F1 I1 W1"),
        (total - p - ahead, "I0 W0 F1 I1 W1"),
        (stage, "I0 I1"),
        (behind, "I0 W0"),
        (stage, "W1"),
        (stage, "W0"),
    ]


def _dualpipev(p: int, m: int, stage: int) -> list[Phase]:
    """Forwards and whole backwards of the two chunks in pairs; weights are split off while it fills and drains."""
    behind, half = p - stage - 1, (stage + 1) // 2
    return [
        (2 * behind, "F0"),
        (stage + 1, "F0 F1"),
        (behind, "I1 W1 F1"),
        (m - 2 * p + stage + 1, "F0 B1 F1 B0"),
        (behind, "B1 F1 B0"),
        (half, "B1 B0"),
        (1, "I1 I0" if stage % 2 else "B1 I0"),
        (stage - half, "I1 I0"),
        (behind, "W I0"),
        (stage + 1, "W"),
    ]
