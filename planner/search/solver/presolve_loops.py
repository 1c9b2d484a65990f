"""Compiled loops of the presolve: support, functional edges, dominance, joint tables."""

from __future__ import annotations

import numpy as np

from planner.search.solver.compiled import compiled
from planner.units import Array, BoolArray, IntArray


@compiled
def keep_supported(
    start: IntArray, edges: IntArray, tables: Array, table_of: IntArray, alive: BoolArray
) -> int:
    """Clears strategies that no strategy of some neighbour can go with; returns how many."""
    gone = 0
    changed = True
    while changed:
        changed = False
        for e in range(len(edges)):
            i, j = edges[e]
            si, sj = start[i], start[j]
            ki, kj = start[i + 1] - si, start[j + 1] - sj
            for p in range(ki):
                if alive[si + p]:
                    found = False
                    for q in range(kj):
                        if alive[sj + q] and tables[table_of[e] + p * kj + q] != np.inf:
                            found = True
                            break
                    if not found:
                        alive[si + p] = False
                        gone += 1
                        changed = True
            for q in range(kj):
                if alive[sj + q]:
                    found = False
                    for p in range(ki):
                        if alive[si + p] and tables[table_of[e] + p * kj + q] != np.inf:
                            found = True
                            break
                    if not found:
                        alive[sj + q] = False
                        gone += 1
                        changed = True
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
        start, edges, tables, table_of: the problem.
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
def clear_dominated(
    start: IntArray,
    costs: Array,
    adj: IntArray,
    other: IntArray,
    own_rows: IntArray,
    tables: Array,
    spans: IntArray,
    span_at: IntArray,
    usages: Array,
    alive: BoolArray,
    largest: int,
) -> int:
    """Clears strategies that another one of the node replaces at no more cost and memory; returns how many.

    Args:
        start, costs, adj, other, own_rows, tables: the graph (see `graph.Graph`).
        spans: first span of each node. Shape (n + 1,).
        span_at: where each span's usages start.
        usages: flat usages.
        alive: in and out.
        largest: nodes with more strategies are left alone.
    """
    gone = 0
    for i in range(len(start) - 1):
        s, k = start[i], start[i + 1] - start[i]
        if k > largest:
            continue
        for p in range(k):
            if not alive[s + p]:
                continue
            for r in range(k):
                if r == p or not alive[s + r]:
                    continue
                worse = False
                for z in range(spans[i], spans[i + 1]):
                    if usages[span_at[z] + r] > usages[span_at[z] + p]:
                        worse = True
                        break
                if worse:
                    continue
                total = costs[s + r] - costs[s + p]
                for a in range(adj[i], adj[i + 1]):
                    o = other[a]
                    so, ko = start[o], start[o + 1] - start[o]
                    most = -np.inf
                    row_r, row_p = own_rows[a] + r * ko, own_rows[a] + p * ko
                    for q in range(ko):
                        if alive[so + q] and tables[row_p + q] != np.inf:
                            most = max(most, tables[row_r + q] - tables[row_p + q])
                    total += most
                    if total > 0:
                        break
                if total <= 0:
                    alive[s + p] = False
                    gone += 1
                    break
    return gone
