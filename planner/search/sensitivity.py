"""What a step would take if one number of the hardware, or the batch, were another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from planner.cost.prices import Prices, prices, with_cut
from planner.cost.step import exact
from planner.hardware.change import HardwareNumber, hardware_numbers
from planner.plan.figures import Sensitivity
from planner.search.engine import search
from planner.search.pins import Pins
from planner.trainers.registry import faults
from planner.trainers.trainer import Task

SHARE = 0.2
"""By how much each number is changed, down and up."""
UNTIMED = ("chip.memory", "chip.price", "chip.watts")
"""Numbers that a layout's step does not depend on."""
MOST_AWAY = 64
"""Micro-batches by which another batch may differ from a fifth."""
PATIENCE = 5.0
"""Seconds for one search with another amount of memory."""


def sensitivities(task: Task, plan: Prices, pins: Pins | None) -> tuple[Sensitivity, ...]:
    """The step with every number of the hardware a fifth lower and higher, and the batch; largest effect first.

    Efficiencies rise to 1 at most. The host's numbers stand there where the step depends on them. Another batch is told
    by the seconds for as many tokens, where the layout can take one about a fifth smaller and one larger.

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
    found += _of_batch(task, plan)
    if pins is not None:
        low, high = (_searched(task, pins, 1 + sign * SHARE) for sign in (-1, 1))
        label = "memory of a chip, layout chosen anew"
        found.append(
            Sensitivity(
                name="chip.memory", label=label, share=SHARE, low=low, high=high, searched=True
            )
        )
    return largest_first(found, float(exact(plan).step[0]))


def largest_first(found: Iterable[Sensitivity], step: float) -> tuple[Sensitivity, ...]:
    """Sorted by the largest change of the step; what leaves nothing that fits comes first."""

    def effect(sensitivity: Sensitivity) -> float:
        values = (sensitivity.low, sensitivity.high)
        return max(float("inf") if value is None else abs(value - step) for value in values)

    return tuple(sorted(found, key=lambda s: -effect(s)))


def _priced(task: Task, plan: Prices, number: HardwareNumber) -> Sensitivity:
    low, high = (
        _step(replace(task, cluster=number.times(1 + sign * SHARE)), plan) for sign in (-1, 1)
    )
    return Sensitivity(name=number.id, label=number.label, share=SHARE, low=low, high=high)


def _step(task: Task, plan: Prices) -> float:
    """Seconds of the plan's layout under another question."""
    priced = prices(task, plan.rows)
    return float(exact(priced if plan.cut is None else with_cut(priced, plan.cut)).step[0])


def _of_batch(task: Task, plan: Prices) -> Iterator[Sensitivity]:
    """The step with other batches that the layout can take, for as many tokens."""
    batch = task.recipe.global_batch
    grain = int(plan.rows.dp[0] * plan.rows.micro_batch[0])
    low, high = (_batch_near(task, plan, grain, (1 + sign * SHARE) * batch) for sign in (-1, 1))
    if not batch * (1 - 2 * SHARE) <= low < batch < high <= batch * (1 + 2 * SHARE):
        return
    steps = [_step(_with_batch(task, other), plan) * batch / other for other in (low, high)]
    label = f"global batch ({low:,} or {high:,}), for as many tokens"
    yield Sensitivity(name="global-batch", label=label, share=SHARE, low=steps[0], high=steps[1])


def _batch_near(task: Task, plan: Prices, grain: int, wanted: float) -> int:
    """The batch nearest to a wanted one that no rule forbids; 0 where there is none nearby."""
    first = round(wanted / grain)
    for away in range(MOST_AWAY):
        for micro in (first - away, first + away):
            if micro > 0 and not faults(_with_batch(task, micro * grain), plan.rows):
                return micro * grain
    return 0


def _with_batch(task: Task, batch: int) -> Task:
    return replace(task, recipe=replace(task.recipe, global_batch=batch))


def _searched(task: Task, pins: Pins, factor: float) -> float | None:
    other = replace(task, memory_limit=task.memory_limit * factor)
    outcome = search(other, pins, top=1, time_limit=PATIENCE)
    return float(outcome.step[0]) if len(outcome.step) else None
