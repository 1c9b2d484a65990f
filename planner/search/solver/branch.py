"""Branch and bound on what nodes take of memory, with prices and messages as bound.

Where few large usages compete for a time point (a knapsack), no prices close the gap. Halving the usages that one node
may have lets the presolve rule out what no longer fits beside them, which no branching on single strategies does.
Dives to the better child first, and goes on from the open part with the least bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.search.solver import messages as passing
from planner.search.solver.clock import Clock
from planner.search.solver.decomposition import Dual, carried
from planner.search.solver.ilp import solve_ilp
from planner.search.solver.local import Search
from planner.search.solver.presolve import Core, InfeasibleError, without
from planner.units import Array, BoolArray, IntArray

STEPS = 40
"""Dual steps a part."""
RATE = 0.3
"""Their first rate."""
LEAF_PAIRS = 20_000
"""Pairs of strategies up to which a part is given to the integer program."""
LEAF_SECONDS = 5.0
"""Time that it gets."""
SEARCH_WITHIN = 1.25
"""A part's decoded choice is improved only if it costs at most this much of the best."""
RULE_OUT_ROUNDS = 3
"""Rounds of ruling out a part."""

Offer = Callable[[Core, IntArray], float]
"""Takes a choice of a core, returns the cost of the best known so far."""


@dataclass(slots=True)
class Part:
    """A piece of the space of choices, and no choice in it costs less than its bound."""

    core: Core
    dual: Dual
    bound: float


