"""Pins, and what each costs against the best plan without it."""

from __future__ import annotations

from planner.plan.schema import PinPrice, Plan
from planner.report.numbers import percent
from planner.units import show_seconds

FREE = 1e-9
"""Share of a step below which a pin costs nothing."""


def pinned(plan: Plan, mark: str = "") -> list[str]:
    """Every pin with its price, and that of all together; without prices where nothing was searched for them.

    Args:
        plan: with its pins.
        mark: stands around what the user wrote.
    """
    prices = {price.pin: price for price in plan.pin_prices}
    together = [name for name in prices if name not in plan.pins]
    return [
        f"{mark}{pin}{mark} ({priced(prices[pin], plan.step)})"
        if pin in prices
        else f"{mark}{pin}{mark}"
        for pin in (*plan.pins, *together)
    ]


def priced(price: PinPrice, step: float) -> str:
    """What a pin costs, in words: ``costs 1.2 s, 5 % of the step``."""
    if price.cost is None:
        return "price not known: the search for it was stopped"
    if price.cost <= FREE * step:
        return "costs nothing"
    share = f", {percent(price.cost / step)} of the step" if step else ""
    return f"costs {show_seconds(price.cost)}{share}"
