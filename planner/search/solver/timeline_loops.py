"""Compiled loops over stretches of memory."""

from __future__ import annotations

import numpy as np

from planner.search.solver.compiled import compiled
from planner.units import Array, BoolArray, IntArray


@compiled
def cut_stretches(
    node: IntArray,
    time: IntArray,
    span: IntArray,
    sign: IntArray,
    at: IntArray,
    used: Array,
    widest: int,
) -> tuple[IntArray, IntArray, IntArray, Array]:
    """Spans of each node cut at their ends and added up; equal neighbours joined, what takes nothing dropped.

    Args:
        node: of each event (a span begins or ends), sorted by node and time.
        time: of each event.
        span: that begins or ends.
        sign: 1 or -1.
        at: where each span's usages start.
        used: usages.
        widest: most strategies of a node.

    Returns:
        node, begin and end of each stretch, and their usages one after the other.
    """
    nodes = np.empty(len(node), dtype=np.int64)
    begin = np.empty(len(node), dtype=np.int64)
    end = np.empty(len(node), dtype=np.int64)
    size = 0
    for e in range(len(node)):
        size += at[span[e] + 1] - at[span[e]]
    usages = np.empty(size)
    now = np.zeros(widest)
    count, filled, live = 0, 0, 0
    for e in range(len(node)):
        if e == 0 or node[e] != node[e - 1]:
            for p in range(widest):
                now[p] = 0.0
            live = 0
        k = at[span[e] + 1] - at[span[e]]
        live += sign[e]
        for p in range(k):
            now[p] = now[p] + sign[e] * used[at[span[e]] + p] if live > 0 else 0.0
        if live == 0 or e + 1 == len(node) or time[e + 1] == time[e]:
            continue
        some = False
        same = count > 0 and nodes[count - 1] == node[e] and end[count - 1] == time[e]
        for p in range(k):
            some = some or now[p] > 0.0
            if same and usages[filled - k + p] != now[p]:
                same = False
        if not some:
            continue
        if same:
            end[count - 1] = time[e + 1]
            continue
        nodes[count], begin[count], end[count] = node[e], time[e], time[e + 1]
        for p in range(k):
            usages[filled + p] = now[p]
        count += 1
        filled += k
    return nodes[:count], begin[:count], end[:count], usages[:filled]


@compiled
def mark_too_large(
    start: IntArray,
    first: IntArray,
    lo: IntArray,
    hi: IntArray,
    at: IntArray,
    usages: Array,
    room: Array,
    dead: BoolArray,
) -> None:
    """Marks strategies that need more than the room at some point; the rest as in `Timeline`."""
    for i in range(len(first) - 1):
        for z in range(first[i], first[i + 1]):
            low = room[lo[z]]
            for t in range(lo[z], hi[z]):
                low = room[t] if room[t] < low else low
            for p in range(start[i + 1] - start[i]):
                if usages[at[z] + p] > low:
                    dead[start[i] + p] = True
