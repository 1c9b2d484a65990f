"""The best choice of a block's strategies where memory is no matter, or has a price: narrowing, then elimination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import PlannerError
from planner.search.narrow import narrow
from planner.search.operator_problem import Nodes, Numbers
from planner.search.solver import TooWideError, eliminate
from planner.search.solver import build as build_problem
from planner.search.solver.solve import solve
from planner.units import Array, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The best choice where readers share copies in a given way."""

    nodes: Nodes
    choice: IntArray
    """Empty where none costs less than what was known."""
    cost: float
    bound: float
    prices: Array
    """Of memory at every moment, with the highest bound; empty where it is no matter."""


def none(nodes: Nodes, bound: float) -> Solved:
    """No choice that costs less than what was known."""
    return Solved(nodes, np.zeros(0, dtype=np.int64), np.inf, bound, np.zeros(0))


def free(p: Numbers, nodes: Nodes, known: float, seconds: float) -> Solved:
    """The optimum where memory is no matter, if it costs less than what is known.

    Raises:
        PlannerError: nothing is allowed (N03).
    """
    choice, bound = least(p.costs, list(p.tables), list(p.tables.values()), seconds, known)
    if choice is None:
        if bound == np.inf:
            raise excluded()
        return none(nodes, bound)
    cost = p.cost(choice)
    return Solved(nodes, choice, cost, min(bound, cost), np.zeros(0))


def least(
    costs: Sequence[Array],
    edges: Sequence[tuple[int, int]],
    tables: Sequence[Array],
    seconds: float,
    known: float = np.inf,
) -> tuple[IntArray | None, float]:
    """The optimum and its value; where it is too wide for elimination, the best and a bound.

    None where nothing costs less than what is known; its bound is inf where nothing is allowed.
    """
    left = narrow(costs, edges, tables, known)
    if left is None:
        return None, known
    try:
        found = eliminate(left.costs, left.edges, left.tables)
        reached, bound = found.choice, float(found.value)
    except TooWideError:
        answer = solve(build_problem(left.costs, left.edges, left.tables), seconds=seconds)
        if answer.choice is None:
            return None, min(known, answer.bound)
        reached, bound = answer.choice, answer.bound
    if bound == np.inf:
        return None, known
    choice = [kept[k] for kept, k in zip(left.kept, reached.tolist(), strict=True)]
    return np.array(choice, dtype=np.int64), bound


def excluded() -> PlannerError:
    """Nothing is allowed."""
    return PlannerError.of(
        "N03", "The pinned strategies and layouts exclude each other.", "Pin fewer operators."
    )
