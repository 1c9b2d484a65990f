"""Compiled large-neighbourhood search: random forests of nodes, each solved exactly by elimination.

A forest is grown so that every node joins by one edge only; all other nodes stay as they are, so dynamic programming
on the forest is exact. Memory is a price inside and a hard limit outside: a move that does not fit is not made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.search.solver.compiled import compiled
from planner.search.solver.graph import Graph
from planner.search.solver.timeline import Timeline
from planner.units import Array, IntArray

BLOCK = 64
"""Time points of one block, of which the least room is kept."""


class Left(NamedTuple):
    """Room left at every point, in blocks: the room of a point is `room` plus its block's `lazy`."""

    room: Array
    """Room without what is lazy. Shape (t,)."""
    low: Array
    """Least `room` of each block. Shape (blocks,)."""
    lazy: Array
    """What is to be added to a whole block. Shape (blocks,)."""


@compiled
def least_left(left: Left, a: int, b: int) -> float:
    """Least room in [a, b)."""
    low = np.inf
    t = a
    while t < b:
        block = t // BLOCK
        stop = (block + 1) * BLOCK
        if t == block * BLOCK and stop <= b:
            part = left.low[block]
        else:
            stop = stop if stop < b else b
            part = np.inf
            for u in range(t, stop):
                part = left.room[u] if left.room[u] < part else part
        part += left.lazy[block]
        low = part if part < low else low
        t = stop
    return low


@compiled
def give(left: Left, a: int, b: int, amount: float) -> None:
    """Adds to the room in [a, b)."""
    t = a
    while t < b:
        block = t // BLOCK
        stop = (block + 1) * BLOCK
        if t == block * BLOCK and stop <= b:
            left.lazy[block] += amount
        else:
            end = stop if stop < len(left.room) else len(left.room)
            stop = stop if stop < b else b
            for u in range(t, stop):
                left.room[u] += amount
            low = np.inf
            for u in range(block * BLOCK, end):
                low = left.room[u] if left.room[u] < low else low
            left.low[block] = low
        t = stop


@compiled
def give_back(line: Timeline, left: Left, i: int, s: int, sign: float) -> None:
    """Node i's strategy s leaves the timeline (sign 1) or enters it (sign -1)."""
    for z in range(line.first[i], line.first[i + 1]):
        used = line.usages[line.at[z] + s]
        if used != 0.0:
            give(left, line.lo[z], line.hi[z], sign * used)


@compiled
def forbid_unfit(line: Timeline, left: Left, i: int, k: int, values: Array, begin: int) -> None:
    """Sets to inf what strategies of node i would not fit."""
    for z in range(line.first[i], line.first[i + 1]):
        low = least_left(left, line.lo[z], line.hi[z])
        for p in range(k):
            if line.usages[line.at[z] + p] > low:
                values[begin + p] = np.inf


@compiled
def thriftiest(line: Timeline, i: int, k: int) -> int:
    """Strategy of node i that takes the least room over all time."""
    best, least = 0, np.inf
    for p in range(k):
        total = 0.0
        for z in range(line.first[i], line.first[i + 1]):
            total += line.usages[line.at[z] + p] * (line.hi[z] - line.lo[z])
        if total < least:
            best, least = p, total
    return best


@compiled
def decode(
    g: Graph,
    tables: Array,
    line: Timeline,
    left: Left,
    theta: Array,
    messages: Array,
    x: IntArray,
    here: Array,
) -> bool:
    """A choice node by node, at priced costs and with the messages of later nodes; whether memory holds."""
    fits = True
    for i in range(len(g.start) - 1):
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        for p in range(k):
            here[p] = theta[s + p]
        for a in range(g.adj[i], g.adj[i + 1]):
            o = g.other[a]
            row = g.other_rows[a] + x[o] * k
            for p in range(k):
                here[p] += tables[row + p] if o < i else min(messages[g.arrives[a] + p], 1e300)
        forbid_unfit(line, left, i, k, here, 0)
        best = 0
        for p in range(1, k):
            if here[p] < here[best]:
                best = p
        if here[best] == np.inf:
            fits = False
            best = thriftiest(line, i, k)
        x[i] = best
        give_back(line, left, i, best, -1.0)
    return fits


