"""Large neighbourhoods solved exactly: a region of the graph is free, everything else holds its strategy.

With most nodes fixed, presolve leaves little and prices come near the optimum of the region, so that a few parts of
branch and bound prove it. Regions grow while they are proved without finding anything, and shrink where they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from planner.search.solver.branch import Tree
from planner.search.solver.clock import Clock
from planner.search.solver.decomposition import Dual, carried
from planner.search.solver.presolve import Core, InfeasibleError, without
from planner.units import BoolArray, IntArray

FIRST = 60
"""Nodes of the first regions."""
GROWTH = 1.25
"""Factor by which they grow and shrink."""
PATIENCE = 5
"""Regions proved in a row without a better choice after which they grow."""
PARTS = 20
"""Parts of branch and bound that a region gets."""
SECONDS = 3.0
"""Time that it gets."""
DIVE = 10.0
"""Time of the first, which is everything: a dive for a choice from which regions get far."""
STEPS = 40
"""Dual steps of a region."""
RATE = 0.35
"""Their first rate."""


class Regions:
    """Improves a choice of a core region by region."""

    def __init__(
        self,
        core: Core,
        dual: Dual,
        choice: IntArray,
        offer: Callable[[Core, IntArray], float],
        clock: Clock,
        seed: int,
    ) -> None:
        self.core, self.dual, self.choice = core, dual, choice.copy()
        self.report, self.clock, self.seed = offer, clock, seed
        self.cost = offer(core, choice)
        self.random = np.random.default_rng(seed)
        line, count = core.timeline, len(core.problem.sizes)
        self.node = np.repeat(np.arange(count), np.diff(line.first))
        runs = [line.usages[a:b] for a, b in pairwise(line.at)]
        self.spread = np.array([run.max() - run.min() for run in runs])
        self.paid = float(dual.best_prices.sum())
        self.owner = np.repeat(np.arange(count), core.problem.sizes)
        self.near: list[list[int]] = [[] for _ in range(count)]
        for i, j in core.problem.edges:
            self.near[i].append(int(j))
            self.near[j].append(int(i))

    def run(self, until: float, rounds: int) -> None:
        """Takes one region after another until the time is up, so many were taken, or the whole was proved."""
        count = len(self.core.problem.sizes)
        size, quiet = float(min(FIRST, count)), 0
        if self._solve(np.ones(count, np.bool_), until, DIVE):
            return
        for _ in range(rounds):
            if self.clock.now() > until:
                return
            before = self.cost
            proved = self._solve(self._region(int(size)), until, SECONDS)
            if not proved:
                size, quiet = max(2.0, size / GROWTH), 0
            elif self.cost < before:
                quiet = 0
            elif (quiet := quiet + 1) >= PATIENCE:
                if size >= count:
                    return
                size, quiet = min(size * GROWTH, float(count)), 0

    def _region(self, size: int) -> BoolArray:
        """Nodes around one node, or around some of those that compete for memory at one time."""
        count = len(self.core.problem.sizes)
        chosen = [int(self.random.integers(count))]
        if self.paid > 0 and self.random.random() < 0.5:
            chosen = self._competitors(max(1, size // 2))
        free = np.zeros(count, np.bool_)
        free[chosen] = True
        edge, many = list(chosen), len(chosen)
        while many < size and edge:
            node = edge.pop(int(self.random.integers(len(edge))))
            for other in self.near[node]:
                if not free[other] and many < size:
                    free[other] = True
                    many += 1
                    edge.append(other)
        return free

    def _competitors(self, many: int) -> list[int]:
        """Nodes that compete for memory at one time; rather at dear times, and rather of very different usages."""
        line, prices = self.core.timeline, self.dual.best_prices
        at = self.random.choice(len(prices), p=prices / self.paid)
        spans = np.flatnonzero((line.lo <= at) & (at < line.hi))
        weight = self.spread[spans]
        spans = spans[weight > 0]
        drawn = self.random.random(len(spans)) ** (1.0 / (weight[weight > 0] / weight.max()))
        order = np.argsort(-drawn)
        return [int(i) for i in dict.fromkeys(self.node[spans[order]])][:many]

    def _solve(self, free: BoolArray, until: float, seconds: float) -> bool:
        """The best choice of a region; whether nothing in it is left open."""
        keep = free[self.owner]
        keep[self.core.problem.starts[:-1] + self.choice] = True
        try:
            part = without(self.core, ~keep)
        except InfeasibleError:
            return True
        if not len(part.problem.sizes):
            if (part.timeline.room >= 0).all():
                self._offer(part, np.zeros(0, np.int64))
            return True
        dual = Dual(part.problem, part.timeline)
        dual.prices = carried(self.dual.line, self.dual.best_prices, dual.line)
        until = min(until, self.clock.now() + seconds)
        dual.climb(RATE, STEPS, self.clock, until - self.clock.now())
        if dual.bound + part.constant >= self.cost:
            return True
        tree = Tree(self._offer, self.cost, self.clock, until, self.seed)
        return tree.run(part, dual, PARTS) >= self.cost

    def _offer(self, part: Core, choice: IntArray) -> float:
        cost = self.report(part, choice)
        if cost < self.cost:
            self.cost, self.choice = cost, part.restore(choice, self.core)
        return self.cost
