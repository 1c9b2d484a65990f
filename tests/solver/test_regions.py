"""Regions solved exactly: never worse, always allowed, and the optimum where a region is everything."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from solver_cases import brute_force, problems

from planner.search.solver.clock import Clock
from planner.search.solver.decomposition import Dual
from planner.search.solver.ilp import usage
from planner.search.solver.presolve import InfeasibleError, presolve
from planner.search.solver.regions import Regions


def worst_allowed(core):
    """A choice of the core that fits and costs most; None where none fits."""
    found = None
    for choice in itertools.product(*(range(k) for k in core.problem.sizes)):
        x = np.array(choice, dtype=np.int64)
        cost = core.problem.cost(x)
        fits = (usage(core.problem, core.timeline, x) <= core.timeline.room).all()
        if fits and np.isfinite(cost) and (found is None or cost > found[0]):
            found = cost, x
    return None if found is None else found[1]


@settings(max_examples=300, deadline=None)
@given(problems(memory=True))
def test_from_the_worst_choice_to_the_optimum(problem):
    try:
        core = presolve(problem)
    except InfeasibleError:
        return
    start = worst_allowed(core) if len(core.problem.sizes) else None
    if start is None:
        return
    dual = Dual(core.problem, core.timeline)
    dual.start(Clock(stopped=True), 1.0)
    dual.climb(0.5, 20, Clock(stopped=True), 1.0)
    offered = [np.inf]

    def offer(part, choice):
        full = part.restore(choice)
        if problem.feasible(full):
            offered.append(min(offered[-1], problem.cost(full)))
        return offered[-1]

    regions = Regions(core, dual, start, offer, Clock(stopped=True), seed=1)
    first = regions.cost
    regions.run(1.0, rounds=20)
    assert regions.cost == brute_force(problem) <= first
    assert problem.cost(core.restore(regions.choice)) == regions.cost