class Tree:
    """The parts still open; `bound` is what all choices outside the incumbent cost at least."""

    def __init__(self, offer: Offer, cost: float, clock: Clock, until: float, seed: int) -> None:
        self.offer, self.cost, self.clock, self.until, self.seed = offer, cost, clock, until, seed
        self.heap: list[tuple[float, int, Part]] = []
        self.pushed, self.visited = 0, 0
        self.next: Part | None = None

    def run(self, core: Core, dual: Dual, parts: int) -> float:
        """Searches until all is closed, the time is up or so many parts were seen; returns the bound."""
        self.next = Part(core, dual, dual.bound + core.constant)
        while self.visited < parts and self.clock.now() <= self.until:
            part = self._take()
            if part is None:
                return self.cost
            if not self._leaf(part):
                self._expand(part)
        return self._bound()

    def _take(self) -> Part | None:
        part, self.next = self.next, None
        if part is None and self.heap:
            part = heapq.heappop(self.heap)[2]
            if part.bound >= self.cost:
                self.heap.clear()
                return None
        self.visited += 1
        return part

    def _bound(self) -> float:
        open_parts = [self.next.bound] if self.next is not None else []
        return min([self.cost, *open_parts, *(entry[0] for entry in self.heap[:1])])

    def _left(self) -> float:
        return self.until - self.clock.now()

    def _leaf(self, part: Part) -> bool:
        """Whether the integer program settled the part."""
        core = part.core
        if pairs_of(core) > LEAF_PAIRS:
            return False
        seconds = max(0.1, min(LEAF_SECONDS, self._left()))
        prices = carried(part.dual.line, part.dual.best_prices, core.timeline)
        got = solve_ilp(core.problem, core.timeline, seconds=seconds, prices=prices)
        if got.choice is not None:
            self.cost = self.offer(core, got.choice)
        return got.proved

    def _expand(self, part: Part) -> None:
        children: list[Part] = []
        for number, dead in enumerate(split(part)):
            if number and self.clock.now() > self.until:
                self._push(part)
                break
            try:
                child = self._bounded(without(part.core, dead), part)
            except InfeasibleError:
                continue
            if child is not None:
                children.append(child)
        children.sort(key=lambda c: c.bound)
        if children and self.next is None:
            self.next = children.pop(0)
        for child in children:
            self._push(child)

    def _push(self, part: Part) -> None:
        self.pushed += 1
        heapq.heappush(self.heap, (part.bound, self.pushed, part))

    def _bounded(self, core: Core, parent: Part) -> Part | None:
        """A part with its own bound and without what it need not look at; None if it is closed."""
        prices, line = parent.dual.best_prices, parent.dual.line
        bound = parent.bound
        for number in range(RULE_OUT_ROUNDS):
            if not len(core.problem.sizes):
                if (core.timeline.room >= 0).all():
                    self.cost = self.offer(core, np.zeros(0, np.int64))
                return None
            dual = Dual(core.problem, core.timeline)
            dual.prices = carried(line, prices, dual.line)
            dual.climb(RATE / (1 + number), STEPS // (1 + number), self.clock, self._left())
            bound = max(bound, dual.bound + core.constant)
            if bound >= self.cost:
                return None
            self._decode(core, dual)
            dual.return_to_best(2)
            dead = dual.least_with() + core.constant >= self.cost
            if dead.sum() * 10 < len(dead):
                break
            core, prices, line = without(core, dead), dual.best_prices, dual.line
        if not len(core.problem.sizes) or len(core.problem.costs) != len(dual.theta):
            return self._again(core, prices, dual, bound)
        return Part(core, dual, bound)

    def _again(self, core: Core, prices: Array, dual: Dual, bound: float) -> Part | None:
        """The last reduction's part, with messages of its own."""
        if not len(core.problem.sizes):
            if (core.timeline.room >= 0).all():
                self.cost = self.offer(core, np.zeros(0, np.int64))
            return None
        fresh = Dual(core.problem, core.timeline)
        fresh.prices = carried(dual.line, prices, fresh.line)
        fresh.climb(RATE / 2, STEPS // 4, self.clock, self._left())
        return Part(core, fresh, max(bound, fresh.bound + core.constant))

    def _decode(self, core: Core, dual: Dual) -> None:
        search = Search(core.problem, core.timeline, dual, self.seed + self.visited)
        search.price(dual.best_prices)
        found = search.first(dual.best_prices.copy())
        if not found.fits or found.cost >= search.forbidden:
            return
        cost = found.cost + core.constant
        self.cost = self.offer(core, found.choice)
        if cost <= SEARCH_WITHIN * self.cost and self.visited % 4 == 0:
            search.begin(found.choice)
            search.turn(0.0, 0.0, 0.0, self.clock, self.until)
            self.cost = self.offer(core, search.choice)


def pairs_of(core: Core) -> int:
    """Pairs of strategies over all edges."""
    p = core.problem
    if not len(p.edges):
        return 0
    return int((p.sizes[p.edges[:, 0]] * p.sizes[p.edges[:, 1]]).sum())


def split(part: Part) -> tuple[BoolArray, BoolArray]:
    """Strategies that each half does not have: of one node, the larger or the smaller usages.

    The node is the one whose relaxed choice spreads most over usages, weighed by what memory costs.
    """
    core, dual = part.core, part.dual
    p, line = core.problem, core.timeline
    dual.return_to_best(1)
    passing.slopes(dual.graph, dual.theta, dual.share, dual.messages, False, dual.weight, dual.here)
    total = np.concatenate([[0.0], np.cumsum(dual.prices)])
    node = np.repeat(np.arange(len(p.sizes)), np.diff(line.first))
    start, most, chosen = p.starts, 0.0, None
    for z, price in enumerate(total[line.hi] - total[line.lo]):
        i, used = node[z], line.usages[line.at[z] : line.at[z + 1]]
        weight = dual.weight[start[i] : start[i + 1]]
        middle = float(weight @ used)
        spread = price * float(weight @ np.abs(used - middle))
        if spread > most and used.min() <= middle < used.max():
            most, chosen = spread, (i, used > middle)
    if chosen is None:
        parts = np.split(dual.weight, start[1:-1])
        i = min((float(w.max()), v) for v, w in enumerate(parts) if len(w) > 1)[1]
        chosen = (i, np.arange(p.sizes[i]) != int(parts[i].argmax()))
    i, high = chosen
    first, second = np.zeros(len(p.costs), bool), np.zeros(len(p.costs), bool)
    first[start[i] : start[i + 1]], second[start[i] : start[i + 1]] = high, ~high
    return first, second
