"""What a step would take if one number of the hardware were another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.cost.prices import Prices, prices
from planner.cost.step import exact
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.plan.figures import Sensitivity
from planner.search.engine import search
from planner.search.pins import Pins
from planner.trainers.trainer import Task

SHARE = 0.2
"""By how much each number is changed, down and up."""
PATIENCE = 5.0
"""Seconds for one search with another amount of memory."""


def sensitivities(task: Task, plan: Prices, pins: Pins | None) -> tuple[Sensitivity, ...]:
    """The step with every number of the hardware a fifth lower and higher, largest effect first.

    Args:
        task: the question.
        plan: the plan's layout, a table of one row, which is priced again.
        pins: of the search that found it, which is repeated with other amounts of memory, since these change nothing
            but the choice; None where nothing was searched.
    """
    found = [
        Sensitivity(
            name=name,
            label=label,
            share=SHARE,
            low=_priced(task, plan, change(1 - SHARE)),
            high=_priced(task, plan, change(1 + SHARE)),
        )
        for name, label, change in _knobs(task.cluster)
    ]
    if pins is not None:
        low, high = (_searched(task, pins, 1 + sign * SHARE) for sign in (-1, 1))
        label = "memory of a chip (best layout chosen anew)"
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


Knob = tuple[str, str, Callable[[float], Cluster]]


def _knobs(cluster: Cluster) -> Iterator[Knob]:
    """Id, words, and the cluster with that number times a factor."""

    def chip(change: Callable[[Chip, float], Chip]) -> Callable[[float], Cluster]:
        return lambda factor: replace(cluster, chip=change(cluster.chip, factor))

    def level(index: int, change: Callable[[Level, float], Level]) -> Callable[[float], Cluster]:
        def changed(factor: float) -> Cluster:
            levels = list(cluster.levels)
            levels[index] = change(levels[index], factor)
            return replace(cluster, levels=tuple(levels))

        return changed

    yield "chip.peak", "peak FLOP/s of a chip", chip(_peak)
    yield (
        "chip.bandwidth",
        "memory bandwidth of a chip",
        chip(lambda c, x: replace(c, memory_bandwidth=c.memory_bandwidth * x)),
    )
    for index, tier in enumerate(cluster.levels[: cluster.depth]):
        yield (
            f"{tier.name}.bandwidth",
            f"bandwidth of the {tier.name}",
            level(index, lambda tier, x: replace(tier, bandwidth=tier.bandwidth * x)),
        )
        yield (
            f"{tier.name}.latency",
            f"latency of the {tier.name}",
            level(index, lambda tier, x: replace(tier, latency=tier.latency * x)),
        )


def _peak(chip: Chip, factor: float) -> Chip:
    return replace(chip, peak={name: flops * factor for name, flops in chip.peak.items()})


def _priced(task: Task, plan: Prices, cluster: Cluster) -> float:
    return float(exact(prices(replace(task, cluster=cluster), plan.rows)).step[0])


def _searched(task: Task, pins: Pins, factor: float) -> float | None:
    other = replace(task, memory_limit=task.memory_limit * factor)
    outcome = search(other, pins, top=1, time_limit=PATIENCE)
    return float(outcome.step[0]) if len(outcome.step) else None
