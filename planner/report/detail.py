"""Sections for those who ask further: every stage, operator, message, rule and source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from planner.plan.basis import basis_of
from planner.plan.removed import everything_removed
from planner.plan.schema import BlockPlan, Collective, OperatorPlan, Plan, Stage
from planner.report.degrees import split_words
from planner.report.numbers import gib, gib_parts, percent, seconds_parts
from planner.report.removed import removed_by_rule
from planner.report.tables import BLANK, Column, Line, Span, flow, styled, table
from planner.units import GB, TERA, show_bytes, show_count, show_seconds, three_digits


def details(plan: Plan, width: int, wanted: Collection[str]) -> list[list[Line]]:
    """The wanted sections, in their order; ``all`` wants every one."""
    names = [name for name in _SECTIONS if name in wanted or "all" in wanted]
    return [_SECTIONS[name](plan, width) for name in names]


def _title(text: str, width: int) -> list[Line]:
    return styled(flow([text], " ", width, "  ", 2), "head")


def _memory(plan: Plan, width: int) -> list[Line]:
    labels = list(dict.fromkeys(term.label for stage in plan.stages for term in stage.memory))
    rows = [
        gib_parts([sum(t.value for t in s.memory if t.label == x) for x in labels], s.memory_total)
        for s in plan.stages
    ]
    columns = [Column(heading="stage", cells=[str(stage.index) for stage in plan.stages])]
    columns += [
        Column(heading=label, cells=[row[index] for row in rows], drop=len(labels) - index)
        for index, label in enumerate(labels)
    ]
    columns.append(Column(heading="GiB", cells=[gib(stage.memory_total) for stage in plan.stages]))
    return [
        *_title("Memory of every stage, GiB on its fullest chip", width),
        *table(columns, width),
    ]


def _time(plan: Plan, width: int) -> list[Line]:
    terms = plan.time
    behind = seconds_parts([term.hidden for term in terms], plan.step)
    parts = [
        Column(heading="id", cells=[term.name for term in terms], left=True, drop=1),
        Column(heading="part of the step", cells=[term.label for term in terms], left=True),
        Column(heading="time", cells=seconds_parts([t.value for t in terms], plan.step)),
        Column(
            heading="share",
            cells=[percent(term.value / plan.step) if plan.step else "" for term in terms],
        ),
        Column(
            heading="hidden",
            cells=[s if t.hidden else "" for t, s in zip(terms, behind, strict=True)],
        ),
    ]
    return [
        *_title("Parts of the step", width),
        *table(parts, width),
        BLANK,
        *_title("Stages, for one micro-batch", width),
        *table(_stage_columns(plan.stages), width),
    ]


def _stage_columns(stages: Sequence[Stage]) -> list[Column]:
    """Columns of stages; their chips only where they differ from those of the cluster's other pools."""
    chips = Column(heading="chips", cells=[stage.chip for stage in stages], left=True, drop=3)
    return [
        Column(heading="stage", cells=[str(stage.index) for stage in stages]),
        *([chips] if any(stage.chip for stage in stages) else []),
        Column(heading="layers", cells=[_layers(stage) for stage in stages], left=True, drop=2),
        Column(heading="forward", cells=[show_seconds(stage.forward) for stage in stages]),
        Column(heading="backward", cells=[show_seconds(stage.backward) for stage in stages]),
        Column(
            heading="in flight",
            cells=[f"{round(stage.in_flight, 2):g}" for stage in stages],
            drop=1,
        ),
    ]


def _layers(stage: Stage) -> str:
    ends = (["embedding"] if stage.embedding else [], ["head"] if stage.head else [])
    return ", ".join([*ends[0], *stage.layers, *ends[1]])


def _blocks(
    title: str, plan: Plan, one: Callable[[BlockPlan], list[Column]], width: int
) -> list[Line]:
    lines = _title(title, width)
    for block in plan.blocks:
        columns = one(block)
        if columns and columns[0].cells:
            lines += [BLANK, (Span(f"  {block.name}: {block.layers} ({block.count}×)"),)]
            lines += table(columns, width)
    return lines


def _operators(plan: Plan, width: int) -> list[Line]:
    def columns(block: BlockPlan) -> list[Column]:
        return _operator_columns(plan, block)

    return _blocks("Operators, on one chip and for one micro-batch", plan, columns, width)


