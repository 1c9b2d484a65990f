"""Compiled loops of the presolve: support, functional edges, dominance, joint tables."""

from __future__ import annotations

import numpy as np

from planner.search.solver.compiled import compiled
from planner.search.solver.graph import Graph
from planner.units import Array, BoolArray, IntArray


@compiled
def has_support(table: Array, at: int, step: int, alive: BoolArray) -> bool:
    """Whether an alive strategy of the other node is allowed: entries from `at`, `step` apart."""
    found, q = False, 0
    while not found and q < len(alive):
        found = bool(alive[q]) and table[at + q * step] != np.inf
        q += 1
    return found


@compiled
def keep_supported(
    start: IntArray,
    edges: IntArray,
    tables: Array,
    table_of: IntArray,
    alive: BoolArray,
    begin: int,
    end: int,
) -> int:
    """Clears strategies that nothing at the other end of an edge can go with; returns how many.

    Args:
        start: where each node's strategies start.
        edges: of the problem.
        tables: of the problem.
        table_of: of the problem.
        alive: strategies left, in and out.
        begin: first edge that is looked at.
        end: first one after.
    """
    gone = 0
    for e in range(begin, end):
        first = alive[start[edges[e, 0]] : start[edges[e, 0] + 1]]
        second = alive[start[edges[e, 1]] : start[edges[e, 1] + 1]]
        k = len(second)
        for p in range(len(first)):
            if first[p] and not has_support(tables, table_of[e] + p * k, 1, second):
                first[p] = False
                gone += 1
        for q in range(k):
            if second[q] and not has_support(tables, table_of[e] + q, k, first):
                second[q] = False
                gone += 1
    return gone


@compiled
def partners(
    start: IntArray,
    edges: IntArray,
    tables: Array,
    table_of: IntArray,
    alive: BoolArray,
    where: IntArray,
    first_of: IntArray,
) -> BoolArray:
    """Whether an edge pairs the strategies of its nodes one to one, and the first node's partner of each.

    Args:
        start: where each node's strategies start.
        edges: of the problem.
        tables: of the problem.
        table_of: of the problem.
        alive: strategies left.
        where: where each edge's partners are written. Shape (m + 1,).
        first_of: out: strategy of the first node that goes with each of the second.
    """
    exact = np.zeros(len(edges), dtype=np.bool_)
    for e in range(len(edges)):
        i, j = edges[e]
        si, sj = start[i], start[j]
        ki, kj = start[i + 1] - si, start[j + 1] - sj
        left = 0
        for p in range(ki):
            left += alive[si + p]
        good = True
        for q in range(kj):
            if not alive[sj + q]:
                continue
            left -= 1
            count = 0
            for p in range(ki):
                if alive[si + p] and tables[table_of[e] + p * kj + q] != np.inf:
                    count += 1
                    first_of[where[e] + q] = p
            if count != 1:
                good = False
                break
        # with every strategy supported, one partner each and equal counts make it one to one
        exact[e] = good and left == 0
    return exact


@compiled
def separable(ki: int, kj: int, table: Array, slack: float) -> bool:
    """Whether a table without inf is a row term plus a column term."""
    for p in range(ki):
        for q in range(kj):
            if table[p * kj + q] == np.inf:
                return False
            off = table[p * kj + q] - table[p * kj] - table[q] + table[0]
            if off > slack or off < -slack:
                return False
    return True


@compiled
def add_joint(
    target: Array, rows: IntArray, columns: IntArray, table: Array, width: int, swap: bool
) -> None:
    """Adds a table, seen through two maps of strategies, to a flat joint table."""
    at = 0
    if swap:
        for c in columns:
            for r in rows:
                target[at] += table[r * width + c]
                at += 1
    else:
        for r in rows:
            for c in columns:
                target[at] += table[r * width + c]
                at += 1


@compiled
def cheapest(g: Graph, alive: BoolArray, i: int, p: int, best: IntArray) -> None:
    """The neighbour's strategy that strategy p of node i goes with most cheaply, one an arc, into `best`."""
    for a in range(g.adj[i], g.adj[i + 1]):
        so = g.start[g.other[a]]
        ko = g.start[g.other[a] + 1] - so
        row, low = g.own_rows[a] + p * ko, np.inf
        for q in range(ko):
            if alive[so + q] and g.tables[row + q] < low:
                low, best[a - g.adj[i]] = g.tables[row + q], q


@compiled
def replaces(
    g: Graph,
    spans: IntArray,
    span_at: IntArray,
    usages: Array,
    alive: BoolArray,
    i: int,
    r: int,
    p: int,
    best: IntArray,
) -> bool:
    """Whether strategy r of node i does all that p does at no more cost and memory.

    What r costs more than p is at least what it costs more where p is cheapest: most pairs need no other column.
    """
    for z in range(spans[i], spans[i + 1]):
        if usages[span_at[z] + r] > usages[span_at[z] + p]:
            return False
    own = g.costs[g.start[i] + r] - g.costs[g.start[i] + p]
    least = own
    for a in range(g.adj[i], g.adj[i + 1]):
        ko = g.start[g.other[a] + 1] - g.start[g.other[a]]
        at = g.own_rows[a] + best[a - g.adj[i]]
        least += g.tables[at + r * ko] - g.tables[at + p * ko]
    total = own
    for a in range(g.adj[i], g.adj[i + 1]):
        if least > 0:
            return False
        so = g.start[g.other[a]]
        ko = g.start[g.other[a] + 1] - so
        row_r, row_p = g.own_rows[a] + r * ko, g.own_rows[a] + p * ko
        q = best[a - g.adj[i]]
        most = start = g.tables[row_r + q] - g.tables[row_p + q]
        for q in range(ko):
            if alive[so + q] and g.tables[row_p + q] != np.inf:
                more = g.tables[row_r + q] - g.tables[row_p + q]
                most = more if more > most else most
                if most > start - least:
                    return False
        total += most
        least += most - start
    return bool(total <= 0)


@compiled
def clear_dominated(
    g: Graph,
    nodes: IntArray,
    spans: IntArray,
    span_at: IntArray,
    usages: Array,
    alive: BoolArray,
    best: IntArray,
) -> int:
    """Clears strategies that another one of the node replaces; returns how many.

    Args:
        g: the graph.
        nodes: to look at.
        spans: first span of each node. Shape (n + 1,).
        span_at: where each span's usages start.
        usages: flat usages.
        alive: in and out.
        best: buffer, one entry an arc of the node that has most.
    """
    gone = 0
    for i in nodes:
        s, k = g.start[i], g.start[i + 1] - g.start[i]
        for p in range(k):
            if not alive[s + p]:
                continue
            cheapest(g, alive, i, p, best)
            for r in range(k):
                if r == p or not alive[s + r]:
                    continue
                if replaces(g, spans, span_at, usages, alive, i, r, p, best):
                    alive[s + p] = False
                    gone += 1
                    break
    return gone
