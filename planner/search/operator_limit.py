"""The best choice of a block's strategies within a limit of memory at every moment: branch and bound on prices.

Where memory has a price at every moment the limit is a cost, and elimination gives the optimum. At other prices its
choice costs what it costs and pays for what it takes: a plane over all prices, none of them below the best bound; the
next prices are where the planes known so far are highest. What the best prices leave is split, by what a node takes of
memory, until prices prove every part or memory rules it out.
Sources: Kelley, The cutting-plane method for solving convex programs (1960); Geoffrion, Lagrangean relaxation for
integer programming (1974).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
from scipy.optimize import linprog

from planner.errors import PlannerError
from planner.search.liveness import Live, Moment
from planner.search.operator_optimum import Solved, excluded, none
from planner.search.operator_part import Part, Plane
from planner.search.operator_problem import Nodes, Numbers
from planner.units import Array, BoolArray, show_bytes

ROUNDING = 1e-9
"""Share of a limit by which sums of bytes may exceed it, and of a cost that is no difference."""
FIRST_PRICE = 4.0
"""First cap of a price: at it the limit is worth so many plans."""
DEARER = 16.0
"""Factor by which the cap grows where the best prices reach it."""
DEAREST = 1e7
"""Where the limit is worth so many plans, memory is all that counts."""
PLANES = 40
"""Prices tried at most for the whole problem."""
FEW_PLANES = 4
"""And for each of its parts."""
WORTH_A_PRICE = 0.02
"""Share of the gap by which prices must promise to raise the bound of a part to be tried."""


@dataclass(frozen=True, slots=True, eq=False)
class Limited:
    """A block's choice problem within a limit."""

    p: Numbers
    nodes: Nodes
    live: Live
    moments: Sequence[Moment]
    limit: float
    """Bytes a rank, with what rounding may add."""


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """A part that may hold a better plan, and what prices say of it."""

    part: Part
    bound: float
    """No plan of it costs less."""
    prices: Array
    """With this bound."""
    planes: Sequence[Plane] = ()
    """Optima of it at some prices."""
    carried: Array = field(default_factory=lambda: np.zeros(0))
    """How much each carries of the highest bound that they allow."""

    def left(self, part: Part) -> _Open:
        """A smaller part of it."""
        if part is self.part:
            return self
        planes = [plane for plane in self.planes if part.has(plane.choice)]
        return _Open(part, self.bound, self.prices, planes)


def limited(q: Limited, seconds: float) -> Solved:
    """The best choice within the limit.

    Raises:
        PlannerError: none keeps within it (N02), or nothing is allowed at all (N03).
    """
    search = _Search(q, seconds)
    whole = Part.whole(q.p, q.live, q.limit)
    free = search.priced(whole, search.prices)
    if free is None:
        raise excluded()
    if search.best is None:
        search.begin(whole, free)
    if search.best is None:
        raise search.too_tight()
    return search.solved()


def proved(q: Limited, known: Solved, seconds: float) -> Solved:
    """The best choice within the limit that costs less than what is known, from the prices of that.

    Args:
        q: the problem.
        known: the best so far, of readers that share copies in another way.
        seconds: what is found until then is returned.
    """
    search = _Search(q, seconds, known)
    search.push(_Open(Part.whole(q.p, q.live, q.limit), -np.inf, known.prices))
    search.run()
    return search.solved()


