"""Where a mesh axis lies on the levels of the network.

Here and only here chips have numbers: consecutive chips share the innermost level for as long as it lasts, and
a mesh axis of some size and stride takes every stride-th of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.units import IntArray


def members(size: int | IntArray, stride: int | IntArray, groups: Sequence[int]) -> IntArray:
    """How an axis spreads over the levels: members inside one group of each level beyond the level inside it.

    A collective over the axis is then one stage a level: among neighbours in the innermost group first, last
    among the parts that only the outermost level joins. Where blocks of the axis straddle groups the count is
    that of the largest blocks that never do, so the outer share is never understated.

    Args:
        size: ranks along the axis.
        stride: chips from one rank to the next.
        groups: chips in one group of each level, innermost first, each a multiple of the one before, 0 where a
            group holds all chips (:attr:`planner.hardware.cluster.Cluster.groups`). The outermost always takes
            what is left.

    Returns:
        Counts of at least 1 whose product over the levels is ``size``.

    Shapes: ``(levels, *broadcast of size and stride)``.

    >>> members(16, 1, (8, 0)).tolist(), members(4, 4, (8, 0)).tolist(), members(64, 1, (72, 0)).tolist()
    ([8, 2], [2, 2], [8, 8])
    """
    size, stride = np.broadcast_arrays(np.asarray(size, np.int64), np.asarray(stride, np.int64))
    inside = np.empty((len(groups), *size.shape), np.int64)
    for level, chips in enumerate(groups):
        fits = chips % stride == 0
        inside[level] = np.where(fits, np.gcd(chips // stride, size), 1)
    inside[-1] = size
    inside[1:] //= inside[:-1].copy()
    return inside
