"""Runs of layers that stages may hold, and what they cost, whatever their layers recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from planner.candidates import RECOMPUTE
from planner.cost.cut import FULL, NONE, SELECTIVE
from planner.cost.memory import memory_total
from planner.cost.prices import Prices, after_seconds, block_seconds, weight_seconds
from planner.units import Array, BoolArray, IntArray

TIMES = ("forward", "backward", "weight", "after")
Mixing: TypeAlias = Literal["alike", "count", "stages"]
"""How layers may differ in what they recompute: not at all; every chunk the same number as a whole; by stage."""


class Held:
    """Runs of layers, each in the order in which its layers are recomputed."""

    def __init__(self, runs: Sequence[tuple[int, ...]], kinds: int) -> None:
        """Counts the kinds of layers in every beginning of runs, given by their layers' kinds."""
        self.length = np.array([len(run) for run in runs], dtype=np.int64)
        longest = int(self.length.max())
        self.sums = np.zeros((len(runs), longest + 1, kinds), dtype=np.int64)
        for sums, run in zip(self.sums, runs, strict=True):
            np.cumsum(np.eye(kinds, dtype=np.int64)[list(run)], axis=0, out=sums[1 : len(run) + 1])
            sums[len(run) + 1 :] = sums[len(run)]
        self.later = np.full((len(runs), longest + 1, kinds), longest + 1)
        """Where the first layer of each kind stands that is not before a place; ``(runs, places, kinds)``."""
        for place in reversed(range(longest)):
            there = self.sums[:, place + 1] > self.sums[:, place]
            self.later[:, place] = np.where(there, place, self.later[:, place + 1])

    def blocks(self, run: IntArray, full: IntArray, selective: IntArray, ends: int) -> IntArray:
        """How many of each block, columns as in a widened table.

        Args:
            run: which of the runs.
            full: how many of its layers, from the first on, run again as a whole.
            selective: how many of those that follow run again in part.
            ends: columns of blocks behind the layers.

        Shapes: what broadcasts together, and then ``(..., blocks)``.
        """
        whole, part = self.sums[run, full], self.sums[run, full + selective]
        parts = {
            FULL: whole,
            SELECTIVE: part - whole,
            NONE: self.sums[run, self.length[run]] - part,
        }
        kinds = whole.shape[-1]
        table = np.zeros((*part.shape[:-1], 1 + len(RECOMPUTE) * kinds + ends), dtype=np.int64)
        for mode, counts in parts.items():
            table[..., 1 + mode * kinds : 1 + (mode + 1) * kinds] = counts
        return table

    def spans(self, run: IntArray, first: IntArray) -> tuple[IntArray, IntArray]:
        """Counts of layers from a place on, least and most, between which no further kind of layer joins them.

        Args:
            run: which of the runs; ``(n,)``.
            first: places in them; ``(..., n)``.

        Shapes: ``(spans, ..., n)`` each; a span without counts has its most below its least.
        """
        joins = np.moveaxis(np.sort(self.later[run, first], axis=-1), -1, 0) - first + 1
        left = self.length[run] - first
        least = np.concatenate([np.zeros((1, *first.shape), np.int64), joins])
        return least, np.minimum(np.concatenate([joins - 1, left[None]]), left)


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """What runs cost on every stage; arrays ``(stages, n)``."""

    forward: Array
    """Seconds of one micro-batch."""
    backward: Array
    weight: Array
    after: Array
    """Of gradients and the optimizer, once a step."""
    fits: BoolArray

    def split(self, num: int) -> Priced:
        """The same of so many equal parts; arrays ``(parts, stages, n / parts)``."""
        times = {name: np.stack(np.split(getattr(self, name), num, axis=1)) for name in TIMES}
        return Priced(**times, fits=np.stack(np.split(self.fits, num, axis=1)))


def priced(p: Prices, blocks: IntArray, flying: Array, limit: float | Array) -> Priced:
    """Seconds of what stages of a single candidate may hold, and whether it fits.

    Args:
        p: the candidate, its table widened.
        blocks: how many of each block beside embedding and head; ``(stages, n, blocks)``.
        flying: micro-batches whose activations each stage holds; ``(stages,)``.
        limit: bytes, of the median; of all stages or of each.
    """
    if p.mix is not None:
        each = [priced(part, blocks, flying, limit) for part in p.mix.parts]
        slow = {n: p.mix.slowest([getattr(one, n)[None] for one in each])[0] for n in TIMES}
        full = p.mix.slowest([(~one.fits[None]).astype(np.float64) for one in each])[0]
        return Priced(**slow, fits=full == 0)
    blocks = _with_ends(p, blocks)
    forward, backward = block_seconds(p)
    there, back = blocks @ forward[0], blocks @ backward[0]
    return Priced(
        forward=there,
        backward=back,
        after=after_seconds(p, blocks, there + back),
        weight=blocks @ weight_seconds(p)[0],
        fits=_fit(p, blocks, flying, limit),
    )


def fit(p: Prices, blocks: IntArray, flying: Array, limit: float | Array) -> BoolArray:
    """Whether what stages may hold fits, as :func:`priced` has it; ``(stages, n)``."""
    if p.mix is not None:
        each = [~fit(part, blocks, flying, limit) for part in p.mix.parts]
        return np.asarray(p.mix.slowest([one[None].astype(np.float64) for one in each])[0] == 0)
    return _fit(p, _with_ends(p, blocks), flying, limit)


def _with_ends(p: Prices, blocks: IntArray) -> IntArray:
    """The same with the embedding on the first stage, and what ends the model on the last."""
    blocks[0, :, 0] = 1
    blocks[-1, :, -1] = 1
    if p.task.model.mtp:
        blocks[-1, :, -2] = len(p.task.model.mtp)
    return blocks


def _fit(p: Prices, blocks: IntArray, flying: Array, limit: float | Array) -> BoolArray:
    stages, number, width = blocks.shape
    flat = blocks.reshape(1, -1, width)
    memory = memory_total(p, flat, np.repeat(flying, number)[None]).reshape(stages, -1)
    return np.asarray(memory <= np.reshape(limit, (-1, 1)))
