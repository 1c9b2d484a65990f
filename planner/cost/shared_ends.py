"""Embedding and head that all stages of a pipeline share."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from planner.candidates import Candidates
from planner.cost.table import KEY_AXIS, BlockTable, block_table
from planner.trainers.trainer import Task
from planner.units import IntArray

TIMES = ("forward", "backward", "weight", "exposed", "hidden", "recompute")
ENDS = [0, -1]
"""Columns of embedding and head."""


def with_shared_ends(
    task: Task, rows: Candidates, table: BlockTable, key: IntArray
) -> tuple[BlockTable, IntArray]:
    """The table with what embedding and head take where every stage has its share of their vocabulary.

    Each stage multiplies with its share, and all of them reduce what comes out of the embedding, the statistics of the
    loss and the gradient of the head's input: the operators are those that tensor parallelism over all ranks of a
    replica makes of the two. Stages count each end in fractions of their number, so that times stand here as many
    times over.

    Args:
        task: the question.
        rows: the candidates.
        table: their blocks.
        key: each candidate's row in the table.

    Returns:
        A table with a row for each candidate, and these rows.

    Source: Yeung et al. 2024, Balancing Pipeline Parallelism with Vocabulary Parallelism (arXiv 2411.05288),
    sections 4 and 5.
    """
    spread, place = block_table(task, replace(rows, tp=rows.tp * rows.pp, pp=np.ones_like(rows.pp)))
    chunks = rows.pp * rows.vpp
    found = {}
    for each in fields(table):
        axis = KEY_AXIS[each.name]
        values = getattr(table, each.name).take(key, axis=axis)
        if each.name in TIMES:
            ends = getattr(spread, each.name).take(place, axis=axis)[..., ENDS]
            values[..., ENDS] = ends * chunks[:, None]
        found[each.name] = values
    return BlockTable(**found), np.arange(len(rows))
