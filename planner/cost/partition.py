"""Which layers stand on which pipeline stage: the even cut."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.graph.model import Model
from planner.graph.operator import Block
from planner.units import IntArray


def distinct_blocks(model: Model) -> tuple[Block, ...]:
    """Embedding, layer kinds, multi-token-prediction module if any, head: the columns of every table of blocks."""
    return (model.embedding, *model.blocks, *model.mtp[:1], model.head)


def block_counts(model: Model) -> IntArray:
    """How often each distinct block occurs in the model; shape ``(blocks,)``."""
    layers = np.bincount(model.layers, minlength=len(model.blocks))
    return np.array([1, *layers, *([len(model.mtp)] if model.mtp else []), 1], dtype=np.int64)


def by_stage(chunks: IntArray, pp: int, *, folded: bool) -> IntArray:
    """What is listed chunk by chunk of the model, by stage: chunks go round the stages, or down and back up in a V.

    Shapes: ``(chunks, ...)`` to ``(pp, vpp, ...)``.
    """
    rows = chunks.reshape(-1, pp, *chunks.shape[1:])
    if folded:
        rows = np.stack([row[::-1] if turn % 2 else row for turn, row in enumerate(rows)])
    return np.swapaxes(rows, 0, 1)


def even_cut(num_layers: int, pp: int, vpp: int, last: int | None = None) -> IntArray:
    """Layers of every chunk of the model, as equal as they can be.

    Where layers are left over,
    the chunks in the middle take one more each, later ones first (they hold fewer micro-batches), then the first; the
    last chunk, which has the head, takes none. Where ``last`` is given it holds so many and the others share the rest.

    Shapes: ``(pp · vpp,)``.

    >>> even_cut(61, 4, 1).tolist(), even_cut(126, 16, 1).tolist()[::15]
    ([15, 15, 16, 15], [7, 7])
    """
    chunks = pp * vpp
    if last is not None and chunks > 1:
        return np.append(even_cut(num_layers - last, chunks - 1, 1), last)
    base, extra = divmod(num_layers, chunks)
    counts = np.full(chunks, base, dtype=np.int64)
    wish = [*range(chunks - 2, 0, -1), 0, chunks - 1]
    counts[wish[:extra]] += 1
    return counts


@lru_cache(maxsize=4096)
def stage_blocks(
    layers: tuple[int, ...],
    num_kinds: int,
    mtp: int,
    pp: int,
    vpp: int,
    *,
    folded: bool,
    last: int | None = None,
) -> IntArray:
    """How many of each distinct block stand in every chunk of every stage.

    Args:
        layers: block index of every layer.
        num_kinds: number of layer kinds.
        mtp: number of multi-token-prediction modules (on the last chunk).
        pp: stages.
        vpp: chunks a stage.
        folded: whether chunks stand in a V.
        last: layers of the last chunk where they are not as many as the others have.

    Shapes: ``(pp, vpp, blocks)``; columns as in :func:`distinct_blocks`.
    """
    cut = even_cut(len(layers), pp, vpp, last)
    ends = np.concatenate([[0], np.cumsum(cut)])
    kinds = np.zeros((len(layers) + 1, num_kinds), dtype=np.int64)
    kinds[1:] = np.cumsum(np.eye(num_kinds, dtype=np.int64)[list(layers)], axis=0)
    per_chunk = kinds[ends[1:]] - kinds[ends[:-1]]
    table = np.zeros((pp * vpp, num_kinds + 2 + (mtp > 0)), dtype=np.int64)
    table[:, 1 : 1 + num_kinds] = per_chunk
    table[0, 0] = table[-1, -1] = 1
    if mtp:
        table[-1, -2] = mtp
    return by_stage(table, pp, folded=folded)


def stages_of(
    model: Model, pp: int, vpp: int, *, folded: bool, last: int | None = None
) -> IntArray:
    """:func:`stage_blocks` of a model."""
    kinds, modules = len(model.blocks), len(model.mtp)
    return stage_blocks(model.layers, kinds, modules, pp, vpp, folded=folded, last=last)
