"""The best choice of a block's strategies within a limit of memory at every moment.

Prices of memory come first, moment by moment as one turns out to be the fullest: with the optimum at some prices its
bound is a plane over all prices, and the next prices are where the planes known so far are highest. At the best prices
most strategies are ruled out; the integer program decides among the rest, with rows for the moments that its answers
break.
Source: Kelley, The cutting-plane method for solving convex programs (1960).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog

from planner.errors import PlannerError
from planner.search.liveness import Live, Moment
from planner.search.narrow import Tables, narrow
from planner.search.operator_optimum import Solved, least, none
from planner.search.operator_problem import Nodes, Numbers
from planner.search.solver import Memory
from planner.search.solver import build as build_problem
from planner.search.solver.solve import solve
from planner.units import Array, IntArray, show_bytes

DEAREST = 1.0
"""Seconds a byte at which memory is all that counts."""
PLANES = 80
"""Prices that are tried at most."""
ROUNDING = 1e-9
"""Share of a limit by which sums of bytes may exceed it, and of a cost that is no difference."""


@dataclass(frozen=True, slots=True, eq=False)
class Limited:
    """A block's choice problem within a limit."""

    p: Numbers
    nodes: Nodes
    live: Live
    moments: Sequence[Moment]
    limit: float
    """Bytes a rank, with what rounding may add."""

    def fits(self, used: Array) -> bool:
        """Whether the limit is kept at every moment."""
        return bool((used <= self.limit).all())


@dataclass(frozen=True, slots=True, eq=False)
class _Plane:
    """The optimum at some prices; at any others its cost is no less than the optimum there."""

    choice: IntArray
    cost: float
    used: Array
    """Bytes at every moment."""
    value: float
    """Of the optimum with what it pays for memory."""


@dataclass(slots=True)
class _Planes:
    """What prices have shown so far."""

    q: Limited
    seconds: float
    known: list[_Plane] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """Moments that were the fullest of some optimum and broke the limit."""
    best: _Plane | None = None
    """The cheapest that fits."""
    bound: float = -np.inf
    prices: Array = field(default_factory=lambda: np.zeros(0))
    """With the highest bound."""

    def at(self, prices: Array) -> _Plane:
        """The optimum at these prices. Shapes: (moments,)."""
        q = self.q
        costs, tables = q.live.priced(q.p, prices)
        choice, value = least(costs, list(q.p.tables), tables, self.seconds)
        assert choice is not None
        found = _Plane(choice, q.p.cost(choice), q.live.used(choice), value)
        self.known.append(found)
        if (bound := value - q.limit * float(prices.sum())) > self.bound:
            self.bound, self.prices = bound, prices
        if q.fits(found.used):
            if self.best is None or found.cost < self.best.cost:
                self.best = found
        elif (row := int(found.used.argmax())) not in self.rows:
            self.rows.append(row)
        return found

    def over(self) -> Array:
        """Bytes over the limit, of every plane at every row. Shapes: (planes, rows)."""
        return np.array([plane.used[self.rows] for plane in self.known]) - self.q.limit

    def spread(self, prices: Array) -> Array:
        """Prices of the rows as prices of all moments."""
        whole = np.zeros(self.q.live.moments)
        whole[self.rows] = prices
        return whole


def limited(q: Limited, seconds: float) -> Solved:
    """The best choice within the limit.

    Raises:
        PlannerError: none keeps within it (N02).
    """
    until = time.perf_counter() + seconds
    planes = _Planes(q, seconds)
    first = planes.at(np.zeros(q.live.moments))
    if q.fits(first.used):
        return Solved(q.nodes, first.choice, first.cost, first.value, planes.prices)
    _make_fit(planes, until)
    _raise_bound(planes, until)
    best = planes.best
    found = none(q.nodes, planes.bound)
    if best is not None:
        found = Solved(q.nodes, best.choice, best.cost, planes.bound, planes.prices)
        if best.cost - planes.bound <= ROUNDING * best.cost:
            return found
    found = replace(found, prices=planes.prices)
    better = proved(q, found, until - time.perf_counter(), planes.rows)
    if best is None and not len(better.choice):
        raise _too_tight(planes, proven=better.bound == np.inf)
    bound = max(planes.bound, better.bound)
    return replace(better if len(better.choice) else found, bound=bound)


