"""Part of a block's choice problem: some states of every node, ruled out further by cost and by memory at prices.

Both rulings ask what a choice with some state takes at least: more than the best known plan, priced memory included, or
more memory at some moment than there is. They are exact: no plan that is wanted is lost. A node that has
one state left is decided: what it costs and holds is taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.search.liveness import Live, Span
from planner.search.narrow import narrow
from planner.search.operator_optimum import least
from planner.search.operator_problem import Numbers
from planner.units import Array, BoolArray, IntArray

ROUNDED = 1e-13
"""Share of what memory is worth by which rounding of sums may raise a bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """The optimum at some prices; at any others its cost is no less than the optimum there."""

    choice: IntArray
    """States by their numbers in the whole problem."""
    cost: float
    over: Array
    """Bytes beyond the limit at every moment."""
    bound: float
    """No plan of the part that keeps the limit costs less."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What is left of the problem."""

    p: Numbers
    live: Live
    nodes: IntArray
    """Those that are not decided, by their numbers in the whole problem."""
    kept: Sequence[IntArray]
    """States of each, by their numbers in the whole problem, in order."""
    decided: IntArray
    """State of every node of the whole problem that is decided."""
    constant: float
    """What these cost."""
    room: Array
    """Bytes a rank that they leave at every moment."""

    @classmethod
    def whole(cls, p: Numbers, live: Live, limit: float) -> Part:
        """All of it."""
        kept = [np.arange(len(cost)) for cost in p.costs]
        none = np.zeros(len(kept), dtype=np.int64)
        every = cls(p, live, np.arange(len(kept)), kept, none, 0.0, np.full(live.moments, limit))
        return every._taken_out()

    def only(self, kept: Sequence[IntArray]) -> Part:
        """With these of its states alone."""
        if all(len(states) == len(cost) for states, cost in zip(kept, self.p.costs, strict=True)):
            return self
        left = [mine[states] for mine, states in zip(self.kept, kept, strict=True)]
        return replace(self, p=self.p.only(kept), live=self.live.only(kept), kept=left)._taken_out()

    def halves(self, at: int, states: BoolArray) -> tuple[Part, Part]:
        """Without some states of a node, and with these alone."""
        every = [np.arange(len(cost)) for cost in self.p.costs]
        sides = (np.flatnonzero(side) for side in (~states, states))
        first, second = (self.only([*every[:at], side, *every[at + 1 :]]) for side in sides)
        return first, second

    def has(self, choice: IntArray) -> bool:
        """Whether a choice of the whole problem is among what is left."""
        fixed = np.ones(len(choice), dtype=np.bool_)
        fixed[self.nodes] = False
        mine = zip(choice[self.nodes].tolist(), self.kept, strict=True)
        same = bool((choice == self.decided)[fixed].all())
        return same and all(state in kept for state, kept in mine)

    def cheaper(self, prices: Array, most: float) -> Part | None:
        """Without states whose plans all cost more than this or break the limit; None where nothing is left."""
        costs, tables = self.live.priced(self.p, prices)
        return self._narrowed(costs, tables, most - self.constant + float(prices @ self.room))

    def fitting(self, moment: int) -> Part | None:
        """Without states that do not fit beside the least of all others at a moment; None where nothing does."""
        weights = (np.arange(self.live.moments) == moment).astype(np.float64)
        costs, tables = self.live.priced(self.p.allowed(), weights)
        return self._narrowed(costs, tables, float(self.room[moment]))

    def optimum(self, prices: Array, seconds: float) -> Plane | None:
        """The cheapest choice where memory has a price, seconds a byte at every moment; None where none is allowed."""
        costs, tables = self.live.priced(self.p, prices)
        choice, value = least(costs, list(self.p.tables), tables, seconds)
        if choice is None or self.constant == np.inf:
            return None
        whole = self.decided.copy()
        whole[self.nodes] = [
            kept[state] for kept, state in zip(self.kept, choice.tolist(), strict=True)
        ]
        over = self.live.used(choice) - self.room
        rounded = ROUNDED * float(prices @ np.abs(self.room))
        bound = value + self.constant - float(prices @ self.room) - rounded
        return Plane(whole, self.p.cost(choice) + self.constant, over, bound)

    def full(self) -> BoolArray:
        """Moments at which it may exceed the limit."""
        most = [span.size.max() for span in self.live.spans]
        return np.asarray(self.live.cover @ np.array(most) > self.room)

    def paid(self, prices: Array) -> list[Array]:
        """What every state pays for memory at least. Shapes: (states,) of each node."""
        paid = [np.zeros(len(cost)) for cost in self.p.costs]
        for price, span in zip(prices @ self.live.cover, self.live.spans, strict=True):
            for axis, node in enumerate(span.nodes):
                paid[node] += price * (
                    span.size if len(span.nodes) == 1 else span.size.min(axis=1 - axis)
                )
        return paid

    def _narrowed(self, costs: list[Array], tables: list[Array], most: float) -> Part | None:
        left = narrow(costs, list(self.p.tables), tables, most)
        return None if left is None else self.only(left.kept)

    def _taken_out(self) -> Part:
        """Without the nodes that have one state."""
        sizes = np.array([len(cost) for cost in self.p.costs], dtype=np.int64)
        single = sizes == 1
        if not single.any():
            return self
        number = (np.cumsum(~single) - 1).tolist()
        fixed = single.tolist()
        constant, p = self.constant, Numbers()
        for cost, one in zip(self.p.costs, fixed, strict=True):
            if one:
                constant += float(cost[0])
            else:
                p.node(cost)
        for pair, table in self.p.tables.items():
            nodes, left = _open(pair, table, fixed, number)
            if len(nodes) == 2:
                p.tables[nodes[0], nodes[1]] = left
            elif nodes:
                p.costs[nodes[0]] = p.costs[nodes[0]] + left
            else:
                constant += float(left)
        room, spans, covers = self.room.copy(), [], []
        for span, cover in zip(self.live.spans, self.live.cover.T, strict=True):
            nodes, size = _open(span.nodes, span.size, fixed, number)
            if nodes:
                spans.append(Span(nodes, span.lo, span.hi, size))
                covers.append(cover)
            else:
                room -= cover * float(size)
        cover = np.array(covers, dtype=np.bool_).reshape(len(spans), len(room)).T
        decided = self.decided.copy()
        decided[self.nodes[single]] = [k[0] for k, one in zip(self.kept, fixed, strict=True) if one]
        kept = [k for k, one in zip(self.kept, fixed, strict=True) if not one]
        live = Live(tuple(spans), self.live.moments, cover)
        return Part(p, live, self.nodes[~single], kept, decided, constant, room)


def _open(
    nodes: tuple[int, ...], table: Array, fixed: Sequence[bool], number: Sequence[int]
) -> tuple[tuple[int, ...], Array]:
    """Nodes of a table that are not decided, by their new numbers, and what is left of it."""
    index = tuple(0 if fixed[node] else slice(None) for node in nodes)
    return tuple(number[node] for node in nodes if not fixed[node]), table[index]