def _operator_columns(plan: Plan, block: BlockPlan) -> list[Column]:
    rows = block.operators
    known = [basis_of(plan, row) for row in rows]
    basis = [Column(heading="basis", cells=known, left=True, drop=3)] if any(known) else []
    return [
        Column(heading="operator", cells=[row.name for row in rows], left=True),
        Column(heading="kind", cells=[row.kind for row in rows], left=True, drop=1),
        Column(heading="split", cells=[split_words(plan.degrees, row) or "-" for row in rows], left=True),
        Column(heading="FLOPs", cells=[_flops(row.flops) for row in rows], drop=4),
        Column(heading="forward", cells=[show_seconds(row.forward) for row in rows]),
        Column(heading="backward", cells=[show_seconds(row.backward) for row in rows]),
        Column(heading="of roofline", drop=2,
               cells=[percent(row.roofline / row.forward, 0) if row.forward else "" for row in rows]),
        Column(heading="saved", cells=[_saved(row) for row in rows], drop=5),
        *basis,
    ]  # fmt: skip


def _flops(count: float) -> str:
    """With the prefixes of units: a B would be bytes, beside columns that have them."""
    return show_count(count).replace(" B", " G")


def _saved(row: OperatorPlan) -> str:
    return "recomputed" if row.recomputed else show_bytes(row.saved)


def _communication(plan: Plan, width: int) -> list[Line]:
    title = "Collectives, and what one of each costs"
    return _blocks(title, plan, _collective_columns, width)


def _collective_columns(block: BlockPlan) -> list[Column]:
    rows: list[tuple[str, Collective]] = [
        (op.name, c) for op in block.operators for c in op.collectives
    ]
    rows += [("", collective) for collective in block.gradient_collectives]
    rows = [row for row in rows if row[1].seconds]  # over an axis of one there is nothing to send
    return [
        Column(heading="collective", cells=[c.kind for _, c in rows], left=True),
        Column(heading="axis", cells=[c.axis for _, c in rows], left=True),
        Column(heading="operator", cells=[name for name, _ in rows], left=True, drop=2),
        Column(heading="tensor", cells=[c.tensor for _, c in rows], left=True, drop=3),
        Column(heading="phase", cells=[c.phase for _, c in rows], left=True, drop=1),
        Column(heading="size", cells=[show_bytes(c.bytes) for _, c in rows], drop=4),
        Column(heading="time", cells=[show_seconds(c.seconds) for _, c in rows]),
        Column(heading="exposed", cells=[show_seconds(c.exposed) for _, c in rows]),
    ]


def _rules(plan: Plan, width: int) -> list[Line]:
    return [
        *_title("Rules, and the layouts that each removed", width),
        *removed_by_rule(everything_removed(plan), width),
    ]


def _sources(plan: Plan, width: int) -> list[Line]:
    levels = plan.cluster.levels
    network = [
        Column(heading="level", cells=[level.name for level in levels], left=True),
        Column(heading="chips", cells=[f"{level.size:,}" for level in levels]),
        Column(
            heading="wire GB/s",
            cells=[three_digits(level.bandwidth / GB) for level in levels],
            drop=1,
        ),
        Column(
            heading="achieved GB/s", cells=[three_digits(level.achieved / GB) for level in levels]
        ),
        Column(heading="latency", cells=[show_seconds(level.latency) for level in levels], drop=2),
    ]
    facts = [
        ("made by", plan.made_by),
        ("model", f"{plan.model.name}, {show_count(plan.model.num_params)} parameters"),
        ("model source", plan.model.source or "not stated"),
        ("cluster", f"{plan.cluster.name}, {plan.cluster.num_chips:,} × {plan.cluster.chip}"),
        (
            "chip peak",
            f"{three_digits(plan.cluster.peak / TERA)} TFLOP/s in {plan.recipe.precision}",
        ),
        ("chip memory", f"{gib(plan.cluster.memory)} GiB usable"),
        *(
            (key.removesuffix("_efficiency"), f"efficiency {text}")
            for key, text in plan.cluster.efficiency_sources.items()
        ),
        ("trainer", f"{plan.trainer} {plan.trainer_release}"),
        *((f"{name} hash", value) for name, value in plan.fingerprints),
    ]
    lines = [
        line for name, value in facts for line in flow([value], " ", width, f"  {name:<14}", 16)
    ]
    return [
        *_title("Sources", width),
        *styled(lines),
        BLANK,
        *_title("Network, for one chip and direction", width),
        *table(network, width),
    ]


_SECTIONS: dict[str, Callable[[Plan, int], list[Line]]] = {
    "time": _time,
    "memory": _memory,
    "ops": _operators,
    "comm": _communication,
    "rules": _rules,
    "sources": _sources,
}
DETAILS = (*_SECTIONS, "all")
"""Names of the sections that can be asked for."""