class _Search:
    """Branch and bound over the parts of a problem."""

    def __init__(self, q: Limited, seconds: float, known: Solved | None = None) -> None:
        self.q, self.seconds, self.until = q, seconds, time.perf_counter() + seconds
        self.best: Plane | None = None
        self.known = known is not None
        """Whether some plan that fits is."""
        self.upper = known.cost if known else 2.0 * q.p.most() + 1.0
        """Cost of the best plan known, or one that no plan has."""
        self.prices = known.prices if known else np.zeros(q.live.moments)
        """With the highest bound of the whole."""
        self.scale = (known.cost if known else 0.0) / q.limit
        """Price at which the limit is worth a plan."""
        self.rows = np.flatnonzero(self.prices).tolist()
        """Moments at which some optimum broke the limit most."""
        self.thriftiest: Plane | None = None
        """The plan that takes least at its fullest moment."""
        self.heap: list[tuple[float, int, _Open]] = []
        """Parts that may hold a better plan, by their bounds."""
        self.turn = count()

    @property
    def enough(self) -> float:
        """A bound from which on a part is of no interest."""
        return self.upper * (1 - ROUNDING)

    def late(self) -> bool:
        return time.perf_counter() > self.until

    def priced(self, part: Part, prices: Array) -> Plane | None:
        """The optimum of a part at prices, kept if it is the best that fits."""
        found = part.optimum(prices, max(0.1, self.until - time.perf_counter()))
        if found is None:
            return None
        most = float(found.over.max())
        if most > 0 and (row := int(found.over.argmax())) not in self.rows:
            self.rows.append(row)
        if self.thriftiest is None or most < float(self.thriftiest.over.max()):
            self.thriftiest = found
        if most <= 0 and found.cost < self.upper:
            self.best, self.upper, self.known = found, found.cost, True
        return found

    def begin(self, whole: Part, free: Plane) -> None:
        """From the optimum where memory is no matter: prices, then all that they leave.

        Raises:
            PlannerError: memory is too little at one moment alone (N02).
        """
        self.scale = free.cost / self.q.limit
        root = self._climbed(_Open(whole, free.bound, self.prices, [free]), FEW_PLANES)
        if root is not None and self.best is None:
            root = root.left(self._fitting(root))
        if root is not None:
            root = self._climbed(root, PLANES)
        if root is not None:
            self.prices = root.prices
            self._split(root)
        self.run()

    def _fitting(self, root: _Open) -> Part:
        """The part as every moment alone leaves it, those that were fullest first."""
        over, part = np.max([plane.over for plane in root.planes], axis=0), root.part
        full = np.flatnonzero(part.full())
        for moment in full[np.argsort(-over[full], kind="stable")].tolist():
            left = part.fitting(moment)
            if left is None:
                raise self.too_tight()
            part = left
        return part

    def run(self) -> None:
        """Takes the part of least bound until none can hold a better plan, or the time is up."""
        while self.heap and self.heap[0][0] < self.enough and not self.late():
            found = self._climbed(heapq.heappop(self.heap)[2], FEW_PLANES)
            if found is not None:
                self._split(found)

    def push(self, one: _Open) -> None:
        """Rules out and puts what is left among the parts to be looked at."""
        left = one.part.cheaper(one.prices, self.upper)
        for moment in np.flatnonzero(one.prices).tolist():
            left = left and left.fitting(moment)
        if left is not None:
            heapq.heappush(self.heap, (one.bound, next(self.turn), one.left(left)))

    def _climbed(self, one: _Open, most: int) -> _Open | None:
        """With a higher bound: the optimum at some prices, then at those where all planes are highest.

        None where no better plan is in it.

        Args:
            one: the part, its prices and planes.
            most: prices that are tried.
        """
        prices, stale = one.prices, bool(one.prices.any()) or not one.planes
        cap = max(FIRST_PRICE * self.scale, DEARER * float(prices.max(initial=0.0)))
        for _ in range(most):
            if stale:
                found = self._tried(one, prices)
                if found is None:
                    return None
                one = found
            if self.late() or not one.planes:
                break
            prices, top, carried = self._highest(one.planes, cap)
            one, stale = replace(one, carried=carried), True
            if (prices >= cap * (1 - ROUNDING)).any() and cap < DEAREST * self.scale:
                cap *= DEARER
            elif top - one.bound <= max(ROUNDING * abs(top), self._small(one.bound)):
                break
        return one

    def _tried(self, one: _Open, prices: Array) -> _Open | None:
        """With the optimum at other prices, and without what is ruled out by it; None where nothing is left."""
        upper, plane = self.upper, self.priced(one.part, prices)
        if plane is None:
            return None
        higher = plane.bound > one.bound
        if higher:
            one = replace(one, bound=plane.bound, prices=prices)
        if one.bound >= self.enough:
            return None
        one = replace(one, planes=[*one.planes, plane])
        if not (self.known and (higher or self.upper < upper)):
            return one
        left = one.part.cheaper(one.prices, self.upper)
        return None if left is None else one.left(left)

    def _small(self, bound: float) -> float:
        """What a bound need not be raised by."""
        return WORTH_A_PRICE * (self.upper - bound) if self.known else 0.0

    def _highest(self, planes: Sequence[Plane], cap: float) -> tuple[Array, float, Array]:
        """Prices at which the lowest of some planes is highest, how high, and what every plane carries of it."""
        cost = np.array([plane.cost for plane in planes])
        over = np.array([plane.over[self.rows] for plane in planes])
        scale, unit = float(np.abs(cost).max()) or 1.0, float(np.abs(over).max(initial=0.0)) or 1.0
        found: Any = linprog(
            np.append(np.zeros(len(self.rows)), -1.0),
            A_ub=np.column_stack([-over / unit, np.ones(len(cost))]),
            b_ub=cost / scale,
            bounds=[(0.0, cap * unit / scale)] * len(self.rows) + [(None, None)],
        )
        prices = np.zeros(self.q.live.moments)
        if found.x is None:
            return prices, -np.inf, np.ones(len(planes))
        prices[self.rows] = found.x[:-1] * scale / unit
        return prices, -float(found.fun) * scale, -np.asarray(found.ineqlin.marginals)

    def _split(self, one: _Open) -> None:
        """Two parts of what is left are to be looked at."""
        halved = _halved(one)
        if halved is None:
            self.priced(one.part, np.zeros_like(one.prices))
            return
        for half in one.part.halves(*halved):
            self.push(one.left(half))

    def solved(self) -> Solved:
        """What was found and what no plan is below."""
        bound = min(self.enough, self.heap[0][0]) if self.heap else self.enough
        if self.best is None:
            return none(self.q.nodes, bound)
        return Solved(self.q.nodes, self.best.choice, self.best.cost, bound, self.prices)

    def too_tight(self) -> PlannerError:
        """No plan keeps within the limit, or none was found."""
        q, plane = self.q, self.thriftiest
        assert plane is not None
        searched = (
            "" if not self.heap else f" It was searched for {self.seconds:g} s, not to the end."
        )
        return PlannerError.of(
            "N02",
            f"The block cannot keep within {show_bytes(q.limit)} a rank.{searched}",
            f"The least found is {show_bytes(float(plane.over.max()))} more, while "
            f"{q.moments[int(plane.over.argmax())]}: give it more, or more ranks.",
        )


def _halved(one: _Open) -> tuple[int, BoolArray] | None:
    """A node and the states that one half has: those that pay more for memory than planes pay in the mean.

    The node is the one on which planes differ most; where none pays, the one of most states. None where nothing is
    left to choose.
    """
    part, most, best = one.part, 0.0, None
    carried = np.ones(len(one.planes))
    carried[: len(one.carried)] = one.carried
    chosen = np.array([plane.choice[part.nodes] for plane in one.planes])
    every = enumerate(zip(part.paid(one.prices), part.kept, strict=True))
    for at, (paid, kept) in every if carried.any() else ():
        places = np.searchsorted(kept, chosen[:, at])
        mean = float(carried @ paid[places] / carried.sum())
        spread = float(carried @ np.abs(paid[places] - mean))
        if spread > most and paid.min() <= mean < paid.max():
            most, best = spread, (at, paid > mean)
    if best is None and len(part.kept):
        at = int(np.argmax([len(kept) for kept in part.kept]))
        best = at, np.arange(len(part.kept[at])) == 0
    return best
