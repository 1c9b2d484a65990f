"""What pins cost: how much faster the step would be without each of them, and without any."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from planner.graph.placement import Chosen
from planner.plan.schema import PinPrice
from planner.search.engine import Outcome, search, search_within
from planner.search.pins import Pins
from planner.search.space import Space, build_space
from planner.search.stages.winners import best_step
from planner.trainers.trainer import Task

OPENING = ("schedule", "shard_group", "etp", "micro_batch", "offload")
"""Columns whose pins may add layouts that are not looked at without them."""
Fastest: TypeAlias = Callable[[Pins], float | None]
"""Seconds of the best step under some pins; None where that is not known."""


def pin_prices(pins: Pins, step: float, fastest: Fastest) -> tuple[PinPrice, ...]:
    """The price of every pin, and last, where there are several, of all together.

    Operators stay as free as the pins made them: what is compared is the same mode of planning.

    Args:
        pins: all of them; ``kv-heads=copy`` opens the space and therefore has no price.
        step: seconds of the plan under them.
        fastest: the best step under fewer; asked for the fewest first.
    """
    opened = replace(pins, free=pins.free or bool(pins.operators))
    rows = [
        (pin.text, replace(opened, pins=tuple(p for p in pins.pins if p is not pin)))
        for pin in pins.pins
    ]
    rows += [
        (pin.text, replace(opened, operators=tuple(p for p in pins.operators if p is not pin)))
        for pin in pins.operators
    ]
    if len(rows) > 1:
        rows.append(("all pins", replace(opened, pins=(), operators=())))
    found = [(text, fastest(fewer)) for text, fewer in reversed(rows)]
    return tuple(
        PinPrice(pin=text, without=best, cost=None if best is None else step - best)
        for text, best in reversed(found)
    )


class Without:
    """The best step under fewer pins, from as few searches as can be.

    The search without any pin has bounds of everything; under some of the pins its candidates are only sifted.
    """

    def __init__(
        self,
        task: Task,
        pins: Pins,
        pinned: tuple[Outcome, Outcome],
        top: int,
        deadline: float,
    ) -> None:
        self.task, self.pins, self.top, self.deadline = task, pins, top, deadline
        self.pinned, self.divided = pinned
        """What the search under all pins found, before and after its stages were divided."""
        self.free: Outcome | None = None

    def step(self, fewer: Pins) -> float | None:
        """Seconds of the best step under these pins; None where time ran out, or from Ctrl-C on."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return None
        try:
            found = self._fastest(fewer, left)
        except KeyboardInterrupt:
            found = None
        if found is None:
            self.deadline = -math.inf
        return found

    def _fastest(self, fewer: Pins, left: float) -> float | None:
        """The same; None where the search was stopped."""
        found = self._sifted(fewer, left) or self._searched(fewer, left)
        if found.stopped:
            return None
        if not fewer.pins and not fewer.operators:
            self.free = found
        return best_step(self.task, found, fewer, self.deadline, self._reached())

    def _reached(self) -> float:
        """Seconds of the plan under all pins where that is looked at under fewer, too."""
        steps = self.divided.step[: not self.pins.on(OPENING)]
        return float(steps.min(initial=math.inf))

    def _searched(self, fewer: Pins, left: float) -> Outcome:
        """A search of its own; where these pins leave no more than all do, the one that was made."""
        space = None
        if not self.pins.on(OPENING):
            uneven = fewer.fixed("vpp") is not None
            space = build_space(replace(self.task, uneven_chunks=uneven), fewer)
            pinned = self.pinned.space
            if len(space.candidates) == len(pinned.candidates) and _plans(space) == _plans(pinned):
                return self.pinned
        return search(self.task, fewer, top=self.top, time_limit=left, space=space)

    def _sifted(self, fewer: Pins, left: float) -> Outcome | None:
        """The answer among the candidates of the free search; None where they are not all, or have other plans."""
        if self.free is None or fewer.on((*OPENING, "vpp")):
            return None
        rows = self.free.space.candidates
        keep = np.ones(len(rows), dtype=np.bool_)
        for pin in fewer.pins:
            keep &= pin.keeps(getattr(rows, pin.column).astype(np.int64))
        index = np.flatnonzero(keep)
        if fewer.operators:
            from planner.search.semi_automatic import plan_operators

            plain = replace(rows.take(index), operators=np.zeros_like(index))
            planned = plan_operators(self.task, fewer.operators, plain)
            index = index[planned.kept]
            before = self.free.space.operators
            same = np.array([[new == old for old in before] for new in planned.task.operators])
            if not same[planned.rows.operators, rows.operators[index]].all():
                return None
        found = search_within(self.task, self.free, index, top=self.top, time_limit=left)
        return found if found.best is not None else None


def _plans(space: Space) -> list[Mapping[str, Chosen]]:
    """The plan of operators of every candidate that has one of its own."""
    numbers = space.candidates.operators
    return [space.operators[k] for k in numbers[numbers > 0].tolist()]
