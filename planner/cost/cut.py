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
    unit: int = 1
    """Layers of a chunk that run again together, its last ones fewer: only the input of the first of them is kept, and
    all of theirs is there while they run backwards. More than one only where all layers run again as a whole."""

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
    def groups(self) -> int:
        """How many columns a kind of layer has: one a mode, and one for layers behind the first of a unit."""
        return len(RECOMPUTE) + (self.unit > 1)

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
    blocks = np.asarray(blocks_of_cuts(model, layers, full, selective, pp, folded=folded)[0])
    if cut.unit == 1:
        return blocks
    kinds = len(model.blocks)
    behind = by_stage(_behind(model, cut), pp, folded=folded)
    blocks[..., 1 + FULL * kinds : 1 + (FULL + 1) * kinds] -= behind
    return np.insert(blocks, [1 + len(RECOMPUTE) * kinds] * kinds, behind, axis=-1)


def _behind(model: Model, cut: Cut) -> IntArray:
    """How many of each kind of layer stand behind the first of their unit; ``(chunks, kinds)``."""
    chunk = np.repeat(np.arange(len(cut.layers)), cut.layers)
    place = np.arange(model.num_layers) - (np.cumsum(cut.layers) - cut.layers)[chunk]
    found = np.zeros((len(cut.layers), len(model.blocks)), dtype=np.int64)
    np.add.at(found, (chunk, np.array(model.layers)), place % cut.unit > 0)
    return found


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


def widened(table: BlockTable, num_kinds: int, cut: Cut) -> BlockTable:
    """A table with a column for every kind of layer under every mode, between embedding and head.

    Columns of arrays that have a leading axis of modes hold, under every mode, what their own mode costs. Layers in
    units have one column more, for those behind the first of a unit, which keep nothing; what runs again for a unit is
    that of the longest one, as if all its layers were of the kind.
    """
    blocks = table.forward.shape[1]
    layers = np.arange(1, 1 + num_kinds)
    ends = np.arange(1 + num_kinds, blocks)
    column = np.concatenate([[0], np.tile(layers, cut.groups), ends])
    mode = np.repeat([*range(len(RECOMPUTE)), FULL][: cut.groups], num_kinds)
    others = min(cut.unit, int(cut.layers.max())) - 1
    wide = {}
    for each in fields(table):
        values = getattr(table, each.name)
        if values.ndim > KEY_AXIS[each.name] + 1:
            values = values.take(column, axis=-1)
            if each.name in ("recompute", "saved", "working"):
                values = values.copy()
                inner = slice(1, 1 + len(mode))
                values[..., inner] = values[mode, :, np.arange(1, 1 + len(mode))].T
            if each.name == "working" and others:
                values[..., inner] += others * table.saved[NONE][:, column[inner]]
            if each.name == "saved" and cut.unit > 1:
                values[..., 1 + len(RECOMPUTE) * num_kinds : inner.stop] = 0.0
        wide[each.name] = values
    return BlockTable(**wide)


def narrowed(table: BlockTable, num_kinds: int, cut: Cut) -> BlockTable:
    """The table of which :func:`widened` made this one, its layers under the mode that the ends have."""
    blocks = table.forward.shape[1]
    ends = np.arange(1 + cut.groups * num_kinds, blocks)
    column = np.concatenate([[0], 1 + cut.base * num_kinds + np.arange(num_kinds), ends])
    return replace(
        table,
        **{
            each.name: getattr(table, each.name).take(column, axis=-1)
            for each in fields(table)
            if getattr(table, each.name).ndim > KEY_AXIS[each.name] + 1
        },
    )
