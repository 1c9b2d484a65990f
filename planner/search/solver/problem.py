"""The choice problem as numbers: one strategy a node, costs on nodes and edges, memory over time.

Flat arrays (one entry a strategy, one a pair of strategies), because compiled loops, LP matrices and numpy all want
them so. Nothing here knows what a node means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.units import Array, IntArray


def offsets(sizes: IntArray) -> IntArray:
    """Where each run of a flat array starts, and where the last one ends. Shapes: (n,) -> (n + 1,)."""
    out = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=out[1:])
    return out


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in use over time: every span holds its node's usage from lo until before hi."""

    nodes: IntArray
    """Node of each span. Shape (p,); a node may have several spans, or none."""
    lo: IntArray
    """First time of each span. Shape (p,)."""
    hi: IntArray
    """First time after each span. Shape (p,)."""
    usages: Array
    """Usage of every strategy of the span's node, spans one after the other. Unit: as `limit`; not negative."""
    limit: float
    """What the usages at one time may sum to."""

    def starts(self, sizes: IntArray) -> IntArray:
        """Where each span's usages start in the flat array. Shape (p + 1,)."""
        return offsets(sizes[self.nodes])


@dataclass(frozen=True, slots=True)
class Problem:
    """Choose one strategy a node: least node plus edge cost under the memory limit. `inf` forbids."""

    sizes: IntArray
    """Strategies of each node. Shape (n,), all positive."""
    costs: Array
    """Cost of every strategy, nodes one after the other. Shape (sum of sizes,)."""
    edges: IntArray
    """Two distinct nodes an edge, smaller first, no pair twice. Shape (m, 2)."""
    tables: Array
    """Distinct edge tables, row-major, one after the other: many edges of a real graph share one."""
    table_of: IntArray
    """Where each edge's table starts in `tables`. Shape (m,)."""
    memory: Memory | None = None
    """The limit over time; None when memory is free."""

    @property
    def starts(self) -> IntArray:
        """Where each node's strategies start. Shape (n + 1,)."""
        return offsets(self.sizes)

    def node_costs(self) -> list[Array]:
        """Cost vectors, one a node; views. Shapes: (k_i,)."""
        return np.split(self.costs, self.starts[1:-1])

    def edge_table(self, edge: int) -> Array:
        """Table of one edge; a view. Shape (k_i, k_j)."""
        rows, columns = self.sizes[self.edges[edge]]
        start = self.table_of[edge]
        return self.tables[start : start + rows * columns].reshape(rows, columns)

    def edge_tables(self) -> list[Array]:
        """Tables of all edges; views."""
        return [self.edge_table(edge) for edge in range(len(self.edges))]

    def cost(self, choice: IntArray) -> float:
        """Node plus edge costs of a choice. Shape of choice: (n,)."""
        first, second = self.edges[:, 0], self.edges[:, 1]
        at = self.table_of + choice[first] * self.sizes[second] + choice[second]
        return float(self.costs[self.starts[:-1] + choice].sum() + self.tables[at].sum())

    def peak(self, choice: IntArray) -> float:
        """Most memory in use at any time. Shape of choice: (n,)."""
        profile = usage_over_time(self, choice)
        return float(profile.max()) if len(profile) else 0.0

    def feasible(self, choice: IntArray) -> bool:
        """Whether a choice uses nothing forbidden and keeps the limit."""
        if not np.isfinite(self.cost(choice)):
            return False
        return self.memory is None or self.peak(choice) <= self.memory.limit


def usage_over_time(problem: Problem, choice: IntArray) -> Array:
    """Memory in use from each time on at which something begins or ends. Shapes: (n,) -> (times,)."""
    memory = problem.memory
    if memory is None:
        return np.zeros(0)
    return _profile(memory, memory.usages[memory.starts(problem.sizes)[:-1] + choice[memory.nodes]])


def _profile(memory: Memory, used: Array) -> Array:
    """What all spans hold from each time on at which something begins or ends. Shapes: (p,) -> (times,)."""
    live = memory.hi > memory.lo
    times = np.concatenate([memory.lo[live], memory.hi[live]])
    at = np.unique(times, return_inverse=True)[1]
    return np.cumsum(np.bincount(at, np.concatenate([used[live], -used[live]])))


def least_peak(problem: Problem) -> float:
    """Memory in use at the fullest time if every span held its least; inf where a node has nothing that is allowed."""
    memory = problem.memory
    if memory is None or not len(memory.nodes):
        return 0.0
    at, sizes = memory.starts(problem.sizes), problem.sizes[memory.nodes]
    strategies = np.arange(at[-1]) + np.repeat(problem.starts[:-1][memory.nodes] - at[:-1], sizes)
    usages = np.where(np.isfinite(problem.costs[strategies]), memory.usages, np.inf)
    least = np.minimum.reduceat(usages, at[:-1])
    return float(_profile(memory, least).max(initial=0.0)) if np.isfinite(least).all() else np.inf


def build(
    costs: Sequence[Array],
    edges: Sequence[tuple[int, int]] = (),
    tables: Sequence[Array] = (),
    memory: Memory | None = None,
) -> Problem:
    """A problem from one array a node and one an edge; parallel edges are added up, equal tables shared.

    Args:
        costs: one vector a node. Shapes: (k_i,).
        edges: two nodes an edge, in any order; a pair may come twice; a loop costs its diagonal.
        tables: one matrix an edge. Shapes: (k_i, k_j).
        memory: spans and the limit, if there is one.
    """
    vectors = [np.asarray(c, dtype=np.float64) for c in costs]
    merged: dict[tuple[int, int], Array] = {}
    for (i, j), given in zip(edges, tables, strict=True):
        table = np.asarray(given, dtype=np.float64).reshape(len(vectors[i]), len(vectors[j]))
        if i == j:
            vectors[i] = vectors[i] + np.diagonal(table)
            continue
        pair, table = ((i, j), table) if i < j else ((j, i), np.ascontiguousarray(table.T))
        merged[pair] = merged[pair] + table if pair in merged else table
    sizes = np.array([len(v) for v in vectors], dtype=np.int64)
    flat, table_of = share(list(merged.values()))
    return Problem(
        sizes=sizes,
        costs=np.concatenate(vectors) if vectors else np.zeros(0),
        edges=np.array(list(merged), dtype=np.int64).reshape(-1, 2),
        tables=flat,
        table_of=table_of,
        memory=memory,
    )


def share(tables: Sequence[Array]) -> tuple[Array, IntArray]:
    """Equal tables stored once: the flat store and where each table starts in it."""
    at: dict[bytes, int] = {}
    kept: list[Array] = []
    table_of = np.zeros(len(tables), dtype=np.int64)
    end = 0
    for edge, table in enumerate(tables):
        key = table.tobytes()
        if key not in at:
            at[key] = end
            kept.append(table.ravel())
            end += table.size
        table_of[edge] = at[key]
    return (np.concatenate(kept) if kept else np.zeros(0)), table_of
