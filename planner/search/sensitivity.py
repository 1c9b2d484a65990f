"""What a step would take if one number of the hardware were another."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.prices import Prices, prices
from planner.cost.step import exact
from planner.hardware.change import HardwareNumber, hardware_numbers
from planner.plan.figures import Sensitivity
from planner.search.engine import search
from planner.search.pins import Pins
from planner.trainers.trainer import Task

SHARE = 0.2
"""By how much each number is changed, down and up."""
UNTIMED = ("chip.memory", "chip.price", "chip.watts")
"""Numbers that a layout's step does not depend on."""
PATIENCE = 5.0
"""Seconds for one search with another amount of memory."""


def sensitivities(task: Task, plan: Prices, pins: Pins | None) -> tuple[Sensitivity, ...]:
    """The step with every number of the hardware a fifth lower and higher, largest effect first.

    Efficiencies rise to 1 at most. The host's numbers stand there where the step depends on them.

    Args:
        task: the question.
        plan: the plan's layout, a table of one row, which is priced again.
        pins: of the search that found it, which is repeated with other amounts of memory, since these change nothing
            but the choice; None where nothing was searched.
    """
    found = [
        _priced(task, plan, number)
        for number in hardware_numbers(task.cluster).values()
        if number.id not in UNTIMED
    ]
    found = [s for s in found if not s.name.startswith("host.") or s.low != s.high]
    if pins is not None:
        low, high = (_searched(task, pins, 1 + sign * SHARE) for sign in (-1, 1))
        label = "memory of a chip, layout chosen anew"
        found.append(
            Sensitivity(
                name="chip.memory", label=label, share=SHARE, low=low, high=high, searched=True
            )
        )
    step = float(exact(plan).step[0])
    return tuple(sorted(found, key=lambda s: -_effect(s, step)))


def _effect(sensitivity: Sensitivity, step: float) -> float:
    values = (sensitivity.low, sensitivity.high)
    return max(float("inf") if value is None else abs(value - step) for value in values)


def _priced(task: Task, plan: Prices, number: HardwareNumber) -> Sensitivity:
    low, high = (
        float(
            exact(prices(replace(task, cluster=number.times(1 + sign * SHARE)), plan.rows)).step[0]
        )
        for sign in (-1, 1)
    )
    return Sensitivity(name=number.id, label=number.label, share=SHARE, low=low, high=high)


def _searched(task: Task, pins: Pins, factor: float) -> float | None:
    other = replace(task, memory_limit=task.memory_limit * factor)
    outcome = search(other, pins, top=1, time_limit=PATIENCE)
    return float(outcome.step[0]) if len(outcome.step) else None
