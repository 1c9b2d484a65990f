"""Exact elimination of variables (dynamic programming) on any graph of small width, for many problems at once.

Eliminating node v adds up every table that mentions v and keeps, for each choice of v's neighbours, the least sum and
where it was reached. The last node leaves the optimum; walking back gives the choice. Every table may carry leading
dimensions (meshes, prices): the structure is walked once, numpy does all of them together.
Source: Bertele and Brioschi, Nonserial Dynamic Programming (1972); min-fill order as in Dechter, bucket elimination.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.search.solver.problem import Problem
from planner.units import Array, IntArray

LARGEST_TABLE = 1 << 26
"""Entries of one joint table above which elimination gives up (512 MB)."""


class TooWideError(ValueError):
    """The graph's width is too large for elimination: carries the entries that a table would need."""

    def __init__(self, entries: int, limit: int) -> None:
        self.entries, self.limit = entries, limit
        super().__init__(f"a joint table would need {entries:,} entries, more than {limit:,}")


@dataclass(frozen=True, slots=True)
class Eliminated:
    """Optimum of every problem of a batch."""

    value: Array
    """Least cost; inf where nothing is allowed. Shape: the leading one."""
    choice: IntArray
    """A strategy a node that reaches it. Shape: the leading one, then (n,)."""


def order(
    sizes: Sequence[int], edges: Sequence[tuple[int, int]], most: int | None = None
) -> list[int]:
    """Elimination order: fewest fill edges first, then the smallest joint table.

    Args:
        sizes: strategies a node.
        edges: pairs of nodes.
        most: stop before a node with more neighbours than this; None eliminates all.
    """
    near: list[set[int]] = [set() for _ in sizes]
    for i, j in edges:
        near[i].add(j)
        near[j].add(i)
    keys: list[tuple[int, float] | None] = [None] * len(near)
    heap: list[tuple[tuple[int, float], int]] = []

    def rank(v: int) -> None:
        keys[v] = key = _key(v, near, sizes) if most is None or len(near[v]) <= most else None
        if key is not None:
            heapq.heappush(heap, (key, v))

    for v in range(len(near)):
        rank(v)
    out: list[int] = []
    gone = [False] * len(near)
    while heap:
        key, v = heapq.heappop(heap)
        if gone[v] or keys[v] != key:
            continue
        gone[v] = True
        out.append(v)
        around = near[v]
        for u in around:
            near[u].discard(v)
            near[u] |= around - {u}
        # fill changes only for the neighbours and for nodes that see two of them
        seen = set().union(*(near[u] for u in around)) if len(around) > 1 else set()
        for u in sorted(around | seen):
            rank(u)
        near[v] = set()
    return out


def _key(v: int, near: list[set[int]], sizes: Sequence[int]) -> tuple[int, float]:
    around = near[v]
    fill = 0
    if len(around) > 1:
        fill = sum(len(around) - 1 - len(near[u] & around) for u in around)
    table = float(sizes[v])
    for u in around:
        table *= sizes[u]
    return fill, table


@dataclass(frozen=True, slots=True)
class _Step:
    """One node gone: where its best strategy is written for each choice of the scope."""

    node: int
    scope: tuple[int, ...]
    best: IntArray


