"""Memory over time at the points that can bind, as room above the least that every node needs.

A time point matters only if the worst choice exceeds the limit there, and only if no later point has everything in use
that it has: of a run of starts, the last one before something ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.search.solver import timeline_loops as loops
from planner.search.solver.problem import Memory, offsets
from planner.units import Array, BoolArray, IntArray


class Timeline(NamedTuple):
    """Room at each point, and what each node's strategies take of it beyond the node's least."""

    room: Array
    """What all excess at a point may sum to; negative where no choice fits. Shape (t,)."""
    when: IntArray
    """Time of each point. Shape (t,)."""
    first: IntArray
    """First stretch of each node; stretches of a node do not overlap. Shape (n + 1,)."""
    lo: IntArray
    """First point of each stretch. Shape (z,)."""
    hi: IntArray
    """First point after it. Shape (z,)."""
    at: IntArray
    """Where the stretch's usages start: one a strategy. Shape (z + 1,)."""
    usages: Array
    """Usage of each strategy above the node's least in that stretch."""


def timeline_of(memory: Memory | None, sizes: IntArray) -> Timeline:
    """Stretches and room at the points that can bind.

    Args:
        memory: spans of the nodes, overlapping ones of a node allowed.
        sizes: strategies of each node.
    """
    if memory is None or not len(memory.nodes):
        return _empty(len(sizes))
    at = memory.starts(sizes)
    most = np.maximum.reduceat(memory.usages, at[:-1])
    least = np.minimum.reduceat(memory.usages, at[:-1])
    points = _last_starts(memory.lo, memory.hi, most > 0)
    lo, hi = np.searchsorted(points, memory.lo), np.searchsorted(points, memory.hi)
    same = most == least
    room = memory.limit - _profile(lo[same], hi[same], least[same], len(points))
    line = _stretches(memory, sizes, lo, hi, np.flatnonzero((hi > lo) & ~same))
    return _binding(line._replace(room=room, when=points), sizes)


def _empty(count: int) -> Timeline:
    none = np.zeros(0, dtype=np.int64)
    zeros = np.zeros(count + 1, dtype=np.int64)
    return Timeline(np.zeros(0), none, zeros, none, none, np.zeros(1, dtype=np.int64), np.zeros(0))


def _last_starts(lo: IntArray, hi: IntArray, used: BoolArray) -> IntArray:
    """Starts after which something ends before anything else starts."""
    live = used & (hi > lo)
    starts, ends = np.unique(lo[live]), np.unique(hi[live])
    following = np.append(starts[1:], np.iinfo(np.int64).max)
    ended = np.searchsorted(ends, following, side="right")
    return starts[ended > np.searchsorted(ends, starts, side="right")]


def _profile(lo: IntArray, hi: IntArray, used: Array, count: int) -> Array:
    hi = np.maximum(lo, hi)
    change = np.bincount(lo, used, count + 1) - np.bincount(hi, used, count + 1)
    return np.cumsum(change)[:-1]


def _stretches(
    memory: Memory, sizes: IntArray, lo: IntArray, hi: IntArray, live: IntArray
) -> Timeline:
    """Live spans as stretches that do not overlap within a node; room is left empty."""
    if not len(live):
        return _empty(len(sizes))
    span, sign = np.concatenate([live, live]), np.repeat([1, -1], len(live))
    time = np.concatenate([lo[live], hi[live]])
    by = np.lexsort((time, memory.nodes[span]))
    at, widest = memory.starts(sizes), int(sizes.max())
    node, begin, end, usages = loops.cut_stretches(
        memory.nodes[span][by], time[by], span[by], sign[by], at, memory.usages, widest
    )
    return Timeline(
        room=np.zeros(0),
        when=lo[:0],
        first=offsets(np.bincount(node, minlength=len(sizes))),
        lo=begin,
        hi=end,
        at=offsets(sizes[node]),
        usages=usages,
    )


def _binding(line: Timeline, sizes: IntArray) -> Timeline:
    """What every choice needs taken out of the room; points that cannot bind and idle stretches dropped."""
    if len(line.lo):
        least = np.minimum.reduceat(line.usages, line.at[:-1])
        most = np.maximum.reduceat(line.usages, line.at[:-1]) - least
        room = line.room - _profile(line.lo, line.hi, least, len(line.room))
        usages = line.usages - np.repeat(least, np.diff(line.at))
        keep = _profile(line.lo, line.hi, most, len(room)) > room
        line = line._replace(room=room, usages=usages)
    else:
        most, keep = np.zeros(0), line.room < 0
    line = _at_points(line, keep)
    line = _selected(line, (line.hi > line.lo) & (most > 0), sizes)
    return _lowest_of_equals(line)


def _at_points(line: Timeline, keep: BoolArray) -> Timeline:
    index = offsets(keep.astype(np.int64))
    return line._replace(
        room=line.room[keep], when=line.when[keep], lo=index[line.lo], hi=index[line.hi]
    )


def _selected(line: Timeline, keep: BoolArray, sizes: IntArray) -> Timeline:
    node = np.repeat(np.arange(len(sizes)), np.diff(line.first))[keep]
    return line._replace(
        first=offsets(np.bincount(node, minlength=len(sizes))),
        lo=line.lo[keep],
        hi=line.hi[keep],
        at=offsets(sizes[node]),
        usages=line.usages[np.repeat(keep, np.diff(line.at))],
    )


def _lowest_of_equals(line: Timeline) -> Timeline:
    """Of points in a row at which the same stretches are live, only the one with least room."""
    count = len(line.room)
    edge = np.zeros(count + 1, dtype=np.int64)
    edge[line.lo] = edge[line.hi] = 1
    group = np.cumsum(edge[:-1])
    by = np.lexsort((line.room, group))
    keep = np.zeros(count, dtype=bool)
    keep[by[np.diff(group[by], prepend=-1) != 0]] = True
    return _at_points(line, keep)
