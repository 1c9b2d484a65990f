"""The path that stays on one stage, bounded over all cuts at once."""

from __future__ import annotations

import numpy as np

from planner.search.stages.table import EQUAL, StageTable
from planner.units import Array, IntArray

LABELS = 32
"""Sums and paths of beginnings that are told apart, at most, where they end at the same layer."""
WORK = 1 << 23
"""Beginnings and runs that are joined in all, about; where stages, layers and runs are many, fewer are told apart."""


def staying_bound(table: StageTable, found: float) -> float:
    """Least ``W + max over i of (m - p + i) w_i + sum of w_j and sends for j > i`` over all cuts, at most ``found``.

    Only stages that run a backward between two forwards have such a path: ``i > p - m``.

    Runs of layers are joined stage by stage; what is kept of each is the sum so far and the longest path so far, if no
    other is better in both and the rest could still stay below ``found``.
    """
    p, m, pairs = table.num_stages, table.micro_batches, table.pairs
    layers = table.num_layers
    rest, sizes = _rests(table), table.sizes
    seconds = table.forward + table.backward
    labels = min(LABELS, 1 + WORK // (p * layers * len(sizes)))
    end, total, path = np.zeros(1, np.int64), np.zeros(1), np.full(1, -np.inf)
    for stage in range(p):
        times, left = m - p + stage, pairs[stage + 1 :].sum()
        high, own = end[:, None] + sizes, seconds[stage, table.kind[end]]
        behind = 2.0 * rest[stage + 1][np.minimum(high, layers)]
        stays = total[:, None] + (1 + times) * own if times > 0 else np.full_like(own, -np.inf)
        with np.errstate(invalid="ignore"):
            longest = np.maximum(path[:, None] + 2.0 * own + pairs[stage], stays)
        open_ = (high <= layers) & np.isfinite(own)
        open_ &= longest < found * (1.0 - EQUAL) - left - behind
        total = (total[:, None] + own)[open_]
        end, total, path = _undominated(high[open_], total, longest[open_], labels)
    return float(path[end == layers].min(initial=found))


def _rests(table: StageTable) -> Array:
    """Least seconds of the stages from each on, by the first layer that is left; ``(stages + 1, layers + 1)``."""
    p, layers = table.num_stages, table.num_layers
    seconds = table.forward + table.backward
    rest = np.full((p + 1, layers + 1), np.inf)
    rest[p, layers] = 0.0
    for stage in reversed(range(p)):
        for place, size in enumerate(table.sizes):
            last = max(0, layers + 1 - size)
            own = seconds[stage, table.kind[:last], place]
            found = own + rest[stage + 1, size : size + last]
            np.minimum(rest[stage, :last], found, out=rest[stage, :last])
    return rest


def _undominated(
    end: IntArray, total: Array, path: Array, labels: int
) -> tuple[IntArray, Array, Array]:
    """Those for which no other of the same end is smaller in both, by their ends; ``(n,)`` each.

    Where these are more than so many, neighbours become what is less in each.
    """
    order = np.lexsort((path, total, end))
    end, total, path = end[order], total[order], path[order]
    row, place, count = _places(end)
    table = np.full((len(count), int(count.max(initial=0)) + 1), np.inf)
    table[row, place + 1] = path
    kept = path < np.minimum.accumulate(table, axis=1)[row, place]
    kept |= place == 0
    end, total, path = end[kept], total[kept], path[kept]
    row, place, count = _places(end)
    each = -(-count // labels)[row]
    first, last = place % each == 0, (place % each == each - 1) | (place == count[row] - 1)
    return end[first], total[first], path[last]


def _places(end: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Of ascending numbers: which distinct one each is, its place among its equals, and how many are equal."""
    starts = np.flatnonzero(np.append(True, end[1:] != end[:-1])[: len(end)])
    count = np.diff(np.append(starts, len(end)))
    row = np.repeat(np.arange(len(starts)), count)
    return row, np.arange(len(end)) - starts[row], count