class _Tables:
    """Tables by scope (a sorted tuple of nodes); equal scopes are added up."""

    def __init__(self, lead: tuple[int, ...], largest: int) -> None:
        self.lead, self.largest = lead, largest
        self.by_scope: dict[tuple[int, ...], Array] = {}
        self.of_node: dict[int, set[tuple[int, ...]]] = {}

    def add(self, scope: tuple[int, ...], table: Array) -> None:
        old = self.by_scope.get(scope)
        self.by_scope[scope] = table if old is None else old + table
        for v in scope:
            self.of_node.setdefault(v, set()).add(scope)

    def take(self, node: int) -> list[tuple[tuple[int, ...], Array]]:
        scopes = sorted(self.of_node.pop(node, set()), key=lambda s: (len(s), s))
        for scope in scopes:
            for v in scope:
                if v != node:
                    self.of_node[v].discard(scope)
        return [(scope, self.by_scope.pop(scope)) for scope in scopes]

    def eliminate(self, node: int, sizes: Sequence[int]) -> _Step:
        parts = self.take(node)
        scope = tuple(sorted({v for s, _ in parts for v in s if v != node}))
        entries = int(np.prod([float(sizes[v]) for v in (*scope, node)]) * np.prod(self.lead))
        if entries > self.largest:
            raise TooWideError(entries, self.largest)
        axes = (*scope, node)
        joint: Array = np.zeros((1,) * (len(self.lead) + len(axes)))
        for part_scope, table in parts:
            joint = joint + _aligned(table, part_scope, axes, len(self.lead))
        joint = np.broadcast_to(joint, self.lead + tuple(sizes[v] for v in axes))
        best = joint.argmin(axis=-1)
        self.add(scope, np.take_along_axis(joint, best[..., None], axis=-1)[..., 0])
        return _Step(node, scope, best)


def _aligned(table: Array, scope: tuple[int, ...], axes: tuple[int, ...], leading: int) -> Array:
    """The table with one dimension an axis, length 1 where its scope lacks it."""
    present = [v for v in axes if v in scope]
    move = [leading + scope.index(v) for v in present]
    table = table.transpose(*range(leading), *move)
    where = tuple(slice(None) if v in scope else None for v in axes)
    return table[(slice(None),) * leading + where]


def eliminate(
    costs: Sequence[Array],
    edges: Sequence[tuple[int, int]],
    tables: Sequence[Array],
    *,
    largest: int = LARGEST_TABLE,
) -> Eliminated:
    """The exact optimum of one problem, or of each of a batch, without memory.

    Args:
        costs: one vector a node, with the same leading dimensions everywhere (or 1, or none). Shapes: (..., k_i).
        edges: pairs of distinct nodes; a pair may come twice and in either order.
        tables: one an edge. Shapes: (..., k_i, k_j).
        largest: entries that one joint table may have.

    Raises:
        TooWideError: the order found needs a larger table.
    """
    vectors = [np.asarray(c, dtype=np.float64) for c in costs]
    matrices = [np.asarray(t, dtype=np.float64) for t in tables]
    sizes = [v.shape[-1] for v in vectors]
    lead = np.broadcast_shapes(*(v.shape[:-1] for v in vectors), *(m.shape[:-2] for m in matrices))
    store = _Tables(lead, largest)
    for v, vector in enumerate(vectors):
        store.add((v,), _led(vector, lead, 1))
    for (i, j), matrix in zip(edges, matrices, strict=True):
        if i == j:
            raise ValueError(f"edge from node {i} to itself: add its diagonal to the node's costs")
        led = _led(matrix, lead, 2)
        store.add((min(i, j), max(i, j)), led if i < j else led.swapaxes(-1, -2))
    steps = [store.eliminate(v, sizes) for v in order(sizes, edges)]
    value = np.broadcast_to(store.by_scope.get((), np.zeros((1,) * len(lead))), lead)
    return Eliminated(value=np.array(value), choice=_walk_back(steps, lead, len(sizes)))


def _led(table: Array, lead: tuple[int, ...], own: int) -> Array:
    """With as many leading dimensions as the batch has, of length 1 where the table does not vary."""
    missing = len(lead) - (table.ndim - own)
    return table.reshape((1,) * missing + table.shape)


def _walk_back(steps: Sequence[_Step], lead: tuple[int, ...], count: int) -> IntArray:
    choice = np.zeros((*lead, count), dtype=np.int64)
    grid = np.ix_(*(np.arange(n) for n in lead)) if lead else ()
    for step in reversed(steps):
        at = tuple(choice[..., v] for v in step.scope)
        choice[..., step.node] = step.best[(*grid, *at)]
    return choice


def solve_exactly(problem: Problem, *, largest: int = LARGEST_TABLE) -> Eliminated:
    """The optimum of a problem whose memory is free or never binds; memory is not looked at."""
    edges = [(int(i), int(j)) for i, j in problem.edges]
    return eliminate(problem.node_costs(), edges, problem.edge_tables(), largest=largest)
