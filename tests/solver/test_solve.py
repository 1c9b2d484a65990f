"""Presolve, bounds, integer program and the whole solver against brute force, memory-limited or not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_cases import brute_force, problems

from planner.search.solver.clock import NEVER, Clock, Deadline
from planner.search.solver.compiled import HAVE_NUMBA
from planner.search.solver.decomposition import Dual
from planner.search.solver.elimination import solve_exactly
from planner.search.solver.graph import graph_of
from planner.search.solver.ilp import solve_ilp, usage
from planner.search.solver.presolve import InfeasibleError, presolve, without
from planner.search.solver.problem import Memory, build
from planner.search.solver.solve import solve
from planner.search.solver.weighted import HAVE_TOULBAR2, solve_weighted

STOPPED = Clock(stopped=True)
needs_numba = pytest.mark.skipif(not HAVE_NUMBA, reason="minutes without numba")


def core_best(core):
    """Optimum of a core by trying everything, its constant included."""
    best, at = np.inf, None
    for choice in itertools.product(*(range(k) for k in core.problem.sizes)):
        x = np.array(choice, dtype=np.int64)
        cost = core.problem.cost(x) + core.constant
        if cost < best and (usage(core.problem, core.timeline, x) <= core.timeline.room).all():
            best, at = cost, x
    return best, at


class Ticks(Clock):
    """Every look at it takes a second."""

    seconds = 0

    def now(self):
        self.seconds += 1
        return float(self.seconds)


@settings(max_examples=1500, deadline=None)
@given(problems(memory=True), st.integers(0, 60))
def test_presolve_keeps_the_optimum_wherever_it_is_interrupted(problem, seconds):
    want = brute_force(problem)
    try:
        core = presolve(problem, Deadline(Ticks(), seconds) if seconds else NEVER)
    except InfeasibleError:
        assert want == np.inf
        return
    best, choice = core_best(core)
    assert best == want
    if choice is not None:
        full = core.restore(choice)
        assert problem.feasible(full)
        assert problem.cost(full) == want


@settings(max_examples=400, deadline=None)
@given(problems(memory=True), st.sampled_from([0.1, 1.0]))
def test_bounds_never_exceed_the_optimum(problem, rate):
    try:
        core = presolve(problem)
    except InfeasibleError:
        return
    if not len(core.problem.sizes):
        return
    want, _ = core_best(core)
    dual = Dual(core.problem, core.timeline)
    dual.start(Clock(stopped=True), 1.0)
    dual.climb(rate, 30, STOPPED, 1.0)
    slack = 1e-9 * max(1.0, abs(want))
    assert dual.bound + core.constant <= want + slack
    dual.return_to_best()
    least = dual.least_with() + core.constant
    start = core.problem.starts
    for choice in itertools.product(*(range(k) for k in core.problem.sizes)):
        x = np.array(choice, dtype=np.int64)
        if (usage(core.problem, core.timeline, x) <= core.timeline.room).all():
            assert (least[start[:-1] + x] <= core.problem.cost(x) + core.constant + slack).all()


@settings(max_examples=300, deadline=None)
@given(problems(memory=True), st.integers(0, 2**31))
def test_strategies_ruled_out_leave_the_rest_exact(problem, seed):
    try:
        core = presolve(problem)
    except InfeasibleError:
        return
    if not len(core.problem.sizes):
        return
    dead = np.random.default_rng(seed).random(len(core.problem.costs)) < 0.3
    deadline = Deadline(Ticks(), seed % 60) if seed % 60 else NEVER
    costs = np.where(dead, np.inf, core.problem.costs)
    want, _ = core_best(replace(core, problem=replace(core.problem, costs=costs)))
    try:
        less = without(core, dead, deadline)
    except InfeasibleError:
        assert want == np.inf
        return
    best, choice = core_best(less)
    assert best == want
    if choice is not None:
        assert problem.cost(less.restore(choice)) == want


@settings(max_examples=400, deadline=None)
@given(problems(memory=True))
def test_the_integer_program_finds_the_optimum(problem):
    try:
        core = presolve(problem)
    except InfeasibleError:
        return
    if not len(core.problem.sizes):
        return
    want, _ = core_best(core)
    got = solve_ilp(core.problem, core.timeline)
    assert got.proved
    if want == np.inf:
        assert got.choice is None
        assert got.bound == np.inf
    else:
        assert core.problem.cost(got.choice) + core.constant == pytest.approx(want, abs=1e-6)
        assert got.bound + core.constant == pytest.approx(want, rel=1e-5, abs=1e-3)


@settings(max_examples=600, deadline=None)
@given(problems(memory=True))
def test_the_solver_is_exact_on_small_problems(problem):
    want = brute_force(problem)
    got = solve(problem, effort=1)
    assert got.cost == want
    assert got.bound <= want
    assert got.gap == 0.0
    assert (got.choice is None) == (want == np.inf)


@settings(max_examples=300, deadline=None)
@given(problems(nodes=7))
def test_elimination_and_the_solver_agree_without_memory(problem):
    assert solve(problem, effort=1).cost == solve_exactly(problem).value


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_tables_of_equal_numbers_and_different_shapes_stay_different(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.permutation([1, 2, 2, 4, 4])
    store = rng.integers(0, 3, 16).astype(float)
    edges = [(i, j) for i, j in itertools.combinations(range(5), 2) if rng.random() < 0.6]
    tables = [store[: sizes[i] * sizes[j]].reshape(sizes[i], sizes[j]) for i, j in edges]
    problem = build([rng.integers(0, 2, k).astype(float) for k in sizes], edges, tables, None)
    want = brute_force(problem)
    assert solve(problem, effort=1).cost == solve_exactly(problem).value == want
    g = graph_of(problem)
    own = {(e.item(), a): g.own_rows[k] for a in range(5) for k, e in _arcs(g, a)}
    for (i, j), table in zip(edges, tables, strict=True):
        for (b, a), rows in (((j, i), table), ((i, j), table.T)):
            at = own[b, a]
            assert (g.tables[at : at + table.size] == rows.ravel()).all()


def _arcs(graph, node):
    """Numbers and other ends of a node's arcs."""
    return [(k, graph.other[k]) for k in range(graph.adj[node], graph.adj[node + 1])]


