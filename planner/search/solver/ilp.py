"""Integer program with memory: tight edge rows, memory rows only where they are broken.

Node variables are integer; an edge has a continuous variable for each allowed pair, whose sums over rows and columns
equal the node variables. These equalities describe each edge exactly (its local marginal polytope), so the relaxation
is nearly integral. Memory rows come lazily: the points that prices point at first, then those that an answer breaks.
Source: Wainwright and Jordan (2008), section 4.1, for the polytope.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from planner.search.solver.problem import Problem
from planner.search.solver.timeline import Timeline
from planner.units import Array, IntArray

FIRST_ROWS = 100
"""Memory rows that the first program has: the points of highest price."""
ROWS_A_ROUND = 100
"""Memory rows that an answer breaking them adds at most."""
TRUST = 1e-7
"""Part of the objective's range by which a solver's bound may be off: its tolerances."""


@dataclass(frozen=True, slots=True)
class Program:
    """Objective and rows without memory: minimise cost @ x with rows @ x = right, 0 <= x <= 1."""

    cost: Array
    """Node variables first (as the problem's costs), then edge variables."""
    rows: sparse.csr_array
    right: Array
    constant: float
    """What was taken out of the costs: each node's and each table's least."""
    upper: Array
    """1, or 0 for what is forbidden."""


@dataclass(frozen=True, slots=True)
class MipAnswer:
    """What the integer program found."""

    choice: IntArray | None
    """Best choice that keeps memory; None if none was found."""
    bound: float
    """No choice costs less."""
    proved: bool
    """Whether the search ended by itself."""


def program_of(problem: Problem) -> Program:
    """The program of a problem, forbidden pairs left out."""
    strategies, count, start = len(problem.costs), len(problem.sizes), problem.starts
    allowed = np.isfinite(problem.costs)
    costs = np.where(allowed, problem.costs, 0.0)
    least = np.minimum.reduceat(np.where(allowed, problem.costs, np.inf), start[:-1])
    parts = [costs - np.where(allowed, np.repeat(least, problem.sizes), 0.0)]
    constant = float(least.sum())
    rows, columns = [np.repeat(np.arange(count), problem.sizes)], [np.arange(strategies)]
    values, right = [np.ones(strategies)], [np.ones(count)]
    row, column = count, strategies
    for e, (i, j) in enumerate(problem.edges):
        table = problem.edge_table(e)
        p, q = np.nonzero(np.isfinite(table))
        low = float(table[p, q].min()) if len(p) else 0.0
        parts.append(table[p, q] - low)
        constant += low
        variable = column + np.arange(len(p))
        for node, at in ((i, p), (j, q)):
            k = int(problem.sizes[node])
            rows += [row + at, row + np.arange(k)]
            columns += [variable, start[node] + np.arange(k)]
            values += [np.ones(len(p)), -np.ones(k)]
            right.append(np.zeros(k))
            row += k
        column += len(p)
    where = (np.concatenate(rows), np.concatenate(columns))
    matrix = sparse.csr_array((np.concatenate(values), where), shape=(row, column))
    upper = np.ones(column)
    upper[:strategies] = allowed
    return Program(np.concatenate(parts), matrix, np.concatenate(right), constant, upper)


def memory_rows(
    problem: Problem, line: Timeline, points: IntArray, width: int
) -> tuple[sparse.csr_array, Array]:
    """One row a point, usage of all that is live there, and its limit; both as share of the largest usage."""
    node = np.repeat(np.arange(len(problem.sizes)), np.diff(line.first))
    start, none = problem.starts, np.zeros(0, np.int64)
    rows, columns, values, limits = [none], [none], [np.zeros(0)], line.room[points]
    for row, point in enumerate(points):
        live = np.flatnonzero((line.lo <= point) & (line.hi > point))
        used = [line.usages[line.at[z] : line.at[z + 1]] for z in live]
        unit = max((float(u.max()) for u in used), default=1.0)
        limits[row] /= unit
        for z, u in zip(live, used, strict=True):
            rows.append(np.full(len(u), row))
            columns.append(start[node[z]] + np.arange(len(u)))
            values.append(u / unit)
    at = (np.concatenate(rows), np.concatenate(columns))
    return sparse.csr_array((np.concatenate(values), at), shape=(len(points), width)), limits


def usage(problem: Problem, line: Timeline, choice: IntArray) -> Array:
    """Room in use at each point. Shape (t,)."""
    points = len(line.room)
    if not len(line.lo):
        return np.zeros(points)
    node = np.repeat(np.arange(len(problem.sizes)), np.diff(line.first))
    used = line.usages[line.at[:-1] + choice[node]]
    change = np.bincount(line.lo, used, points + 1) - np.bincount(line.hi, used, points + 1)
    return np.cumsum(change)[:-1]


def broken(line: Timeline, used: Array) -> IntArray:
    """Points where more is used than there is, each the worst among its neighbours, worst first."""
    over = used - line.room
    padded = np.concatenate([[-np.inf], over, [-np.inf]])
    peak = (over >= padded[:-2]) & (over >= padded[2:]) & (over > 0)
    points = np.flatnonzero(peak)
    return points[np.argsort(-over[points], kind="stable")][:ROWS_A_ROUND]


def solve_ilp(
    problem: Problem,
    line: Timeline,
    *,
    seconds: float = 60.0,
    nodes: int | None = None,
    prices: Array | None = None,
) -> MipAnswer:
    """The exact optimum under memory, or the best bound when the budget ends.

    Args:
        problem: costs and edges.
        line: room over time.
        seconds: of all programs together.
        nodes: branch-and-bound nodes a program, for answers that do not depend on the machine's speed.
        prices: of memory, from a dual; say which rows come first.
    """
    program = program_of(problem)
    strategies = len(problem.costs)
    integral = np.zeros(len(program.cost), dtype=np.int64)
    integral[:strategies] = 1
    unit = max(1e-12, float(program.cost.max(initial=0.0)) / 1e4)
    last = time.perf_counter() + seconds
    options: dict[str, Any] = {"mip_rel_gap": 0.0}
    if nodes is not None:
        options["node_limit"] = nodes
    points = np.zeros(0, np.int64)
    if prices is not None and len(prices):
        points = np.sort(np.argsort(-prices, kind="stable")[:FIRST_ROWS])
    bound, proved = -np.inf, False
    while True:
        rules = [LinearConstraint(program.rows, program.right, program.right)]
        if len(points):
            table, limits = memory_rows(problem, line, points, len(program.cost))
            rules.append(LinearConstraint(table, -np.inf, limits))
        options["time_limit"] = max(0.1, last - time.perf_counter())
        got = milp(
            program.cost / unit,
            constraints=rules,
            integrality=integral,
            bounds=Bounds(0.0, program.upper),
            options=cast(Any, options),
        )
        if got.mip_dual_bound is not None and np.isfinite(got.mip_dual_bound):
            slack = TRUST * abs(got.mip_dual_bound)
            bound = max(bound, (got.mip_dual_bound - slack) * unit + program.constant)
        if got.x is None:
            return MipAnswer(None, np.inf if got.status == 2 else bound, got.status == 2)
        proved = got.status == 0
        bits = np.split(got.x[:strategies], problem.starts[1:-1])
        choice = np.array([int(b.argmax()) for b in bits], dtype=np.int64)
        more = broken(line, usage(problem, line, choice))
        if not len(more):
            return MipAnswer(choice, bound, proved)
        if not proved or time.perf_counter() > last:
            return MipAnswer(None, bound, False)
        points = np.union1d(points, more)
