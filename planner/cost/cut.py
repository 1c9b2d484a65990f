"""A division of the layers that is not the even one: how many in every chunk, and how many of them run again.

A layer that is recomputed is another kind of block: the table of blocks gets a column for every kind of layer under
every mode, and everything else is priced as before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from planner.candidates import RECOMPUTE
from planner.cost.partition import by_stage
from planner.cost.table import KEY_AXIS, BlockTable
from planner.graph.model import Model
from planner.units import IntArray

FULL, SELECTIVE, NONE = (RECOMPUTE.index(mode) for mode in ("full", "selective", "none"))


@dataclass(frozen=True, eq=False)
class Cut:
    """Chunks in the order of the model, from the one that has the embedding to the one that has the head."""

    layers: IntArray
    """Layers of every chunk; ``(chunks,)``."""
    full: IntArray
    """How many of them, from the first on, run again as a whole."""
    selective: IntArray
    """How many of those that follow run again in part."""

    @cached_property
    def modes(self) -> IntArray:
        """Mode of every layer, an index into ``RECOMPUTE``; ``(layers,)``."""
        parts = np.stack([self.full, self.selective, self.layers - self.full - self.selective], 1)
        return np.repeat(np.tile([FULL, SELECTIVE, NONE], len(self.layers)), parts.ravel())

    @property
    def mixed(self) -> bool:
        """Whether layers differ in what they recompute."""
        return bool((self.modes != self.modes[0]).any())

    @property
    def base(self) -> int:
        """What embedding and head recompute beside layers cut so: what all layers do, or nothing."""
        return NONE if self.mixed else int(self.modes[0])


def uniform(layers: IntArray, mode: int) -> Cut:
    """A cut whose layers all recompute alike."""
    none = np.zeros_like(layers)
    return Cut(layers, layers if mode == FULL else none, layers if mode == SELECTIVE else none)


def cut_blocks(model: Model, cut: Cut, pp: int, *, folded: bool) -> IntArray:
    """How many of each block stand in every chunk of every stage; columns as in :func:`widened`.

    Shapes: ``(stages, chunks a stage, blocks)``.
    """
    layers, full, selective = (part[None] for part in (cut.layers, cut.full, cut.selective))
    return np.asarray(blocks_of_cuts(model, layers, full, selective, pp, folded=folded)[0])


def blocks_of_cuts(
    model: Model,
    layers: IntArray,
    full: IntArray,
    selective: IntArray,
    pp: int,
    *,
    folded: bool,
) -> IntArray:
    """The same of several cuts, chunks as in :class:`Cut`.

    Shapes: ``(n, chunks)`` to ``(n, stages, chunks a stage, blocks)``.
    """
    kinds, ends = len(model.blocks), 2 if model.mtp else 1
    sums = np.zeros((model.num_layers + 1, kinds), dtype=np.int64)
    sums[1:] = np.cumsum(np.eye(kinds, dtype=np.int64)[list(model.layers)], axis=0)
    low = np.cumsum(layers, axis=1) - layers
    bounds = {FULL: (low, low + full), SELECTIVE: (low + full, low + full + selective)}
    bounds[NONE] = (low + full + selective, low + layers)
    table = np.zeros((*layers.shape, 1 + len(RECOMPUTE) * kinds + ends), dtype=np.int64)
    for mode, (first, last) in bounds.items():
        table[..., 1 + mode * kinds : 1 + (mode + 1) * kinds] = sums[last] - sums[first]
    table[:, 0, 0] = table[:, -1, -1] = 1
    if model.mtp:
        table[:, -1, -2] = len(model.mtp)
    return np.moveaxis(by_stage(np.swapaxes(table, 0, 1), pp, folded=folded), 2, 0)


def widened(table: BlockTable, num_kinds: int) -> BlockTable:
    """A table with a column for every kind of layer under every mode, between embedding and head.

    Columns of arrays that have a leading axis of modes hold, under every mode, what their own mode costs.
    """
    blocks = table.forward.shape[1]
    layers = np.arange(1, 1 + num_kinds)
    ends = np.arange(1 + num_kinds, blocks)
    column = np.concatenate([[0], np.tile(layers, len(RECOMPUTE)), ends])
    mode = np.repeat(np.arange(len(RECOMPUTE)), num_kinds)
    wide = {}
    for each in fields(table):
        values = getattr(table, each.name)
        if values.ndim > KEY_AXIS[each.name] + 1:
            values = values.take(column, axis=-1)
            if each.name in ("recompute", "saved", "working"):
                values = values.copy()
                inner = slice(1, 1 + len(mode))
                values[..., inner] = values[mode, :, np.arange(1, 1 + len(mode))].T
        wide[each.name] = values
    return BlockTable(**wide)


def narrowed(table: BlockTable, num_kinds: int, mode: int = NONE) -> BlockTable:
    """The table of which :func:`widened` made this one, its layers under one mode."""
    blocks = table.forward.shape[1]
    ends = np.arange(1 + len(RECOMPUTE) * num_kinds, blocks)
    column = np.concatenate([[0], 1 + mode * num_kinds + np.arange(num_kinds), ends])
    return replace(
        table,
        **{
            each.name: getattr(table, each.name).take(column, axis=-1)
            for each in fields(table)
            if getattr(table, each.name).ndim > KEY_AXIS[each.name] + 1
        },
    )