def _highest(
    cost: Array, slope: Array, *, most: float = np.inf, whole: bool = False
) -> tuple[Array, float]:
    """Prices at which the lowest of some planes is highest, and how high it is there.

    Args:
        cost: of every plane without prices.
        slope: how it grows with every price. Shapes: (planes, rows).
        most: of a price.
        whole: prices sum to 1.
    """
    unit, count = float(np.abs(slope).max()) or 1.0, slope.shape[1]
    rows = np.column_stack([-slope / unit, np.ones(len(cost))])
    total = 1.0 if whole else unit
    found: Any = linprog(
        np.append(np.zeros(count), -1.0),
        A_ub=rows,
        b_ub=cost,
        A_eq=np.append(np.ones(count), 0.0)[None] if whole else None,
        b_eq=np.ones(1) if whole else None,
        bounds=[(0.0, most * total)] * count + [(None, None)],
    )
    if found.x is None:
        return np.zeros(count), np.inf
    high = float(found.x[count])
    return np.asarray(found.x[:count]) / total, high * unit if whole else high


def _make_fit(planes: _Planes, until: float) -> None:
    """Something that fits, at memory's dearest: the moments share one price, and the fullest takes most of it.

    Raises:
        PlannerError: no choice fits (N02).
    """
    q = planes.q
    shares = np.ones(1)
    for _ in range(PLANES):
        found = planes.at(DEAREST * planes.spread(shares))
        if planes.best is not None or time.perf_counter() > until:
            return
        used = planes.over() + q.limit
        floor = float(found.used[planes.rows[: len(shares)]] @ shares)
        if floor > q.limit * (1 + ROUNDING):
            raise _too_tight(planes)
        shares, most = _highest(np.zeros(len(used)), used, whole=True)
        if most <= floor * (1 + ROUNDING):
            return


def _raise_bound(planes: _Planes, until: float) -> None:
    """The highest bound that prices give."""
    for _ in range(PLANES):
        cost = np.array([plane.cost for plane in planes.known])
        scale = float(np.abs(cost).max()) or 1.0
        prices, most = _highest(cost / scale, planes.over(), most=DEAREST / scale)
        slack = ROUNDING * max(abs(planes.bound), scale)
        if most * scale <= planes.bound + slack or time.perf_counter() > until:
            return
        planes.at(planes.spread(prices * scale))


def _too_tight(planes: _Planes, *, proven: bool = True) -> PlannerError:
    q, searched = planes.q, f" It was searched for {planes.seconds:g} s, not to the end."
    worst = min(planes.known, key=lambda plane: float(plane.used.max()))
    moment = q.moments[int(worst.used.argmax())]
    return PlannerError.of(
        "N02",
        f"The block cannot keep within {show_bytes(q.limit)} a rank.{'' if proven else searched}",
        f"The least found is {show_bytes(float(worst.used.max()) - q.limit)} more, while {moment.operator} runs "
        f"{moment.phase}s: give it more, or more ranks.",
    )


def proved(q: Limited, known: Solved, seconds: float, rows: Sequence[int] = ()) -> Solved:
    """The integer program over the strategies that prices leave, for what costs less than is known.

    Args:
        q: the problem.
        known: the best so far and the prices that rule out.
        seconds: of all programs together; what is known then is returned.
        rows: moments that the first program has, besides those that have a price.
    """
    until = time.perf_counter() + seconds
    costs, tables = q.live.priced(q.p, known.prices)
    pairs = list(q.p.tables)
    if np.isfinite(known.cost):
        upper = known.cost + q.limit * float(known.prices.sum())
        left = narrow(costs, pairs, tables, upper)
        if left is None:
            return none(q.nodes, known.cost)
    else:
        left = Tables(costs, pairs, tables, [np.arange(len(cost)) for cost in costs])
    at = sorted({*rows, *np.flatnonzero(known.prices).tolist()})
    bound = -np.inf
    while True:
        answer = _program(q, left, at).solved(until - time.perf_counter())
        bound = max(bound, min(answer.bound, known.cost))
        if answer.choice is None or answer.cost >= known.cost:
            return none(q.nodes, bound)
        used = q.live.used(answer.choice)
        if q.fits(used):
            return Solved(q.nodes, answer.choice, answer.cost, bound, known.prices)
        if time.perf_counter() > until:
            return none(q.nodes, bound)
        at = sorted({*at, *np.flatnonzero(used > q.limit).tolist()})


