"""Exact reductions that keep memory exact: what a smaller problem decides, the larger one reads off.

Strategies without support in a neighbour, or replaceable by another one, go; nodes whose strategies pair one to one
(the graph's forbidden pairs say so) become one node that keeps every span of memory; nodes that no binding time point
sees, with at most two neighbours, are eliminated. Repeated until nothing changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from planner.search.solver import presolve_loops as loops
from planner.search.solver.clock import NEVER, Deadline
from planner.search.solver.free_nodes import Gone, without_free
from planner.search.solver.graph import graph_of
from planner.search.solver.problem import Memory, Problem, least_peak, offsets, share
from planner.search.solver.timeline import Timeline, timeline_of
from planner.search.solver.timeline_loops import mark_too_large
from planner.units import Array, BoolArray, IntArray

ROUNDS = 8
"""Rounds of merging at most; real graphs need three or four."""
COMPARED = 1024
"""Strategies a node above which dominance is not looked for (its work grows with the square)."""
DOMINANCE_SHARE = 0.5
"""Part of the time of a reduction after which it is not looked for any more."""

ROUNDING = 1e-9
"""Share of the limit by which sums of least usages may exceed it."""


class InfeasibleError(ValueError):
    """No choice avoids what is forbidden and keeps the limit."""


class _LateError(Exception):
    """There is no time to end a round."""


@dataclass(frozen=True, slots=True)
class View:
    """How the strategies of a larger problem follow from those of a smaller one."""

    source: IntArray
    """Node of the smaller problem that decides each node. Shape (n,)."""
    at: IntArray
    """Where each node's picks start. Shape (n + 1,)."""
    pick: IntArray
    """Own strategy for each strategy of the source."""

    def restore(self, choice: IntArray) -> IntArray:
        """Choice of the larger problem. Shapes: (nodes of the smaller,) -> (n,)."""
        own: IntArray = self.pick[self.at[:-1] + choice[self.source]]
        return own


def merged(
    problem: Problem, fresh: BoolArray, deadline: Deadline
) -> tuple[Problem, View, BoolArray]:
    """One round: strategies cleared, one-to-one neighbours made one node.

    Args:
        problem: costs, edges and memory.
        fresh: nodes where strategies may be replaceable that were not before. Shape (n,).
        deadline: of the reduction.

    Returns:
        The smaller problem, how this one follows from it, and its fresh nodes.

    Raises:
        _LateError: the deadline is past.
    """
    alive = np.isfinite(problem.costs)
    start = problem.starts
    _keep_supported(problem, alive, deadline)
    supported = alive.copy()
    look = fresh | _and_near(_any(~alive, start), problem.edges)
    nodes = np.flatnonzero(look & (problem.sizes <= COMPARED))
    _clear_dominated(problem, alive, nodes, deadline)
    _keep_supported(problem, alive, deadline)
    where = offsets(problem.sizes[problem.edges[:, 1]])
    first_of = np.zeros(where[-1], dtype=np.int64)
    args = (start, problem.edges, problem.tables, problem.table_of)
    exact = loops.partners(*args, alive, where, first_of)
    _in_time(deadline)
    view = _components(problem, alive, exact, where, first_of)
    small = _through(problem, view)
    joined = np.bincount(view.source, minlength=len(small.sizes))[view.source] > 1
    changed = _and_near(joined | _any(alive != supported, start), problem.edges)
    return small, view, np.bincount(view.source, changed, len(small.sizes)) > 0


def _any(strategies: BoolArray, start: IntArray) -> BoolArray:
    """Nodes of which some strategy is marked. Shapes: as the costs -> (n,)."""
    return np.logical_or.reduceat(strategies, start[:-1]) if len(start) > 1 else strategies


def _and_near(nodes: BoolArray, edges: IntArray) -> BoolArray:
    """Marked nodes and their neighbours. Shape (n,)."""
    marked = nodes.copy()
    marked[edges[nodes[edges[:, 0]], 1]] = True
    marked[edges[nodes[edges[:, 1]], 0]] = True
    return marked


def _in_time(deadline: Deadline) -> None:
    if deadline.past():
        raise _LateError


def _keep_supported(problem: Problem, alive: BoolArray, deadline: Deadline) -> None:
    """Clears strategies until every neighbour of those left allows them something."""
    args = (problem.starts, problem.edges, problem.tables, problem.table_of, alive)
    gone = [1]

    def some(begin: int, end: int) -> None:
        gone.append(loops.keep_supported(*args, begin, end))

    while sum(gone):
        gone.clear()
        if not deadline.parts(len(problem.edges), some):
            raise _LateError
    if not _any(alive, problem.starts).all():
        raise InfeasibleError("a node has no strategy left that its neighbours allow")


