"""Elimination against brute force, and a batch against its members one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_cases import brute_force, problems

from planner.search.solver.elimination import TooWideError, eliminate, order, solve_exactly
from planner.search.solver.problem import build


@settings(max_examples=1500, deadline=None)
@given(problems())
def test_elimination_finds_the_optimum(problem):
    got = solve_exactly(problem)
    assert got.value == brute_force(problem)
    if np.isfinite(got.value):
        assert problem.cost(got.choice) == got.value


@settings(max_examples=200, deadline=None)
@given(problems(nodes=7), st.integers(1, 4), st.integers(0, 2**31))
def test_a_batch_is_its_members(problem, count, seed):
    rng = np.random.default_rng(seed)
    edges = [(int(i), int(j)) for i, j in problem.edges]
    costs = [rng.random((count, 1, len(c))) * c for c in problem.node_costs()]
    tables = [rng.random((1, 2, *t.shape)) * t for t in problem.edge_tables()]
    with np.errstate(invalid="ignore"):
        got = eliminate(costs, edges, tables)
    if not edges:
        return
    assert got.value.shape == (count, 2)
    for a in range(count):
        for b in range(2):
            one = build([c[a, 0] for c in costs], edges, [t[0, b] for t in tables])
            assert got.value[a, b] == pytest.approx(solve_exactly(one).value, rel=1e-12)
            if np.isfinite(got.value[a, b]):
                assert one.cost(got.choice[a, b]) == pytest.approx(got.value[a, b], rel=1e-12)


def test_parallel_edges_and_loops_are_added_up():
    first, second = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[10.0, 20.0], [30.0, 40.0]])
    problem = build([np.zeros(2), np.zeros(2)], [(0, 1), (1, 0), (0, 0)], [first, second, first])
    assert len(problem.edges) == 1
    assert problem.cost(np.array([0, 1])) == 2 + 30 + 1


def test_order_stops_before_the_core():
    clique = [(i, j) for i in range(4) for j in range(i)]
    assert order([2] * 6, [*clique, (3, 4), (4, 5)], most=2) == [5, 4]


def test_too_wide_is_refused_before_memory_is_spent():
    clique = [(i, j) for i in range(12) for j in range(i)]
    with pytest.raises(TooWideError) as caught:
        eliminate([np.zeros(10)] * 12, clique, [np.zeros((10, 10))] * len(clique))
    assert caught.value.entries == 10**12