@compiled
def random(state: IntArray) -> int:
    """Next of a xorshift sequence, not negative."""
    z = state[0]
    z ^= z << 13
    z ^= (z >> 7) & 0x1FFFFFFFFFFFFFF
    z ^= z << 17
    state[0] = z
    positive: int = z & 0x7FFFFFFFFFFFFFFF
    return positive


class Work(NamedTuple):
    """Arrays that the search writes in; one an instance, used again by every move."""

    mark: IntArray
    """Stamp of the move whose forest each node was in last. Shape (n,)."""
    parent: IntArray
    """Node through which it joined, or -1. Shape (n,)."""
    arc: IntArray
    """Its arc to that node. Shape (n,)."""
    order: IntArray
    """Nodes of the forest, parents first."""
    plain: Array
    """Cost of strategies, neighbours outside the forest included; unpriced. One entry a strategy."""
    value: Array
    """The same priced, with all that hangs below. One entry a strategy."""
    best: IntArray
    """Best strategy of a node for each of its parent's. One entry a message."""
    fresh: IntArray
    """Choice of the forest's nodes. Shape (n,)."""
    state: IntArray
    """Random state and stamp. Shape (2,)."""


@compiled
def only_link(g: Graph, mark: IntArray, stamp: int, o: int) -> int:
    """The one arc from node o into the forest; -1 if there is none, -2 if there are more."""
    link = -1
    for a in range(g.adj[o], g.adj[o + 1]):
        if mark[g.other[a]] == stamp:
            if link >= 0:
                return -2
            link = a
    return link


@compiled
def grow(g: Graph, w: Work, seeds: IntArray, size: int, trees: int, window: int) -> int:
    """Grows a forest of some trees near each other; returns how many nodes it has."""
    w.state[1] += 1
    stamp = w.state[1]
    count = 0
    home = random(w.state) % len(seeds)
    for tree in range(trees):
        at = home
        if tree > 0:
            at = min(max(home + random(w.state) % (2 * window + 1) - window, 0), len(seeds) - 1)
        root = seeds[at]
        if w.mark[root] == stamp or only_link(g, w.mark, stamp, root) != -1:
            continue
        w.mark[root], w.parent[root], w.order[count] = stamp, -1, root
        head, count = count, count + 1
        most = head + size
        while head < count and count < most:
            v = w.order[head]
            head += 1
            begin, degree = g.adj[v], g.adj[v + 1] - g.adj[v]
            shift = random(w.state) % max(1, degree)
            for step in range(degree):
                o = g.other[begin + (step + shift) % degree]
                link = -2 if w.mark[o] == stamp else only_link(g, w.mark, stamp, o)
                if link < 0 or count >= most:
                    continue
                w.mark[o], w.parent[o], w.arc[o], w.order[count] = stamp, v, link, o
                count += 1
    return count


@compiled
def weigh(
    g: Graph,
    costs: Array,
    tables: Array,
    tolls: Array,
    line: Timeline,
    left: Left,
    w: Work,
    count: int,
    x: IntArray,
    toll: float,
    noise: float,
) -> None:
    """Plain and priced cost of every strategy in the forest, given everything outside it."""
    stamp = w.state[1]
    for y in range(count):
        i = w.order[y]
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        for p in range(k):
            w.plain[s + p] = costs[s + p]
        for a in range(g.adj[i], g.adj[i + 1]):
            o = g.other[a]
            if w.mark[o] != stamp:
                row = g.other_rows[a] + x[o] * k
                for p in range(k):
                    w.plain[s + p] += tables[row + p]
        for p in range(k):
            w.value[s + p] = w.plain[s + p] + toll * tolls[s + p]
            if noise > 0.0:
                w.value[s + p] += noise * (random(w.state) / 9.3e18)
        forbid_unfit(line, left, i, k, w.value, s)


