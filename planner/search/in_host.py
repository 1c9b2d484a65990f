"""Layouts that keep something in host memory, where that may be faster than what fits on the chips alone.

What is in host memory has to be copied, and is updated there at the rate of the host's memory: the same layout is never
faster so. It pays where it makes room for a layout that does not fit without. Of all layouts only those are looked at
that do not fit on the chips and would be faster than a known answer if they did.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.candidates import Candidates
from planner.search.bounded import Bounded, bounds_of
from planner.search.space import Space
from planner.trainers.trainer import Task
from planner.units import IntArray


def with_moved(
    task: Task, space: Space, bounded: Bounded, unfit: IntArray, best: float
) -> tuple[Space, Bounded]:
    """Every layout in host memory that may be faster, and the bounds of these.

    Args:
        task: the question.
        space: without any.
        bounded: its bounds.
        unfit: layouts that do not fit although their least memory does.
        best: seconds that a layout must beat.
    """
    kinds = [kind for kind in task.trainer.offload.kinds if kind]
    index = _faster(task, space.candidates, bounded, unfit, best) if kinds else unfit[:0]
    rows = space.candidates.take(np.tile(index, len(kinds)))
    moved = replace(rows, offload=np.repeat(kinds, len(index)).astype(np.int64))
    removed: dict[str, int] = {}
    keeps = np.ones(len(moved), dtype=bool)
    for rule in task.trainer.rules:
        if "offload" in rule.needs:
            kept = keeps & rule.keeps(task, moved)
            removed[rule.name] = int((keeps & ~kept).sum())
            keeps = kept
    key, kept_rows = bounded.key[np.tile(index, len(kinds))[keeps]], moved.take(keeps)
    more = Space(kept_rows, len(moved), removed, space.operators)
    return more, bounds_of(task, kept_rows, bounded.table, key)


def _faster(
    task: Task, rows: Candidates, bounded: Bounded, unfit: IntArray, best: float
) -> IntArray:
    """Layouts that do not fit and may be faster than ``best``: first by the work of the mean stage alone."""
    lacks = ~bounded.fits
    lacks[unfit] = True
    index = np.flatnonzero(lacks & (rows.offload == 0))
    index = index[bounded.busy(task, rows, index) < best]
    return index[bounded.steps(task, rows, index) < best]