def chain(count, width, seed):
    """A problem too large for brute force: a long graph with shortcuts under a tight limit."""
    rng = np.random.default_rng(seed)
    edges = [(i, i + 1) for i in range(count - 1)] + [(i, i + 7) for i in range(0, count - 7, 3)]
    lo = np.arange(count)
    usages = rng.integers(1, 100, (count, width)).astype(float)
    memory = Memory(lo.copy(), lo, lo + rng.integers(1, 30, count), usages.ravel(), 500.0)
    costs = [rng.integers(0, 100, width).astype(float) for _ in range(count)]
    tables = [rng.integers(0, 100, (width, width)).astype(float) for _ in edges]
    return build(costs, edges, tables, memory)


@needs_numba
def test_the_same_effort_gives_the_same_answer():
    problem = chain(60, 5, 3)
    first, second = solve(problem, effort=1), solve(problem, effort=1)
    assert first.cost == second.cost
    assert first.bound == second.bound
    assert np.array_equal(first.choice, second.choice)
    assert problem.feasible(first.choice)
    assert 0.0 <= first.gap < 0.2


@needs_numba
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_whatever_the_time_there_is_a_choice_and_a_bound(seconds):
    problem = chain(300, 6, 4)
    got = solve(problem, seconds=seconds)
    assert problem.feasible(got.choice)
    assert problem.cost(got.choice) == got.cost
    assert 0.0 <= got.gap < 1.0


def test_a_deadline_ends_work_in_parts():
    done = []
    assert NEVER.parts(5000, lambda begin, end: done.extend(range(begin, end)))
    assert done == list(range(5000))
    done.clear()
    assert not Deadline(Ticks(), 3).parts(5000, lambda begin, end: done.extend(range(begin, end)))
    assert done == list(range(7))
    assert Deadline(Ticks(), 0).parts(0, lambda *_: done.clear())


def test_what_cannot_fit_is_called_infeasible():
    span = np.array([0])
    memory = Memory(span, span, span + 1, np.array([5.0, 6.0]), 4.0)
    got = solve(build([np.zeros(2)], memory=memory), effort=1)
    assert got.choice is None
    assert got.bound == np.inf


@pytest.mark.skipif(not HAVE_TOULBAR2, reason="toulbar2 is not installed")
@settings(max_examples=60, deadline=None)
@given(problems(memory=True), st.sampled_from([1.0, 0.37]))
def test_constraint_networks_agree_with_brute_force(problem, unit):
    scaled = replace(problem, costs=problem.costs * unit, tables=problem.tables * unit)
    try:
        core = presolve(scaled)
    except InfeasibleError:
        return
    if not len(core.problem.sizes):
        return
    best, _ = core_best(core)
    best -= core.constant
    most = float(abs(best)) + 10.0 if np.isfinite(best) else 1e6
    found = solve_weighted(core.problem, core.timeline, below=most, seconds=5)
    assert found.proved
    if not np.isfinite(best):
        assert found.choice is None
        assert found.bound == most
        return
    assert core.problem.cost(found.choice) == pytest.approx(best)
    assert found.bound == pytest.approx(best)
    assert (usage(core.problem, core.timeline, found.choice) <= core.timeline.room).all()
    nothing = solve_weighted(core.problem, core.timeline, below=best, seconds=5)
    assert nothing.choice is None or core.problem.cost(nothing.choice) == pytest.approx(best)
    assert nothing.bound == pytest.approx(best)


def test_too_little_memory_is_told_however_late():
    """Where even least usages of what is allowed exceed the limit, a reduction without time says so too."""
    nodes = np.array([0, 1])
    usages = np.array([3.0, 5.0, 4.0, 2.0])
    for limit, fits in ((7.0, True), (6.9, False)):
        memory = Memory(nodes, np.array([0, 2]), np.array([4, 6]), usages, limit)
        problem = build([np.zeros(2), np.array([0.0, np.inf])], [(0, 1)], [np.eye(2)], memory)
        answer = solve(problem, seconds=1e-9)
        assert (answer.bound == np.inf) == (not fits)
        late = Deadline(Clock(), -1.0)
        if fits:
            assert presolve(problem, late).timeline.room.min() >= 0.0
        else:
            with pytest.raises(InfeasibleError, match="least usages"):
                presolve(problem, late)
