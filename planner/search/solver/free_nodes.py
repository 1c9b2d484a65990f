"""Elimination of nodes that no memory limit sees and that have few neighbours: exact, and their choice is read off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.search.solver.clock import Deadline
from planner.search.solver.problem import Problem, share
from planner.units import Array, BoolArray, IntArray

LARGEST_PRODUCT = 1 << 18
"""Entries of the joint table that eliminating a node may need."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A node eliminated: its best strategy for the strategies of its neighbours."""

    node: int
    near: tuple[int, ...]
    best: IntArray


def without_free(
    problem: Problem, free: BoolArray, deadline: Deadline
) -> tuple[Problem, IntArray, list[Gone], float]:
    """Eliminates nodes that memory does not see and that have at most two neighbours, until a deadline.

    Args:
        problem: costs and edges; memory is not looked at.
        free: nodes that may go. Shape (n,).
        deadline: after which the rest stays.

    Returns:
        What is left, its nodes, those that are gone in order, and the cost that no choice changes any more.
    """
    costs = [c.copy() for c in problem.node_costs()]
    near: list[dict[int, Array]] = [{} for _ in costs]
    for (i, j), table in zip(problem.edges.tolist(), problem.edge_tables(), strict=True):
        near[i][j], near[j][i] = table, table.T
    gone: list[Gone] = []
    constant = 0.0
    left = np.ones(len(costs), dtype=bool)
    queue = [v for v in range(len(costs)) if free[v]]
    while queue and not deadline.past():
        v = queue.pop()
        if not left[v] or len(near[v]) > 2 or not _fits(v, near, costs):
            continue
        around = tuple(sorted(near[v]))
        joint = costs[v].reshape((-1,) + (1,) * len(around))
        for axis, u in enumerate(around):
            shape = [len(costs[v]), *(1,) * len(around)]
            shape[axis + 1] = len(costs[u])
            joint = joint + near[v][u].reshape(shape)
            del near[u][v]
        best = joint.argmin(axis=0)
        least = np.take_along_axis(joint, best[None], axis=0)[0]
        if not around:
            constant += float(least)
        elif len(around) == 1:
            costs[around[0]] = costs[around[0]] + least
        else:
            a, b = around
            near[a][b] = least + near[a][b] if b in near[a] else least
            near[b][a] = near[a][b].T
        left[v], near[v] = False, {}
        gone.append(Gone(v, around, best))
        queue.extend(u for u in around if free[u])
    small, kept = _compact(costs, near, left, problem)
    return small, kept, gone, constant


def _fits(v: int, near: list[dict[int, Array]], costs: list[Array]) -> bool:
    entries = len(costs[v])
    for u in near[v]:
        entries *= len(costs[u])
    return entries <= LARGEST_PRODUCT


def _compact(
    costs: list[Array],
    near: list[dict[int, Array]],
    left: BoolArray,
    problem: Problem,
) -> tuple[Problem, IntArray]:
    kept = np.flatnonzero(left)
    index = np.cumsum(left) - 1
    edges = [(i, j) for i in kept.tolist() for j in sorted(near[i]) if j > i]
    flat, table_of = share([np.ascontiguousarray(near[i][j]) for i, j in edges])
    small = Problem(
        sizes=problem.sizes[kept],
        costs=np.concatenate([costs[v] for v in kept]) if len(kept) else np.zeros(0),
        edges=index[np.array(edges, dtype=np.int64).reshape(-1, 2)],
        tables=flat,
        table_of=table_of,
    )
    return small, kept
