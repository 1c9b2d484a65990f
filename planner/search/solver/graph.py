"""The graph of a problem as compiled loops want it: neighbours in rows, tables in both orientations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.search.solver.problem import Problem, offsets
from planner.units import Array, IntArray


class Graph(NamedTuple):
    """Nodes and edges, seen from each node. An *arc* is an edge seen from one of its nodes."""

    start: IntArray
    """Where each node's strategies start. Shape (n + 1,)."""
    costs: Array
    """Cost of every strategy."""
    adj: IntArray
    """First arc of each node; its arcs are sorted by the node at their other end. Shape (n + 1,)."""
    other: IntArray
    """Node at the other end of each arc. Shape (2m,)."""
    own_rows: IntArray
    """Where each arc's table starts with the own strategies as rows. Shape (2m,)."""
    other_rows: IntArray
    """Where it starts with the other's strategies as rows. Shape (2m,)."""
    arrives: IntArray
    """Where the message from the other end lies: one number an own strategy. Shape (2m,)."""
    leaves: IntArray
    """Where the message to the other end lies: one number a strategy there. Shape (2m,)."""
    tables: Array
    """All distinct tables, then all transposed, once for each shape that they are read in."""


def graph_of(problem: Problem) -> Graph:
    """Rows of neighbours for a problem's edges; equal tables stay shared."""
    count, first, second = len(problem.sizes), problem.edges[:, 0], problem.edges[:, 1]
    edges, size = len(first), len(problem.tables)
    each = np.stack([problem.table_of, problem.sizes[first], problem.sizes[second]], axis=1)
    shapes, of = np.unique(each, axis=0, return_inverse=True)
    at = size + offsets(shapes[:, 1] * shapes[:, 2])  # one store serves tables of several shapes
    tables = np.concatenate([problem.tables, np.empty(at[-1] - size)])
    for (begin, rows, columns), to in zip(shapes, at[:-1], strict=True):
        table = problem.tables[begin : begin + rows * columns].reshape(rows, columns)
        tables[to : to + table.size] = table.T.ravel()
    node, other = np.concatenate([first, second]), np.concatenate([second, first])
    straight, turned = problem.table_of, at[:-1][of.ravel()]
    to_first = offsets(problem.sizes[first])
    to_second = to_first[-1] + offsets(problem.sizes[second])
    by = np.lexsort((other, node))

    def arcs(from_first: IntArray, from_second: IntArray) -> IntArray:
        return np.ascontiguousarray(np.concatenate([from_first, from_second])[by])

    return Graph(
        start=problem.starts,
        costs=problem.costs,
        adj=offsets(np.bincount(node, minlength=count)),
        other=np.ascontiguousarray(other[by]),
        own_rows=arcs(straight, turned),
        other_rows=arcs(turned, straight),
        arrives=arcs(to_first[:edges], to_second[:edges]),
        leaves=arcs(to_second[:edges], to_first[:edges]),
        tables=tables,
    )
