"""Rules out strategies that no optimum uses, before elimination builds joint tables.

A spanning tree of the problem gives, in two passes over its edges, the least cost that any choice with a given strategy
can have (edges outside the tree counted at their least); a choice decoded from it gives an upper bound. What cannot
beat it goes. Both bounds are exact, so the optimum stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.units import Array, BoolArray, IntArray

ROUNDS = 6
"""Rounds of bounding; each takes a tree that has other edges."""
SLACK = 1e-9
"""Share of the upper bound by which a strategy may exceed it and stay: rounding of sums."""


@dataclass(slots=True)
class Tables:
    """A problem whose strategies become fewer."""

    costs: list[Array]
    edges: list[tuple[int, int]]
    tables: list[Array]
    kept: list[IntArray]
    """For every node the strategies that are left."""

    def cost(self, choice: Sequence[int]) -> float:
        """Cost of a choice among those left."""
        total = sum(float(c[k]) for c, k in zip(self.costs, choice, strict=True))
        pairs = zip(self.edges, self.tables, strict=True)
        return total + sum(float(table[choice[i], choice[j]]) for (i, j), table in pairs)

    def keep(self, masks: Sequence[BoolArray]) -> None:
        """Leaves only these strategies."""
        self.costs = [c[mask] for c, mask in zip(self.costs, masks, strict=True)]
        self.kept = [k[mask] for k, mask in zip(self.kept, masks, strict=True)]
        pairs = zip(self.edges, self.tables, strict=True)
        self.tables = [t[np.ix_(masks[i], masks[j])] for (i, j), t in pairs]


def narrow(
    costs: Sequence[Array],
    edges: Sequence[tuple[int, int]],
    tables: Sequence[Array],
    upper: float = np.inf,
) -> Tables | None:
    """The same problem without strategies that no optimum uses; None where no choice keeps within a given cost.

    Args:
        costs: one vector a node.
        edges: pairs of distinct nodes, none twice.
        tables: one an edge.
        upper: keeps every choice that costs no more; where it is inf, the best choice met takes its place.
    """
    left = Tables(
        [np.asarray(c) for c in costs],
        list(edges),
        list(tables),
        [np.arange(len(c)) for c in costs],
    )
    least, weight = upper, np.zeros(len(left.edges))
    for _ in range(ROUNDS):
        tree = _tree(len(left.costs), left.edges, weight)
        bounds, choice = _bounds(left, tree)
        if upper == np.inf:
            least = min(least, _descended(left, choice))
        limit = least + SLACK * abs(least) if np.isfinite(least) else np.inf
        masks = [bound <= limit for bound in bounds]
        if not all(mask.any() for mask in masks):
            return None
        weight += np.array([edge in tree for edge in range(len(left.edges))])
        if all(mask.all() for mask in masks):
            if weight.all():
                break
            continue
        left.keep(masks)
    return left


def _tree(count: int, edges: Sequence[tuple[int, int]], weight: Array) -> list[int]:
    """A spanning forest that prefers edges of low weight; edges ordered from the roots outwards."""
    group = list(range(count))

    def root(v: int) -> int:
        while group[v] != v:
            group[v] = group[group[v]]
            v = group[v]
        return v

    near: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for edge in np.argsort(weight, kind="stable").tolist():
        i, j = edges[edge]
        if root(i) != root(j):
            group[root(i)] = root(j)
            near[i].append((j, edge))
            near[j].append((i, edge))
    order: list[int] = []
    seen = [False] * count
    for start in range(count):
        stack = [] if seen[start] else [start]
        while stack:
            v = stack.pop()
            seen[v] = True
            for u, edge in near[v]:
                if not seen[u]:
                    order.append(edge)
                    stack.append(u)
    return order


def _bounds(left: Tables, tree: list[int]) -> tuple[list[Array], list[int]]:
    """Least cost with every strategy, and the tree's best choice."""
    count, inside = len(left.costs), set(tree)
    own = [c.copy() for c in left.costs]
    for edge, (i, _) in enumerate(left.edges):
        if edge not in inside:
            own[i] += left.tables[edge].min(axis=1)
    parent: list[tuple[int, Array] | None] = [None] * count
    seen: set[int] = set()
    for edge in tree:
        i, j = left.edges[edge]
        first = i in seen or j not in seen
        up, down = (i, j) if first else (j, i)
        seen |= {i, j}
        parent[down] = up, left.tables[edge] if first else left.tables[edge].T
    outwards = _outwards(parent)
    best, sent = [c.copy() for c in own], [np.zeros(0)] * count
    for v in reversed(outwards):
        above = parent[v]
        if above is not None:
            sent[v] = (above[1] + best[v]).min(axis=1)
            best[above[0]] += sent[v]
    whole, choice = list(best), [0] * count
    rest = sum(float(best[v].min()) for v in outwards if parent[v] is None)
    if not np.isfinite(rest):
        return [np.full_like(cost, np.inf) for cost in own], choice
    for v in outwards:
        above = parent[v]
        if above is None:
            choice[v] = int(best[v].argmin())
            whole[v] = best[v] + (rest - float(best[v].min()))
        else:
            up, table = above
            with np.errstate(invalid="ignore"):
                without = whole[up] - sent[v]
            without = np.where(np.isfinite(whole[up]), without, np.inf)
            whole[v] = best[v] + (without[:, None] + table).min(axis=0)
            choice[v] = int((table[choice[up]] + best[v]).argmin())
    return whole, choice


def _outwards(parent: list[tuple[int, Array] | None]) -> list[int]:
    """Nodes, each after its parent."""
    below: list[list[int]] = [[] for _ in parent]
    for v, above in enumerate(parent):
        if above is not None:
            below[above[0]].append(v)
    order = [v for v, above in enumerate(parent) if above is None]
    for v in order:
        order.extend(below[v])
    return order


def _descended(left: Tables, choice: list[int]) -> float:
    """Cost of a choice after every node took its best strategy given the others, until none changes."""
    near: list[list[tuple[int, Array]]] = [[] for _ in left.costs]
    for (i, j), table in zip(left.edges, left.tables, strict=True):
        near[i].append((j, table))
        near[j].append((i, table.T))
    cost = left.cost(choice)
    while True:
        for v, own in enumerate(left.costs):
            choice[v] = int((own + sum(t[:, choice[u]] for u, t in near[v])).argmin())
        better = left.cost(choice)
        if not better < cost:
            return cost
        cost = better
