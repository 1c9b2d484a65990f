"""Few nodes under memory that no price can settle: branch and bound with soft consistency, by toulbar2 where installed.

Where a handful of large usages compete for room (a knapsack), relaxations say little, while propagation of the memory
rows beside a good choice says much. toulbar2 works on whole numbers: costs and usages are rounded down, so that its
bound holds for the problem as asked; its choices are judged there.
Source: Hurley et al., Multi-language evaluation of exact solvers in graphical model discrete optimization (2016).
"""

from __future__ import annotations

import importlib.util
import signal
import threading
from collections.abc import Iterator

import numpy as np

from planner.search.solver.ilp import MipAnswer
from planner.search.solver.problem import Problem
from planner.search.solver.timeline import Timeline
from planner.units import Array

HAVE_TOULBAR2 = importlib.util.find_spec("pytoulbar2") is not None
"""Whether the solver of weighted constraint networks is installed."""
COSTS = 10**12
"""Whole numbers that costs are scaled to, unless they are whole already."""
ROOM = 10**9
"""Whole numbers that the room of a time point is scaled to, unless usages are whole already."""
ROUNDING = 1e-6
"""Below a whole number by less than this is that number."""
VAC = 1
"""Virtual arc consistency before the search: the bound starts at the relaxation's, and the first choices are better."""


def handed_over(problem: Problem, line: Timeline) -> int:
    """Numbers that the solver is given one by one: pairs of strategies, and a term a strategy and time point."""
    first, second = problem.edges[:, 0], problem.edges[:, 1]
    pairs = int((problem.sizes[first] * problem.sizes[second]).sum())
    return pairs + int((np.diff(line.at) * (line.hi - line.lo)).sum())


def solve_weighted(problem: Problem, line: Timeline, *, below: float, seconds: int) -> MipAnswer:
    """The cheapest choice under memory that costs less than a known one.

    Args:
        problem: costs and edges.
        line: room over time.
        below: cost of the known choice; only cheaper ones are looked for, which is what rules most out.
        seconds: CPU time, whole seconds from 1 up.

    Returns:
        The choice, None where none was found, and the bound; where the search ended, nothing is cheaper.
    """
    import pytoulbar2  # type: ignore[import-untyped,import-not-found,unused-ignore]

    scale = _scale(np.concatenate([problem.costs, problem.tables]), COSTS / max(1.0, abs(below)))
    top = int(np.ceil(below * scale))
    network = pytoulbar2.CFN(top, vac=VAC, verbose=-1)
    for node, size in enumerate(problem.sizes.tolist()):
        network.AddVariable(f"n{node}", range(size))
    for node, costs in enumerate(np.split(problem.costs, problem.starts[1:-1])):
        network.AddFunction([node], _whole(costs, scale, top))
    for edge, (first, second) in enumerate(problem.edges.tolist()):
        table = problem.edge_table(edge).ravel()
        network.AddFunction([first, second], _whole(table, scale, top))
    for terms, room in _memory(problem, line):
        network.AddGeneralizedLinearConstraint(terms, "<=", room)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if main else None
    try:
        found = network.Solve(timeLimit=max(1, seconds))
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
    choice = None if found is None else np.array(found[0], dtype=np.int64)
    best = below if found is None else min(below, found[1] / scale)
    proved = not network.Option.limited
    bound = best if proved else min(best, float(network.GetDDualBound()) / scale)
    return MipAnswer(choice, bound, proved)


def _scale(values: Array, most: float) -> float:
    """1 where all finite values are whole numbers, else what makes them large ones."""
    finite = values[np.isfinite(values)]
    return 1.0 if bool(np.all(finite == np.rint(finite))) else most


def _whole(costs: Array, scale: float, top: int) -> list[int]:
    """Costs as whole numbers, rounded down; what is forbidden costs as much as the known choice."""
    finite = np.isfinite(costs)
    scaled = np.floor(np.where(finite, costs, 0.0) * scale + ROUNDING)
    return [int(c) for c in np.where(finite, np.minimum(scaled, top), top)]


def _memory(problem: Problem, line: Timeline) -> Iterator[tuple[list[tuple[int, int, int]], int]]:
    """Every time point as (node, strategy, usage) and its room, in whole numbers."""
    node = np.repeat(np.arange(len(problem.sizes)), np.diff(line.first))
    scale = _scale(line.usages, ROOM / max(1e-300, float(line.room.max(initial=0.0))))
    usages = np.floor(line.usages * scale + ROUNDING).astype(np.int64)
    for point, room in enumerate(line.room.tolist()):
        live = np.flatnonzero((line.lo <= point) & (line.hi > point))
        terms = [
            (int(node[z]), strategy, used)
            for z in live.tolist()
            for strategy, used in enumerate(usages[line.at[z] : line.at[z + 1]].tolist())
            if used
        ]
        if terms:
            yield terms, int(np.floor(room * scale + ROUNDING))
