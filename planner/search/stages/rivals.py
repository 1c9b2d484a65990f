"""How fast layouts are at best, however their layers stand on stages and whatever these compute again.

Two bounds that no division beats: that of the whole work, and that of the busiest stage when layers of the kind that
takes most are levelled over the stages, each with as little recompute as its memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.candidates import Candidates
from planner.cost.activations import held_at_least
from planner.cost.cut import NONE
from planner.cost.memory import memory_total
from planner.cost.orders import Schedule
from planner.cost.partition import block_counts
from planner.cost.prices import Prices, any_step_bound, block_seconds, jitter, mean_states
from planner.search.engine import SAME
from planner.units import Array, BoolArray, IntArray, unique

ROOM = 2
"""Layers of a stage beyond twice its share up to which loads are tabled; more count as any number."""
HALVINGS = 12
"""Steps of the search for the least makespan, which stays below it by a share of two to this power."""
OWN = (
    *(name for name in SAME if name != "recompute"),
    *("sharding", "shard_group", "sp", "order", "schedule", "operators"),
)
"""Columns that make a layout, whatever it recomputes."""


def least_steps(p: Prices, limit: float, best: float, modes: Sequence[int]) -> Array:
    """Lower bounds on the steps of layouts under any division into stages.

    Args:
        p: the layouts; their own recompute is that of the bound, where there is no other mode.
        limit: bytes, of the median, of every chip.
        best: seconds; bounds beyond are not told apart.
        modes: what layers may recompute instead, indices into ``RECOMPUTE``; none where layouts keep their own mode.

    Returns:
        Seconds, at most ``best``; ``(n,)``.

    Proof:
        The exposed gradients of the mean stage are counted as a share only, since recompute gives them room to hide.
    """
    bound = np.minimum(any_step_bound(p), best)
    once, update = mean_states(p)
    trainer = p.task.trainer
    rest = trainer.overlap.gradients * once + update + p.sends.ends + trainer.overhead.step
    for pp in unique(p.rows.pp[bound < best]):
        index = np.flatnonzero((p.rows.pp == pp) & (bound < best))
        part = p.take(index)
        reach = (best - rest[index]) / jitter(part)
        makespan = _levelled(part, int(pp), limit, reach, modes)
        bound[index] = np.maximum(bound[index], makespan * jitter(part) + rest[index])
    return np.minimum(bound, best)


def unlevelled(p: Prices) -> Array:
    """Seconds that schedules of several chunks a stage lose, as a rule, where those with the ends are the longest.

    Chunks of one round wait for the longest of them under every micro-batch. No bound: it says what to divide first.

    Shapes: ``(n,)``.
    """
    (forward, backward), counts = block_seconds(p), block_counts(p.task.model)
    seconds, kinds = forward + backward, len(p.task.model.blocks)
    layer = seconds[:, 1 : 1 + kinds].min(axis=1)
    mean = seconds @ counts / (p.rows.pp * p.rows.vpp)
    ends = seconds[:, 0], seconds[:, 1 + kinds :] @ counts[1 + kinds :]
    lost = sum(np.maximum(0.0, end + layer - mean) for end in ends)
    return np.asarray(np.where(p.rows.vpp > 1, p.micro_batches * lost, 0.0))


def _levelled(p: Prices, pp: int, limit: float, reach: Array, modes: Sequence[int]) -> Array:
    """Least makespans of layouts of pp stages, infinite beyond ``reach``; ``(n,)``."""
    model = p.task.model
    forward, backward = block_seconds(p)
    seconds = forward + backward
    counts = block_counts(model)
    kinds = len(model.blocks)
    kind = 1 + int((seconds[0] * counts)[1 : 1 + kinds].argmax())
    layers = int(counts[kind])
    sizes = np.arange(min(layers, 2 * -(-layers // pp) + ROOM) + 1)
    again = _recomputed(p, pp, kind, limit, modes, sizes)
    with np.errstate(invalid="ignore"):  # no layers of a stage that has no room for its ends
        own = sizes * (seconds[:, [kind]][..., None] + again)
    own[..., 0] = np.where(np.isinf(again[..., 0]), np.inf, 0.0)
    own[:, 0] += seconds[:, [0]]
    own[:, -1] += seconds[:, 1 + kinds :] @ counts[1 + kinds :, None]
    values = _paths(p, pp, own, seconds @ counts, seconds[:, 1 : 1 + kinds].min(axis=1))
    found = np.full(len(values), np.inf)
    rows = np.flatnonzero(_holds(values, reach, layers))
    values, high = values[rows], reach[rows]
    low = np.zeros(len(rows))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = _holds(values, middle, layers)
        high, low = np.where(holds, middle, high), np.where(holds, low, middle)
    found[rows] = low
    return found


def _holds(values: Array, reach: Array, layers: int) -> BoolArray:
    """Whether stages that take so long at most hold all layers; ``values`` ``(n, stages, sizes)``, else ``(n,)``."""
    held = (values <= reach[:, None, None]).sum(axis=-1) - 1
    held = np.where(held == values.shape[-1] - 1, layers, held)
    return np.asarray((held.sum(axis=1) >= layers) & (held.min(axis=1) >= 0))


def _paths(p: Prices, pp: int, own: Array, whole: Array, layer: Array) -> Array:
    """The longest path of a schedule that stays on a stage, of which no more is known than what that stage holds.

    1F1B: the first micro-batch through all stages and back, the others on this one, and what lies behind it
    (:mod:`planner.cost.bounds`); other schedules: all micro-batches on this stage.

    Args:
        p: the layouts.
        pp: stages.
        own: seconds of a micro-batch on a stage; ``(n, stages, sizes)``.
        whole: on all of them; ``(n,)``.
        layer: of the shortest layer; ``(n,)``.
    """
    m, stage = p.micro_batches[:, None, None], np.arange(pp)[:, None]
    plain = p.rows.schedule[:, None, None] == Schedule.ONE_F_ONE_B
    staying = m - pp + stage
    with np.errstate(invalid="ignore"):
        path = staying * own + (pp - 1 - stage) * layer[:, None, None]
    turned = whole[:, None, None] + 2.0 * (pp - 1) * p.sends.least[:, None, None]
    turned = np.where(np.isinf(own), np.inf, turned + np.where(staying > 0, path, 0.0))
    return np.where(plain, np.maximum(turned, m * own), m * own)


def _recomputed(
    p: Prices, pp: int, kind: int, limit: float, modes: Sequence[int], sizes: IntArray
) -> Array:
    """Least seconds a layer by which recompute lengthens stages that fit, infinite where none fits.

    Memory is convex in the number of layers, so that what a second layer adds bounds what each further one does.

    Shapes: ``(n, stages, sizes)``.
    """
    fixed, each = _memory(p, pp, kind)
    _, backward = block_seconds(p)
    savings, longer = [], []
    for mode in modes:
        other = replace(p, rows=replace(p.rows, recompute=np.full(len(p.rows), mode)))
        less, slope = _memory(other, pp, kind)
        fixed = np.minimum(fixed, less)
        savings.append(np.maximum(each - slope, 0.0)[..., None])
        extra = block_seconds(other)[1][:, kind] - backward[:, kind]
        longer.append(np.maximum(extra, 0.0)[:, None, None])
    count = np.maximum(sizes, 1)
    wanted = (fixed[..., None] + sizes * each[..., None] - limit) / count
    least = np.where(wanted <= 0.0, 0.0, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for saved, more in zip(savings, longer, strict=True):
            line = np.where((wanted <= saved) & (saved > 0.0), wanted * more / saved, np.inf)
            least = np.minimum(least, np.maximum(line, 0.0))
        for one in range(len(savings)):
            for two in range(len(savings)):
                low, high = savings[one], savings[two]
                slope = (longer[two] - longer[one]) / (high - low)
                line = longer[one] + (wanted - low) * slope
                inside = (low < high) & (wanted >= low) & (wanted <= high)
                least = np.minimum(least, np.where(inside, np.maximum(line, 0.0), np.inf))
    return least


def _memory(p: Prices, pp: int, kind: int) -> tuple[Array, Array]:
    """Bytes of every stage: what a first layer does not add, and what a second one adds; ``(n, stages)`` each."""
    model, stages = p.task.model, np.arange(pp)
    blocks = np.zeros((2, pp, len(block_counts(model))), dtype=np.int64)
    blocks[:, 0, 0] = 1
    blocks[:, -1, 1 + len(model.blocks) :] = block_counts(model)[1 + len(model.blocks) :]
    blocks[0, :, kind], blocks[1, :, kind] = 1, 2
    flat = np.broadcast_to(blocks.reshape(1, 2 * pp, -1), (len(p.rows), 2 * pp, blocks.shape[-1]))
    stage = np.broadcast_to(np.tile(stages, 2), (len(p.rows), 2 * pp))
    total = memory_total(p, flat, held_at_least(p, flat, stage))
    one, two = np.split(total, 2, axis=1)
    return 2.0 * one - two, two - one


def without_recompute(candidates: Candidates, full: IntArray) -> IntArray:
    """The rows that differ from these only in that nothing is recomputed, where there are such.

    Only what is kept in host memory stands behind recompute in a space: of rows that keep nothing there they are the
    last ones before with that mode.
    """
    light = (candidates.recompute == NONE) & (candidates.offload == 0)
    none = np.maximum.accumulate(np.where(light, np.arange(len(light)), -1))[full]
    full, none = full[none >= 0], none[none >= 0]
    before, after = candidates.take(none), candidates.take(full)
    same = before.recompute == NONE
    for name in OWN:
        same &= getattr(before, name) == getattr(after, name)
    return np.asarray(none[same])
