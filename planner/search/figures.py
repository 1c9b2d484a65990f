"""What a report draws besides the answer."""

from __future__ import annotations

from collections.abc import Iterator

from planner.candidates import SHARDING
from planner.cost.prices import Prices
from planner.cost.setting import axis_members, axis_strides
from planner.plan.figures import AxisPlace, Figures, RuleCost, Source, Traffic
from planner.plan.removed import MEMORY
from planner.plan.schema import Removed
from planner.search.breakdown import breakdown
from planner.search.detail import block_plans
from planner.search.engine import Outcome
from planner.search.landscape import landscape
from planner.search.pins import Pins
from planner.search.rule_price import price_of_rule
from planner.search.sensitivity import sensitivities
from planner.search.timeline import timeline
from planner.trainers.trainer import Task

MOST_RULES, RULE_PATIENCE = 6, 2.0
"""Rules that are priced, those that removed most, and seconds for the search without one of them."""


def figures(task: Task, priced: Prices, outcome: Outcome | None, pins: Pins | None) -> Figures:
    """Figures of a plan; takes seconds.

    Args:
        task: the question.
        priced: the plan's layout in its first row. What changes to the hardware do is not drawn on several pools.
        outcome: of the search that found it; None where the layout was stated.
        pins: of that search.
    """
    b = breakdown(priced, 0)
    chips = int(b.prices.rows.ranks[0])
    flops = task.model.training_flops() * task.recipe.global_batch
    return Figures(
        roofline=flops / (chips * priced.chip.peak_for(task.recipe.precision)),
        timeline=timeline(b),
        axes=_axes(b.prices),
        traffic=_traffic(b.prices),
        sensitivities=() if priced.mix is not None else sensitivities(task, b.prices, pins),
        landscape=None if outcome is None else landscape(task, outcome),
        rules=() if outcome is None or pins is None else tuple(_rules(task, outcome, pins)),
        sources=tuple(
            dict.fromkeys(source for one in _tasks(task, priced) for source in _sources(one))
        ),
    )


def _axes(p: Prices) -> tuple[AxisPlace, ...]:
    """The mesh by its order on the chips, then the experts' view of the same chips."""
    order = p.task.trainer.orders[int(p.rows.order[0])]
    stand_in = {"tp": "etp", "cp": "ep", "dp": "edp"}
    experts = [stand_in[axis] for axis in order if axis in stand_in]
    strides, members = axis_strides(p.task, p.rows), axis_members(p.task, p.rows)
    depth = p.task.cluster.depth
    return tuple(
        AxisPlace(
            axis=axis,
            size=int(p.rows.degree(axis)[0]),
            stride=int(strides[axis][0]),
            members=tuple(members[axis][:depth, 0].tolist()),
        )
        for axis in (*order, *(experts if int(p.rows.ep[0]) > 1 else ()))
    )


def _traffic(p: Prices) -> tuple[Traffic, ...]:
    """The collectives of all layers, those of one kind over one axis together.

    States that are sharded over the data ranks are gathered and reduced with every micro-batch under ZeRO-3, else once
    a step.
    """
    sums: dict[tuple[str, str, str], list[float]] = {}
    for block in block_plans(p):
        found = [c for op in block.operators for c in op.collectives]
        for c in (*found, *block.gradient_collectives):
            entry = sums.setdefault((c.axis, c.kind, c.phase), [0.0, 0.0, 0.0, 0.0])
            for place, value in enumerate((1.0, c.bytes, c.seconds, c.exposed)):
                entry[place] += block.count * value
    often = SHARDING[int(p.rows.sharding[0])] == "ZeRO-3"
    traffic = [
        Traffic.model_validate({
            "axis": axis,
            "kind": kind,
            "phase": phase,
            "calls": round(calls),
            "bytes": size,
            "seconds": seconds,
            "exposed": exposed,
            "each": "step" if phase in ("gradient", "weight") and not often else "micro-batch",
        })
        for (axis, kind, phase), (calls, size, seconds, exposed) in sums.items()
        if seconds
    ]  # fmt: skip
    return tuple(sorted(traffic, key=lambda t: -t.seconds))


def _rules(task: Task, outcome: Outcome, pins: Pins) -> Iterator[RuleCost]:
    over = len(outcome.space.candidates) - outcome.fitting
    counts = {rule: n for rule, n in (outcome.space.removed | {MEMORY: over}).items() if n}
    ranked = sorted(counts.items(), key=lambda item: (item[0] != MEMORY, -item[1], item[0]))
    for name, count in ranked[:MOST_RULES]:
        rule = Removed(rule=name, family="", sentence="", count=count)
        found = price_of_rule(task, pins, rule, float(outcome.step[0]), time_limit=RULE_PATIENCE)
        yield RuleCost(
            rule=name,
            alone=found.alone,
            best=found.best,
            note=found.note,
            stopped=found.stopped,
        )


def _tasks(task: Task, priced: Prices) -> tuple[Task, ...]:
    """The question on every pool that the layout stands on; the question itself where all chips are alike."""
    return (task,) if priced.mix is None else tuple(part.task for part in priced.mix.parts)


def _sources(task: Task) -> tuple[Source, ...]:
    chip, cluster = task.cluster.chip, task.cluster
    found = [Source(key=f"{chip.name}: {key}", text=text) for key, text in chip.sources.items()]
    found += [
        Source(key=f"{cluster.name}: {key}", text=text) for key, text in cluster.sources.items()
    ]
    if chip.measured:
        found.append(Source(key=f"{chip.name}: measured", text=chip.measured))
    return tuple(found)