def _clear_dominated(
    problem: Problem, alive: BoolArray, nodes: IntArray, deadline: Deadline
) -> None:
    if not len(nodes):
        return
    memory = problem.memory
    count = len(problem.sizes)
    if memory is None:
        spans, span_at, usages = np.zeros(count + 1, np.int64), np.zeros(0, np.int64), np.zeros(0)
    else:
        by = np.argsort(memory.nodes, kind="stable")
        spans = offsets(np.bincount(memory.nodes, minlength=count))
        span_at, usages = memory.starts(problem.sizes)[:-1][by], memory.usages
    g = graph_of(problem)
    best = np.zeros(int(np.diff(g.adj).max()), dtype=np.int64)

    def some(begin: int, end: int) -> None:
        loops.clear_dominated(g, nodes[begin:end], spans, span_at, usages, alive, best)

    deadline.parts(len(nodes), some, DOMINANCE_SHARE)


def _components(
    problem: Problem, alive: BoolArray, exact: BoolArray, where: IntArray, first_of: IntArray
) -> View:
    """Every node follows the first node of its component, along one-to-one edges."""
    start, sizes = problem.starts, problem.sizes
    near: defaultdict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for e in np.flatnonzero(exact).tolist():
        i, j = int(problem.edges[e, 0]), int(problem.edges[e, 1])
        near[i].append((j, e, True))
        near[j].append((i, e, False))
    source = np.full(len(sizes), -1, dtype=np.int64)
    picks: list[IntArray] = [np.zeros(0, dtype=np.int64)] * len(sizes)
    roots = -1
    for root in range(len(sizes)):
        if source[root] >= 0:
            continue
        roots += 1
        source[root] = roots
        picks[root] = np.flatnonzero(alive[start[root] : start[root + 1]])
        queue = [root]
        for i in queue:
            for j, e, known_is_first in near[i]:
                if source[j] >= 0:
                    continue
                source[j] = roots
                if known_is_first:
                    partner = np.zeros(sizes[i], dtype=np.int64)
                    second = np.flatnonzero(alive[start[j] : start[j + 1]])
                    partner[first_of[where[e] + second]] = second
                    picks[j] = partner[picks[i]]
                else:
                    picks[j] = first_of[where[e] + picks[i]]
                queue.append(j)
    at = offsets(np.array([len(p) for p in picks]))
    return View(source=source, at=at, pick=np.concatenate(picks))


def _through(problem: Problem, view: View) -> Problem:
    """The smaller problem that a view leaves: costs, tables and spans carried over and added up."""
    sizes = np.zeros(int(view.source.max()) + 1, dtype=np.int64)
    sizes[view.source] = np.diff(view.at)
    start, old = offsets(sizes), problem.starts
    length = np.diff(view.at)
    column = np.arange(view.at[-1]) - np.repeat(view.at[:-1], length)
    into = np.repeat(start[view.source], length) + column
    own = problem.costs[np.repeat(old[:-1], length) + view.pick]
    costs: Array = np.bincount(into, own, int(start[-1])).astype(np.float64)
    pairs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for e, (i, j) in enumerate(problem.edges):
        a, b = int(view.source[i]), int(view.source[j])
        if a == b or sizes[a] == 1 or sizes[b] == 1:
            rows, columns = _picks(view, i), _picks(view, j)
            values = problem.tables[problem.table_of[e] + rows * problem.sizes[j] + columns]
            to = b if sizes[a] == 1 else a
            costs[start[to] : start[to + 1]] += values
        else:
            pairs[min(a, b), max(a, b)].append(e)
    edges, tables = _joint_tables(problem, view, sizes, pairs, costs)
    flat, table_of = share(tables)
    return Problem(
        sizes=sizes,
        costs=costs,
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        tables=flat,
        table_of=table_of,
        memory=_memory_through(problem, view),
    )


def _picks(view: View, node: int) -> IntArray:
    return view.pick[view.at[node] : view.at[node + 1]]


def _joint_tables(
    problem: Problem,
    view: View,
    sizes: IntArray,
    pairs: dict[tuple[int, int], list[int]],
    costs: Array,
) -> tuple[list[tuple[int, int]], list[Array]]:
    """One table a pair of nodes; those that are a row plus a column term go into the nodes' costs."""
    start = offsets(sizes)
    edges: list[tuple[int, int]] = []
    tables: list[Array] = []
    for (a, b), members in sorted(pairs.items()):
        target = np.zeros(sizes[a] * sizes[b])
        for e in members:
            i, j = problem.edges[e]
            table = problem.tables[problem.table_of[e] :]
            swap = bool(view.source[i] != a)
            loops.add_joint(target, _picks(view, i), _picks(view, j), table, problem.sizes[j], swap)
        if loops.separable(sizes[a], sizes[b], target, 0.0):
            square = target.reshape(sizes[a], sizes[b])
            costs[start[a] : start[a + 1]] += square[:, 0]
            costs[start[b] : start[b + 1]] += square[0] - square[0, 0]
        else:
            edges.append((a, b))
            tables.append(target)
    return edges, tables


