"""Random small problems, and their optimum by trying everything."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from planner.search.solver.problem import Memory, Problem, build


@st.composite
def problems(draw, *, nodes=6, most=4, memory=False, forbidden=True):
    """A problem small enough for brute force; costs are small integers so that ties are common."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, nodes))
    sizes = rng.integers(1, most + 1, count)
    top = draw(st.sampled_from([2, 10, 1000]))
    share = draw(st.sampled_from([0.0, 0.1, 0.3])) if forbidden else 0.0
    pairs = (
        [
            (int(i), int(j))
            for i, j in itertools.permutations(range(count), 2)
            if rng.random() < draw(st.sampled_from([0.2, 0.4]))
        ]
        if count <= 3
        else _pairs(rng, count, draw(st.sampled_from([0.5, 1.0, 1.8])))
    )

    def table(*shape):
        values = rng.integers(0, top, shape).astype(float)
        values[rng.random(shape) < share] = np.inf
        return values

    costs = [table(k) for k in sizes]
    tables = [table(sizes[i], sizes[j]) for i, j in pairs]
    return build(costs, pairs, tables, _memory(rng, sizes) if memory else None)


def _pairs(rng, count, degree):
    return [
        tuple(int(v) for v in rng.choice(count, 2, replace=False))
        for _ in range(int(degree * count))
    ]


def _memory(rng, sizes) -> Memory:
    spans = rng.integers(0, 2 * len(sizes) + 1)
    nodes = rng.integers(0, len(sizes), spans)
    lo = rng.integers(0, 8, spans)
    usages = [rng.integers(0, 10, sizes[v]).astype(float) for v in nodes]
    flat = np.concatenate(usages) if usages else np.zeros(0)
    limit = float(rng.integers(3, 8 * max(1, spans)))
    return Memory(nodes=nodes, lo=lo, hi=lo + rng.integers(0, 6, spans), usages=flat, limit=limit)


def brute_force(problem: Problem) -> float:
    """Least cost over every choice; inf where none is allowed."""
    best = np.inf
    for choice in itertools.product(*(range(k) for k in problem.sizes)):
        at = np.array(choice, dtype=np.int64)
        cost = problem.cost(at)
        if cost < best and problem.feasible(at):
            best = cost
    return best
