"""What every stage may hold, from prices: for each run of layers the fastest recompute that fits.

A stage is never faster for recomputing more, and neither is the schedule: so each stage alone takes the least seconds
backwards that its memory allows, and only the cut is left to search.
"""

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


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """For some runs of layers every way to recompute them: the first ones as a whole, the next in part."""

    run: IntArray
    """Which run of layers a choice is of; ``(choices,)``."""
    full: IntArray
    selective: IntArray
    blocks: IntArray
    """How many of each block, columns as in a widened table; ``(choices, blocks)``."""


def choices(
    runs: Sequence[tuple[int, ...]],
    kinds: int,
    ends: int,
    allowed: Sequence[int],
    whole: Sequence[int] | None = None,
) -> Choices:
    """Every way to recompute runs of layers.

    Args:
        runs: kinds of the layers of every run, in the order in which they are chosen to be recomputed.
        kinds: number of kinds.
        ends: columns of blocks behind the layers.
        allowed: modes of recompute that layers may have, indices into ``RECOMPUTE``.
        whole: how many layers of every run are recomputed as a whole; None where runs are free.
    """
    parts = []
    width = 1 + len(RECOMPUTE) * kinds + ends
    for number, run in enumerate(runs):
        size = len(run)
        counts, none = np.arange(size + 1), np.zeros(1, np.int64)
        ways = counts if FULL in allowed else none
        full, selective = (
            part.ravel()
            for part in np.meshgrid(
                ways if whole is None else ways[ways == whole[number]],
                counts if SELECTIVE in allowed else none,
                indexing="ij",
            )
        )
        keeps = full + selective <= size
        keeps &= (full + selective == size) | (NONE in allowed)
        full, selective = full[keeps], selective[keeps]
        sums = np.zeros((size + 1, kinds), dtype=np.int64)
        sums[1:] = np.cumsum(np.eye(kinds, dtype=np.int64)[list(run)], axis=0)
        blocks = np.zeros((len(full), width), dtype=np.int64)
        last = sums[full + selective]
        for mode, counts in (
            (FULL, sums[full]),
            (SELECTIVE, last - sums[full]),
            (NONE, sums[size] - last),
        ):
            blocks[:, 1 + mode * kinds : 1 + (mode + 1) * kinds] = counts
        parts.append((np.full(len(full), number), full, selective, blocks))
    return Choices(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """Choices on every stage; arrays ``(stages, choices)``."""

    forward: Array
    """Seconds of one micro-batch."""
    backward: Array
    weight: Array
    after: Array
    """Of gradients and the optimizer, once a step."""
    fits: BoolArray


def priced(p: Prices, found: Choices, flying: Array, limit: float | Array) -> Priced:
    """Seconds of all choices on all stages of a single candidate, and whether they fit.

    Args:
        p: the candidate, its table widened.
        found: the choices.
        flying: micro-batches whose activations each stage holds; ``(stages,)``.
        limit: bytes, of the median; of all stages or of each.
    """
    if p.mix is not None:
        each = [priced(part, found, flying, limit) for part in p.mix.parts]
        slow = {n: p.mix.slowest([getattr(one, n)[None] for one in each])[0] for n in TIMES}
        full = p.mix.slowest([(~one.fits[None]).astype(np.float64) for one in each])[0]
        return Priced(**slow, fits=full == 0)
    stages = len(flying)
    blocks = np.repeat(found.blocks[None], stages, axis=0)
    blocks[0, :, 0] = 1
    blocks[-1, :, -1] = 1
    if p.task.model.mtp:
        blocks[-1, :, -2] = len(p.task.model.mtp)
    flat = blocks.reshape(1, -1, blocks.shape[-1])
    memory = memory_total(p, flat, np.repeat(flying, len(found.run))[None]).reshape(stages, -1)
    forward, backward = block_seconds(p)
    there, back = blocks @ forward[0], blocks @ backward[0]
    return Priced(
        forward=there,
        backward=back,
        after=after_seconds(p, blocks, there + back),
        weight=blocks @ weight_seconds(p)[0],
        fits=memory <= np.reshape(limit, (-1, 1)),
    )


def fastest(found: Choices, known: Priced, count: IntArray | None = None) -> IntArray:
    """For every stage and run the choice that is fastest backwards and fits; -1 where none does.

    Args:
        found: the choices.
        known: their prices.
        count: layers of every run that are recomputed as a whole; None where runs are free.

    Shapes: ``(stages, runs)``.
    """
    allowed = known.fits
    runs = int(found.run.max()) + 1
    if count is not None:
        allowed = allowed & (found.full == count[found.run]) & (found.selective == 0)
    seconds = np.where(allowed, known.backward, np.inf)
    starts = np.searchsorted(found.run, np.arange(runs))
    best = np.minimum.reduceat(seconds, starts, axis=1)
    hit = seconds == best[:, found.run]
    place = np.where(hit & allowed, np.arange(len(found.run)), len(found.run))
    first = np.minimum.reduceat(place, starts, axis=1)
    return np.where(np.isinf(best), -1, first)
