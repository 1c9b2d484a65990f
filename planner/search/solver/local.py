"""Good choices for any size: decoding at prices, then large neighbourhoods solved exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.search.solver import local_loops as loops
from planner.search.solver import messages as passing
from planner.search.solver.clock import NEVER, Clock, Deadline
from planner.search.solver.decomposition import Dual
from planner.search.solver.problem import Problem
from planner.search.solver.timeline import Timeline
from planner.units import Array, IntArray

SHAPES = ((1, 1), (4, 1), (12, 1), (32, 1), (4, 3), (12, 4), (100, 1))
"""Nodes a tree and trees a move, taken in turn."""
NODES_A_TURN = 4000
"""Nodes that one shape's moves look at before the next shape's turn."""
FACTORS = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1e3, 1e4)
"""Of prices, at which choices are decoded until one fits."""
SWEEPS_A_DECODING = 4
"""Sweeps of the dual whose time a decoding takes."""
TOO_DEAR = 10.0
"""What a forbidden pair costs in the search, in largest allowed costs."""


@dataclass(slots=True)
class Found:
    """A choice, its plain cost (with what forbidden pairs cost), and whether memory holds."""

    choice: IntArray
    cost: float
    fits: bool


class Search:
    """Local search on one problem."""

    def __init__(self, problem: Problem, line: Timeline, dual: Dual, seed: int = 1) -> None:
        self.problem, self.line, self.dual, self.graph = problem, line, dual, dual.graph
        tables, costs = dual.graph.tables, problem.costs
        allowed = [float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in (tables, costs)]
        self.forbidden = TOO_DEAR * max(1.0, *allowed)
        self.tables = np.where(np.isfinite(tables), tables, self.forbidden)
        self.costs = np.where(np.isfinite(costs), costs, self.forbidden)
        count, strategies = len(problem.sizes), len(costs)
        self.seeds = np.flatnonzero(problem.sizes > 1)
        self.tolls = np.zeros(strategies)
        self.work = loops.Work(
            mark=np.zeros(count, np.int64),
            parent=np.zeros(count, np.int64),
            arc=np.zeros(count, np.int64),
            order=np.zeros(count, np.int64),
            plain=np.zeros(strategies),
            value=np.zeros(strategies),
            best=np.zeros(int(problem.sizes.sum()) * 8 + 4096, np.int64),
            fresh=np.zeros(count, np.int64),
            state=np.array([88172645463325252 + seed, 0], np.int64),
        )
        self.left = self._left(None)

    def _left(self, choice: IntArray | None) -> loops.Left:
        """Room left by a choice; by none, all of it."""
        line, points = self.line, len(self.line.room)
        room = line.room.copy()
        if choice is not None and len(line.lo):
            node = np.repeat(np.arange(len(choice)), np.diff(line.first))
            used = line.usages[line.at[:-1] + choice[node]]
            change = np.bincount(line.lo, used, points + 1) - np.bincount(line.hi, used, points + 1)
            room -= np.cumsum(change)[:-1]
        blocks = -(-points // loops.BLOCK)
        padded = np.full(blocks * loops.BLOCK, np.inf)
        padded[:points] = room
        low = padded.reshape(blocks, loops.BLOCK).min(axis=1) if blocks else np.zeros(0)
        return loops.Left(room=room, low=low, lazy=np.zeros(blocks))

    def cost(self, choice: IntArray) -> float:
        """Plain cost, forbidden pairs at their price."""
        p = self.problem
        first, second = p.edges[:, 0], p.edges[:, 1]
        at = p.table_of + choice[first] * p.sizes[second] + choice[second]
        return float(self.costs[p.starts[:-1] + choice].sum() + self.tables[at].sum())

    def price(self, prices: Array) -> None:
        """Sets what strategies pay for memory in the moves that follow."""
        passing.priced(self.graph, self.line, prices, self.tolls)
        finite = np.isfinite(self.graph.costs)
        self.tolls[finite] -= self.graph.costs[finite]
        self.tolls[~finite] = 0.0

    def decode(self, prices: Array, sweeps: int = 2) -> Found:
        """A choice node by node with the dual's messages, after sweeps at these prices."""
        dual = self.dual
        dual.prices = prices
        passing.priced(self.graph, self.line, prices, dual.theta)
        for _ in range(sweeps):
            dual.sweep()
        choice = np.zeros(len(self.problem.sizes), np.int64)
        left = self._left(None)
        fits = loops.decode(
            self.graph, self.tables, self.line, left, dual.theta, dual.messages, choice, dual.here
        )
        return Found(choice, self.cost(choice), bool(fits))

    def begin(self, choice: IntArray) -> None:
        """Makes a choice the present one."""
        self.choice, self.left = choice.copy(), self._left(choice)

    def turn(self, toll: float, accept: float, noise: float, clock: Clock, until: float) -> int:
        """Moves of every shape; returns how many were made."""
        made = 0
        for size, trees in SHAPES:
            if clock.now() > until:
                break
            many = max(1, NODES_A_TURN // (size * trees))
            made += loops.moves(
                self.graph, self.costs, self.tables, self.tolls, self.line, self.left, self.work,
                self.seeds, self.choice, many, size, trees, 100, toll, accept, noise,
            )[1]  # fmt: skip
        return made

    def first(self, prices: Array, deadline: Deadline = NEVER) -> Found:
        """The best of decodings at the prices and at multiples of them, dearer memory leaving more room.

        Without time, at these prices and at the dearest, as messages are.
        """
        best: Found | None = None
        for factor in FACTORS:
            late = deadline.past(seconds=SWEEPS_A_DECODING * self.dual.pace)
            if late and factor not in (FACTORS[0], FACTORS[-1]):
                continue
            found = self.decode(prices * factor, 0 if late else 2)
            if best is None or (not found.fits, found.cost) < (not best.fits, best.cost):
                best = found
            elif best.fits and best.cost < self.forbidden:
                break
        assert best is not None
        return best

    def improve(self, clock: Clock, until: float, turns: int) -> Found:
        """Descends from the present choice: first with tolls, which leaves room, then without."""
        begin = clock.now()
        best = Found(self.choice.copy(), self.cost(self.choice), True)
        for n in range(turns):
            spent = max(n / turns, (clock.now() - begin) / max(until - begin, 1e-9))
            if spent >= 1.0:
                break
            accept = max(0.0, 1.0 - 1.5 * spent)
            toll = max(accept, (0.0, 0.15, 0.3)[n % 3])
            self.turn(toll, accept, 0.0, clock, until)
            cost = self.cost(self.choice)
            if cost < best.cost:
                best = Found(self.choice.copy(), cost, True)
        return best