@compiled
def eliminate(g: Graph, tables: Array, w: Work, count: int, x: IntArray) -> bool:
    """Best choice of the forest at priced costs, into `fresh`; False where nothing fits."""
    at = 0
    for y in range(count - 1, -1, -1):
        i = w.order[y]
        v = w.parent[i]
        if v < 0:
            continue
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        above, width = g.start[v], g.start[v + 1] - g.start[v]
        for q in range(width):
            low, arg = np.inf, 0
            row = g.other_rows[w.arc[i]] + q * k
            for p in range(k):
                value = w.value[s + p] + tables[row + p]
                if value < low:
                    low, arg = value, p
            w.value[above + q] += low
            w.best[at + q] = arg
        # where the answers lie, kept in the one entry of the node that is free by now
        w.fresh[i] = at
        at += width
    for y in range(count):
        i = w.order[y]
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        if w.parent[i] >= 0:
            w.fresh[i] = w.best[w.fresh[i] + w.fresh[w.parent[i]]]
            continue
        low = 0
        for p in range(1, k):
            if w.value[s + p] < w.value[s + low]:
                low = p
        if w.value[s + low] == np.inf:
            return False
        w.fresh[i] = low
    return True


@compiled
def difference(
    g: Graph, tables: Array, tolls: Array, w: Work, count: int, x: IntArray
) -> tuple[float, float, bool]:
    """Plain cost, tolls of the fresh choice minus the present one's, and whether they differ."""
    cost, toll, differs = 0.0, 0.0, False
    for y in range(count):
        i = w.order[y]
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        v = w.parent[i]
        cost += w.plain[s + w.fresh[i]] - w.plain[s + x[i]]
        if v >= 0:
            row = g.other_rows[w.arc[i]]
            cost += tables[row + w.fresh[v] * k + w.fresh[i]] - tables[row + x[v] * k + x[i]]
        toll += tolls[s + w.fresh[i]] - tolls[s + x[i]]
        differs = differs or w.fresh[i] != x[i]
    return cost, toll, differs


@compiled
def enter(line: Timeline, left: Left, w: Work, count: int, x: IntArray) -> bool:
    """Puts the fresh choice on the timeline and into x if it fits; otherwise leaves both without the forest."""
    done = 0
    fits = True
    while done < count and fits:
        i = w.order[done]
        give_back(line, left, i, w.fresh[i], -1.0)
        done += 1
        for z in range(line.first[i], line.first[i + 1]):
            if line.usages[line.at[z] + w.fresh[i]] != 0.0:
                fits = fits and least_left(left, line.lo[z], line.hi[z]) >= 0.0
    if not fits:
        for y in range(done):
            i = w.order[y]
            give_back(line, left, i, w.fresh[i], 1.0)
        return False
    for y in range(count):
        x[w.order[y]] = w.fresh[w.order[y]]
    return True


@compiled
def moves(
    g: Graph,
    costs: Array,
    tables: Array,
    tolls: Array,
    line: Timeline,
    left: Left,
    w: Work,
    seeds: IntArray,
    x: IntArray,
    many: int,
    size: int,
    trees: int,
    window: int,
    toll: float,
    accept: float,
    noise: float,
) -> tuple[float, int]:
    """Makes moves; returns the change of plain cost and how many were made.

    Args:
        g: the graph.
        costs: of strategies, with something finite for what is forbidden.
        tables: of edges, likewise.
        tolls: what each strategy pays for memory at the prices.
        line: memory over time.
        left: what the present choice leaves of it.
        w: scratch.
        seeds: nodes that trees start from.
        x: the choice, in and out.
        many: moves.
        size: nodes a tree at most.
        trees: trees a move.
        window: how far apart trees start, in seeds.
        toll: weight of tolls inside the elimination.
        accept: weight of tolls when a move is judged; 0 takes only moves that lower the plain cost.
        noise: most that a random number adds to a strategy's priced cost.
    """
    total, made = 0.0, 0
    for _ in range(many):
        count = grow(g, w, seeds, size, trees, window)
        for y in range(count):
            give_back(line, left, w.order[y], x[w.order[y]], 1.0)
        weigh(g, costs, tables, tolls, line, left, w, count, x, toll, noise)
        taken = False
        if eliminate(g, tables, w, count, x):
            cost, paid, differs = difference(g, tables, tolls, w, count, x)
            if differs and cost + accept * paid <= 0.0:
                taken = enter(line, left, w, count, x)
                if taken:
                    total += cost
                    made += 1
        if not taken:
            for y in range(count):
                give_back(line, left, w.order[y], x[w.order[y]], -1.0)
    return total, made