def _memory_through(problem: Problem, view: View) -> Memory | None:
    memory = problem.memory
    if memory is None:
        return None
    at, length = memory.starts(problem.sizes)[:-1], np.diff(view.at)[memory.nodes]
    begin = offsets(length)
    column = np.arange(begin[-1]) - np.repeat(begin[:-1], length)
    pick = view.pick[np.repeat(view.at[memory.nodes], length) + column]
    usages = memory.usages[np.repeat(at, length) + pick]
    return Memory(view.source[memory.nodes], memory.lo, memory.hi, usages, memory.limit)


@dataclass(frozen=True, slots=True)
class Core:
    """What is left to decide, and how the whole follows."""

    problem: Problem
    """Costs and edges; its memory is in `timeline`."""
    timeline: Timeline
    """Room at the points that can bind."""
    views: tuple[View, ...]
    """From the problem asked to the one before elimination, in order."""
    gone: tuple[Gone, ...]
    """Nodes eliminated from the latter, in order."""
    kept: IntArray
    """Nodes of the latter that the core has."""
    base: Problem
    """The latter: all merged, nothing eliminated."""
    constant: float
    """Cost that no choice of the core changes."""

    def restore(self, choice: IntArray, core: Core | None = None) -> IntArray:
        """Choice of the problem asked, or of the core that this one was reduced from, from one of this core."""
        whole = np.zeros(len(self.base.sizes), dtype=np.int64)
        whole[self.kept] = choice
        for step in reversed(self.gone):
            whole[step.node] = step.best[tuple(whole[list(step.near)])]
        for view in reversed(self.views[len(core.views) if core else 0 :]):
            whole = view.restore(whole)
        return whole[core.kept] if core else whole


def presolve(problem: Problem, deadline: Deadline = NEVER) -> Core:
    """The smallest problem that exact reductions leave, or leave until a deadline.

    Raises:
        InfeasibleError: forbidden pairs leave a node without strategy.
    """
    return _reduced(problem, (), np.ones(len(problem.sizes), np.bool_), deadline)


def without(core: Core, dead: BoolArray, deadline: Deadline = NEVER) -> Core:
    """The core reduced again after some of its strategies were ruled out.

    Args:
        core: of an earlier presolve.
        dead: strategies that no wanted choice uses. Shape: as the core's costs.
        deadline: of the reduction.

    Raises:
        InfeasibleError: nothing is left.
    """
    costs = core.base.costs.copy()
    start, sizes = core.base.starts[:-1][core.kept], core.problem.sizes
    column = np.arange(len(dead)) - np.repeat(core.problem.starts[:-1], sizes)
    costs[(np.repeat(start, sizes) + column)[dead]] = np.inf
    none = np.zeros(len(core.base.sizes), np.bool_)
    return _reduced(replace(core.base, costs=costs), core.views, none, deadline)


def _reduced(
    problem: Problem, views: tuple[View, ...], fresh: BoolArray, deadline: Deadline
) -> Core:
    line: Timeline | None = None
    if problem.memory and least_peak(problem) > problem.memory.limit * (1 + ROUNDING):
        raise InfeasibleError("at some time even the least usages exceed the limit")
    for _ in range(ROUNDS):
        before, line = problem, None
        try:
            problem, view, fresh = merged(problem, fresh, deadline)
        except _LateError:
            break
        views = (*views, view)
        if fresh.any() or len(problem.edges) < len(before.edges):
            continue
        line = timeline_of(problem.memory, problem.sizes)
        unfit = _too_large(problem, line)
        if not unfit.any():
            break
        problem = replace(problem, costs=np.where(unfit, np.inf, problem.costs))
    line = line or timeline_of(problem.memory, problem.sizes)
    small, kept, gone, constant = without_free(problem, np.diff(line.first) == 0, deadline)
    first = np.append(line.first[kept], line.first[-1])
    return Core(small, line._replace(first=first), views, tuple(gone), kept, problem, constant)


def _too_large(problem: Problem, line: Timeline) -> BoolArray:
    """Strategies that fit at no time beside the least of all others. Shape: as the costs."""
    dead = np.zeros(len(problem.costs), dtype=np.bool_)
    mark_too_large(
        problem.starts, line.first, line.lo, line.hi, line.at, line.usages, line.room, dead
    )
    return dead & np.isfinite(problem.costs)
