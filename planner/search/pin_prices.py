"""What pins cost: how much faster the step would be without each of them, and without any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from planner.plan.schema import PinPrice
from planner.search.pins import Pins

Fastest: TypeAlias = Callable[[Pins], float | None]
"""Seconds of the best step under some pins; None where that is not known."""


def pin_prices(pins: Pins, step: float, fastest: Fastest) -> tuple[PinPrice, ...]:
    """The price of every pin, and last, where there are several, of all together.

    Operators stay as free as the pins made them: what is compared is the same mode of planning.

    Args:
        pins: all of them; ``kv-heads=copy`` opens the space and therefore has no price.
        step: seconds of the plan under them.
        fastest: the best step under fewer.
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
    found = ((text, fastest(fewer)) for text, fewer in rows)
    return tuple(
        PinPrice(pin=text, without=best, cost=None if best is None else step - best)
        for text, best in found
    )
