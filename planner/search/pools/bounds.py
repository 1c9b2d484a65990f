"""What no placing of a layout's stages on pools can beat.

Let T_k be the seconds of one micro-batch through the whole model on pool k, S_k its stages, and 1/H the sum of
S_k / T_k: H is the time of a stage where all are busy alike and layers can be cut at will. Layers differ in how much
faster they are on one pool than on another; with r the sum over layers of the least t_k / T_k, at most 1, any
combination of stage times with coefficients a_k on stages of pool k is at least the least a_k T_k times r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.partition import block_counts
from planner.cost.prices import Prices, block_seconds
from planner.hardware.cluster import Level
from planner.search.pools.place import linked
from planner.units import Array, IntArray

HALVINGS = 40
"""Steps of the search for the least time that whole layers allow."""


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """How fast layouts run on every pool; arrays ``(pools, n)`` unless said otherwise."""

    whole: Array
    """Seconds of one micro-batch through the model, nothing recomputed but what the layout says."""
    layer: Array
    """Seconds of the shortest layer."""
    after: Array
    """Least seconds of gradients and optimizer of all parameters, dense and of experts; ``(2, pools, n)``."""
    alike: Array
    """Share of ``whole`` that counts where layers differ in how much faster a pool runs them; ``(n,)``."""
    micro_batches: IntArray
    """``(n,)``."""
    chunks: IntArray
    """Chunks of a stage; ``(n,)``."""
    chips: IntArray
    """Chips of a stage; ``(n,)``."""
    ends: Array
    """Least seconds between the first and the last stage, on different pools, for tables that both have; ``(n,)``."""

    def repeat(self, index: int, count: int) -> Speeds:
        """One of the layouts so many times."""
        some = np.full(count, index)
        return Speeds(
            self.whole[:, some],
            self.layer[:, some],
            self.after[:, :, some],
            self.alike[some],
            self.micro_batches[some],
            self.chunks[some],
            self.chips[some],
            self.ends[some],
        )


def speeds(parts: Sequence[Prices], link: Level) -> Speeds:
    """Speeds of the same layouts priced on every pool; ``link`` is what lies between pools."""
    model = parts[0].task.model
    counts = block_counts(model)
    kinds = slice(1, 1 + len(model.blocks))
    seconds = np.stack([np.add(*block_seconds(part)) for part in parts])
    whole = np.asarray(seconds @ counts, dtype=np.float64)
    rows = parts[0].rows
    return Speeds(
        whole=whole,
        layer=seconds[..., kinds].min(axis=-1),
        after=np.stack([_after(part, counts) for part in parts], axis=1),
        alike=((seconds / whole[..., None]).min(axis=0) * counts).sum(axis=-1),
        micro_batches=parts[0].micro_batches,
        chunks=rows.vpp,
        chips=rows.dp * rows.cp * rows.tp,
        ends=np.sort([linked(part, link).ends for part in parts], axis=0)[1],
    )


def _after(part: Prices, counts: IntArray) -> Array:
    """Exposed share of gradients, and the optimizer, for all parameters, dense and of experts; ``(2, n)``."""
    held = np.stack([part.dense @ counts, part.table.expert[part.key] @ counts])
    share = part.task.trainer.overlap.gradients
    return np.asarray(part.each(share * part.states.once + part.states.update) * held)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a step takes beside its schedule."""

    overhead: float
    """Seconds a step."""
    jitter: float
    """Share by which a pipeline is slower than its parts."""
    layers: int
    """Layers of the model."""


def step_bounds(found: Speeds, stages: IntArray, beside: Beside, *, at_most: bool = False) -> Array:
    """Seconds of a step that no placing with these stages beats.

    The busiest stage takes H r or more, and repeats it for every micro-batch. With one chunk a stage, m > p and every
    T_k at most half the result, the paths of 1F1B (:func:`planner.cost.bounds.lower_bound`) combine to (m + p - 1) H r:
    weights x_i with x_i (m-p+i) + sum of x_j over j < i = (m+p-1) H / T_i - 1 give the stages of pool k the coefficient
    (m+p-1) H / T_k and sum to 1, as the products of (m-p+i-1) / (m-p+i) telescope; none is negative, as the sum stays
    below 1. Gradients and optimizer are convex in a stage's parameters.

    Args:
        found: speeds of the layouts.
        stages: of every pool; ``(pools, n)``.
        beside: what a step takes besides.
        at_most: pools may have fewer stages than these too.

    Shapes: ``(n,)``.
    """
    used = stages > 0
    number = stages.sum(axis=0)
    even = _even(stages, found.whole)
    m = found.micro_batches
    makespan = m * np.maximum(even * found.alike, whole_layers(found.layer, stages, beside.layers))
    if not at_most:
        slowest = np.where(used, found.whole, 0.0).max(axis=0)
        filled = (m + number - 1) * even
        holds = (m > number) & (filled >= 2 * slowest) & (found.chunks == 1)
        makespan = np.maximum(makespan, np.where(holds, filled * found.alike, 0.0))
    least = np.where(used, found.whole, np.inf).min(axis=0)
    makespan = np.maximum(makespan, least * found.alike)
    after = np.max([_even(stages, np.maximum(part, 1e-30)) for part in found.after], axis=0)
    after = after + found.ends + beside.overhead
    return np.asarray(makespan * (1.0 + beside.jitter) + after)


def _even(stages: IntArray, whole: Array) -> Array:
    """What each stage takes where all take the same; ``(n,)``."""
    return np.asarray(1.0 / np.where(stages > 0, stages / whole, 0.0).sum(axis=0))


def whole_layers(layer: Array, stages: IntArray, num_layers: int) -> Array:
    """Seconds of the busiest stage for one micro-batch where layers cannot be cut: the least that holds them all.

    Shapes: ``(pools, n)``; result ``(n,)``.
    """
    fastest = np.where(stages > 0, layer, np.inf).min(axis=0)
    low, high = np.zeros_like(fastest), fastest * num_layers
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        few = (stages * np.floor(middle / layer * (1 + 1e-12))).sum(axis=0) < num_layers
        low, high = np.where(few, middle, low), np.where(few, high, middle)
    return np.asarray(low)