@dataclass(frozen=True, slots=True)
class _Found:
    choice: IntArray | None
    cost: float
    bound: float


@dataclass(slots=True)
class _Program:
    """The choice problem among what is left, with memory at some moments: pairs that take memory are nodes."""

    kept: list[IntArray]
    costs: list[Array]
    edges: list[tuple[int, int]] = field(default_factory=list)
    tables: list[Array] = field(default_factory=list)
    held: list[tuple[int, int, int, Array]] = field(default_factory=list)
    """Node, first moment, first after it, and bytes of its states."""
    limit: float = np.inf

    def solved(self, seconds: float) -> _Found:
        memory = None
        if self.held:
            nodes, lo, hi, sizes = zip(*self.held, strict=True)
            memory = Memory(
                nodes=np.array(nodes, dtype=np.int64),
                lo=np.array(lo, dtype=np.int64),
                hi=np.array(hi, dtype=np.int64),
                usages=np.concatenate(sizes),
                limit=self.limit,
            )
        problem = build_problem(self.costs, self.edges, self.tables, memory)
        answer = solve(problem, seconds=max(0.1, seconds))
        if answer.choice is None:
            return _Found(None, np.inf, answer.bound)
        chosen = zip(self.kept, answer.choice.tolist(), strict=False)
        choice = np.array([kept[k] for kept, k in chosen], dtype=np.int64)
        return _Found(choice, answer.cost, answer.bound)


def _program(q: Limited, left: Tables, at: Sequence[int]) -> _Program:
    real = [cost[kept] for cost, kept in zip(q.p.costs, left.kept, strict=True)]
    found = _Program(list(left.kept), real, limit=q.limit)
    joint: dict[tuple[int, ...], list[tuple[int, int, Array]]] = {}
    for span in q.live.spans:
        lo, hi = (int(np.searchsorted(at, end)) for end in (span.lo, span.hi))
        size = span.size[np.ix_(*(left.kept[v] for v in span.nodes))]
        if lo >= hi or not size.any():
            continue
        if len(span.nodes) == 1:
            found.held.append((span.nodes[0], lo, hi, size))
        elif (size == size[:, :1]).all():
            found.held.append((span.nodes[0], lo, hi, size[:, 0]))
        elif (size == size[:1]).all():
            found.held.append((span.nodes[1], lo, hi, size[0]))
        else:
            joint.setdefault(span.nodes, []).append((lo, hi, size))
    for pair, table in q.p.tables.items():
        _add_edge(found, pair, table[np.ix_(*(left.kept[v] for v in pair))], joint.get(pair, []))
    return found


def _add_edge(
    found: _Program, pair: tuple[int, int], table: Array, held: list[tuple[int, int, Array]]
) -> None:
    """An edge, or a node for each of its pairs where they take memory."""
    if not held:
        found.edges.append(pair)
        found.tables.append(table)
        return
    allowed = np.nonzero(np.isfinite(table))
    node = len(found.costs)
    found.costs.append(table[allowed])
    for end, mine in zip(pair, allowed, strict=True):
        found.edges.append((node, end))
        states = np.arange(len(found.costs[end]))
        found.tables.append(np.where(mine[:, None] == states, 0.0, np.inf))
    found.held += [(node, lo, hi, size[allowed]) for lo, hi, size in held]
