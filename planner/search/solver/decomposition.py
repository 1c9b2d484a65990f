"""Lower bounds for any size: prices for memory, messages for edges.

At prices per time point the limit becomes a cost of every strategy, and message passing bounds what is left; the bound
minus the worth of all room never exceeds the optimum, at any prices and after any number of sweeps. Prices follow the
bound's own slope (exponentiated gradient): up where the relaxed choice uses more than there is, down where less.
"""

from __future__ import annotations

import time

import numpy as np

from planner.search.solver import messages as passing
from planner.search.solver.clock import Clock
from planner.search.solver.graph import graph_of
from planner.search.solver.problem import Problem
from planner.search.solver.timeline import Timeline
from planner.units import Array, IntArray

MEMORY_OF_SLOPE = 0.7
"""Weight of the past in the direction that prices follow."""
LEAST_ROOM = 0.02
"""Room, as share of the mean room, below which a point's slope is not magnified further."""


class Dual:
    """Prices and messages of one problem; `bound` is the best so far."""

    def __init__(self, problem: Problem, line: Timeline) -> None:
        self.graph, self.line = graph_of(problem), line
        self.share = passing.chain_shares(problem.edges, len(problem.sizes))
        both = problem.sizes[problem.edges].sum() if len(problem.edges) else 0
        self.messages, self.lows = np.zeros(int(both)), np.zeros(2 * len(problem.edges))
        self.theta, self.weight = np.zeros_like(problem.costs), np.zeros_like(problem.costs)
        widest = int(problem.sizes.max()) if len(problem.sizes) else 1
        self.here, self.there = np.zeros(widest), np.zeros(widest)
        self.forward, self.backward = np.zeros(len(problem.sizes)), np.zeros(len(problem.sizes))
        points = len(line.room)
        self.prices, self.slope, self.use = np.zeros(points), np.zeros(points), np.zeros(points)
        self.bound, self.best_prices = -np.inf, self.prices.copy()
        self.pace = 0.0
        """Seconds that the last sweep took."""
        self.scale = np.maximum(
            line.room, LEAST_ROOM * max(1e-300, float(np.mean(np.abs(line.room)))) if points else 1
        )

    def sweep(self) -> float:
        """A forward and a backward sweep at the present prices; returns and keeps the bound."""
        begin = time.perf_counter()
        worth = passing.priced(self.graph, self.line, self.prices, self.theta)
        value = -worth
        for ahead, floors in ((True, self.forward), (False, self.backward)):
            value = passing.sweep(
                self.graph,
                self.theta,
                self.share,
                self.messages,
                ahead,
                floors,
                self.lows,
                self.here,
                self.there,
            )
        value -= worth
        if value > self.bound:
            self.bound, self.best_prices = value, self.prices.copy()
        self.pace = time.perf_counter() - begin
        return value

    def start(self, clock: Clock, seconds: float, sweeps: int = 3) -> None:
        """Prices from nothing: the best of one price for all points, in powers of two."""
        last = clock.now() + seconds
        self.prices[:] = 0.0
        for _ in range(sweeps):
            free = self.sweep()
            if not clock.allows(self.pace, last):
                break
        if not len(self.prices):
            return
        base = max(abs(free), 1e-9) / max(1e-300, float(self.scale.sum()))
        top = self.bound
        best = 0.0
        for power in range(-8, 24):
            if not clock.allows(sweeps * self.pace, last):
                break
            self.prices[:] = base * 2.0**power
            for _ in range(sweeps):
                value = self.sweep()
            if value > top:
                top, best = value, self.prices[0]
            elif value < top - abs(top) and best > 0:
                break
        self.prices[:] = best if best > 0 else base * 2.0**-8

    def step(self, rate: float) -> float:
        """Sweeps, then moves the prices along the slope of the bound; returns the bound before the move."""
        value = self.sweep()
        if len(self.prices):
            g = self.graph
            passing.slopes(g, self.theta, self.share, self.messages, False, self.weight, self.here)
            passing.expected_use(g, self.line, self.weight, self.use)
            over = np.clip((self.use - self.line.room) / self.scale, -1.0, 1.0)
            self.slope *= MEMORY_OF_SLOPE
            self.slope += (1.0 - MEMORY_OF_SLOPE) * over
            self.prices *= np.exp(rate * self.slope)
        return value

    def climb(self, rate: float, steps: int, clock: Clock, seconds: float) -> None:
        """Steps with a rate that falls to nothing, until they are done or the time is up."""
        begin, last = clock.now(), clock.now() + seconds
        for n in range(steps):
            spent = max(n / steps, (clock.now() - begin) / max(seconds, 1e-9))
            if spent >= 1.0 or not clock.allows(self.pace, last):
                break
            self.step(rate * (1.0 - spent) + 1e-3)

    def return_to_best(self, sweeps: int = 3) -> None:
        """The best prices again, and messages that fit them."""
        self.prices = self.best_prices.copy()
        for _ in range(sweeps):
            self.sweep()

    def least_with(self) -> Array:
        """Lower bound of every choice that uses each strategy. Shape: as the costs."""
        worth = passing.priced(self.graph, self.line, self.prices, self.theta)
        self.sweep()
        least = np.zeros_like(self.theta)
        passing.least_with(
            self.graph,
            self.theta,
            self.messages,
            self.forward,
            self.backward,
            self.lows,
            least,
            self.here,
        )
        return least - worth


def carried(line: Timeline, prices: Array, to: Timeline) -> Array:
    """Prices of one timeline on another: each goes to the first point not before its own."""
    if not len(to.room):
        return np.zeros(0)
    at: IntArray = np.minimum(np.searchsorted(to.when, line.when), len(to.room) - 1)
    moved: Array = np.bincount(at, prices, len(to.room)).astype(np.float64)
    return moved + 1e-12 * float(prices.mean()) if len(prices) else moved
