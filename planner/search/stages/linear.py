"""Programs over the cuts of a layout: the least of its longest path.

The linear one is solved again and again, a few paths more each time, and begun from the answer before: a tenth of the
time that a program takes which knows nothing. That of whole chunks is solved anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.search.stages.paths import Chunks
from planner.units import Array, IntArray

if TYPE_CHECKING:
    from ortools.linear_solver.pywraplp import Constraint, Variable

CLOSE = 2e-4
"""Share by which the longest path may exceed what the program says for its answer to be good enough."""
TRUST = 1e-6
"""The same by which a program's answer may be off: its tolerances."""
NODES = 400
"""Nodes of a program of whole chunks at most."""
_INFEASIBLE = 2
"""What :func:`scipy.optimize.milp` says where nothing keeps all rows."""
DUAL = "use_dual_simplex: true"
"""A path that joins leaves the answer optimal for what it cuts off, which is where the dual method goes on from."""


class Linear:
    """The least of the longest path and what follows it, where nothing holds whole layers."""

    def __init__(self, chunks: Chunks, enough: float) -> None:
        """No path is known yet.

        Args:
            chunks: what they take.
            enough: seconds; larger values are not told apart.
        """
        from ortools.linear_solver.pywraplp import Solver

        stages, size = len(chunks.send), chunks.fixed[0].size
        self.enough, self.solver = enough, Solver.CreateSolver("GLOP")
        self.solver.SetSolverSpecificParametersAsString(DUAL)
        self.cut = [self.solver.NumVar(1.0, chunks.layers, "") for _ in range(size)]
        self.held = [self._row(self.cut[stage::stages], 0.0) for stage in range(stages)]
        self._row(self.cut, chunks.layers).SetLb(chunks.layers)
        self.longest, self.after = (self.solver.NumVar(0.0, 1.0, "") for _ in range(2))
        self._row([self.longest, self.after], 1.0)
        for stage, (fixed, each) in enumerate(chunks.after.T / enough):
            self._above(self.after, self.cut[stage::stages], np.full(size // stages, each), fixed)
        self.solver.Minimize(self.longest + self.after)

    def _row(self, some: list[Variable], most: float) -> Constraint:
        row = self.solver.Constraint(-self.solver.infinity(), float(most))
        for each in some:
            row.SetCoefficient(each, 1.0)
        return row

    def _above(self, value: Variable, some: list[Variable], slopes: Array, fixed: float) -> None:
        row = self.solver.Constraint(float(fixed), self.solver.infinity())
        row.SetCoefficient(value, 1.0)
        for each, slope in zip(some, slopes.tolist(), strict=True):
            row.SetCoefficient(each, -slope)

    def join(self, slopes: Array, fixed: Array) -> None:
        """More paths, as of :meth:`planner.search.stages.paths.Paths.rows`."""
        for row, rest in zip(slopes / self.enough, fixed / self.enough, strict=True):
            self._above(self.longest, self.cut, row, rest)

    def solved(self, fewest: IntArray, most: IntArray) -> tuple[float, Array | None]:
        """The least and a cut that reaches it, stages holding so many layers; None where it is enough."""
        for row, *sides in zip(self.held, fewest.tolist(), most.tolist(), strict=True):
            row.SetBounds(*sides)
        if self.solver.Solve() != self.solver.OPTIMAL:
            return self.enough, None
        cut = np.array([each.solution_value() for each in self.cut])
        return float(self.solver.Objective().Value()) * self.enough, cut


def whole_chunks(
    chunks: Chunks, slopes: Array, fixed: Array, enough: float
) -> tuple[float, Array | None]:
    """Least seconds of the longest of some paths and what follows over all cuts of whole layers, and such a cut.

    Args:
        chunks: what they take.
        slopes: of the paths, as of :meth:`planner.search.stages.paths.Paths.rows`.
        fixed: likewise.
        enough: seconds; larger values are not told apart.

    Returns:
        The seconds, from below; no cut where none is below what is enough, or none was found.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    stages, (paths, size) = len(chunks.send), slopes.shape
    most = max(float(slopes.max()), float(np.abs(chunks.after).max())) * chunks.layers
    unit = min(enough, 2.0 * most + float(fixed.max()))  # nothing is longer
    rows, high = np.zeros((paths + 2 * stages + 2, size + stages + 2)), np.zeros(stages + 2)
    on_path, follows, holds = np.split(rows[:-2], [paths, paths + stages])
    on_path[:, :size], on_path[:, -2] = slopes / unit, -1.0
    follows[:, size:-2], follows[:, -1] = np.diag(chunks.after[1] / unit), -1.0
    holds[np.arange(size) % stages, np.arange(size)], holds[:, size:-2] = 1.0, -np.eye(stages)
    rows[-2, size:-2], rows[-1, -2:], high[-2:] = 1.0, 1.0, (chunks.layers, 1.0)
    low = np.concatenate([np.full(paths + stages, -np.inf), high[:-1], [0.0]])
    high = np.concatenate([-fixed / unit, -chunks.after[0] / unit, high])
    answer = milp(
        np.append(np.zeros(size + stages), [1.0, 1.0]),
        constraints=LinearConstraint(rows, low, high),
        bounds=Bounds(
            np.concatenate([np.ones(size), np.full(stages, size // stages), [0.0, 0.0]]),
            np.concatenate([np.full(size, np.inf), chunks.most, [1.0, 1.0]]),
        ),
        integrality=np.repeat([True, False], [size, stages + 2]),
        options={"mip_rel_gap": CLOSE, "node_limit": NODES},
    )  # fmt: skip
    if answer.status == _INFEASIBLE:
        return unit * (1.0 - TRUST), None
    least = max(0.0, float(answer.mip_dual_bound or 0.0) - TRUST) * unit
    if answer.x is None:
        return least, None
    return least, np.round(answer.x[:size])
