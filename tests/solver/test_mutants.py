"""Changed instances: each is what it says, and the solver answers all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import mutants
from planner.search.solver.problem import least_peak
from tests.solver.test_solve import chain


@pytest.fixture
def problem():
    found = chain(12, 3, 5)
    return mutants.with_limit(found, mutants.ROOM * least_peak(found))


def test_every_change_has_an_answer(problem):
    told = {change: mutants.status(answer) for change, answer in mutants.answers(problem, 20.0)}
    assert len(told) == 8
    assert told.pop("0.1 % less than the least") == "none, proved"
    assert "unknown" not in told.values()
    assert told["pairs forbidden, room of a known choice"] == "0.00 %"


def test_changes_are_what_they_say(problem):
    rng = np.random.default_rng(0)
    dealt = mutants.permuted(problem, rng)
    for new, old in zip(dealt.node_costs(), problem.node_costs(), strict=True):
        assert sorted(new) == sorted(old)
    twice = mutants.doubled(problem, rng)
    first = np.zeros(len(problem.sizes), dtype=np.int64)
    assert twice.cost(first) == problem.cost(first)
    assert twice.cost(first + problem.sizes) >= problem.cost(first)
    assert twice.peak(first + problem.sizes) <= twice.peak(first) == problem.peak(first)
    both = mutants.joined(problem, rng)
    assert both.peak(np.tile(first, 2)) == 2 * problem.peak(first)
    assert len(both.edges) > 2 * len(problem.edges)
    fewer = mutants.forbidden(problem, first, rng)
    assert fewer.feasible(first)
    assert np.isinf(fewer.tables).any()
    late = mutants.shifted(problem, rng)
    assert late.memory.limit == np.floor(mutants.ROOM * least_peak(late))
    assert not np.array_equal(late.memory.lo, problem.memory.lo)


def test_the_least_peak_counts_what_is_allowed_only(problem):
    every = [problem.peak(np.full(len(problem.sizes), k)) for k in range(3)]
    assert least_peak(problem) <= min(every)
    costs = problem.costs.copy()
    costs[problem.starts[3] : problem.starts[4]] = np.inf
    assert least_peak(replace(problem, costs=costs)) == np.inf
