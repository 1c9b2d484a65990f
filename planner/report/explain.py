"""One item of a plan explained: a number, a rule, a stage, the layers of a kind, an operator."""

from __future__ import annotations

import re

from planner.plan.basis import source_of
from planner.plan.derivation import Derivation, Unit
from planner.plan.facts import Fact, Facts
from planner.plan.findings import RulePrice
from planner.plan.items import Item, Layers, Number, OneOperator, OneStage
from planner.plan.schema import OperatorPlan, Plan
from planner.report.degrees import described, placed, split_words
from planner.report.numbers import dollars, gib, percent
from planner.report.tables import BLANK, Column, Line, Span, flow, styled, table
from planner.report.tree import render_tree
from planner.units import GB, show_bytes, show_count, show_seconds, three_digits

LONG = 40
"""Letters of a value that has room in a table."""
WIDE = 60
"""Columns from which operators stand with the name of their layer."""


def render_item(plan: Plan, item: Item, width: int) -> list[Line]:
    """The page of ``explain PLAN ITEM`` for what the plan alone tells.

    Raises:
        TypeError: a row or a rule, which need more than the plan.
    """
    if isinstance(item, Number):
        return render_number(plan, item, width)
    if isinstance(item, OneOperator):
        return _operator(plan, item, width)
    if isinstance(item, OneStage):
        return _stage(plan, item, width)
    if isinstance(item, Layers):
        return _layers(plan, item, width)
    if isinstance(item, Facts):
        return _facts(item, width)
    raise TypeError(type(item).__name__)


def render_alone(item: Number | Facts, width: int) -> list[Line]:
    """The page of a number that belongs to no plan."""
    return render_number(None, item, width) if isinstance(item, Number) else _facts(item, width)


def render_number(plan: Plan | None, item: Number, width: int) -> list[Line]:
    """Formula, numbers put in, result."""
    how = item.how
    columns = [
        Column(heading="", cells=[f"  {q.name}" for q in how.inputs], left=True),
        Column(heading="", cells=[shown(q.value, q.unit) for q in how.inputs]),
        Column(heading="", cells=[q.meaning for q in how.inputs], left=True, drop=1),
    ]
    value = shown(how.value, how.unit)
    lines: list[Line] = [
        (Span(f"  {item.id}"), Span(f"  {value}", "head"), Span(_of_step(plan, item.id), "dim"))
    ]
    lines += styled(flow([how.meaning], " ", width, "  ", 2))
    if not how.inputs:
        return lines
    lines += [BLANK, *styled(flow([_written(how.formula)], " ", width, "    ", 6), "head")]
    lines += [BLANK, *table(columns, width)[1:]]
    put_in = f"= {_written(_substituted(how))}"
    if how.formula not in {quantity.name for quantity in how.inputs}:
        lines += [BLANK, *styled(flow([put_in, f"= {value}"], " ", width, "    ", 6))]
    if how.source:
        lines += [BLANK, *styled(flow([how.source], " ", width, "  Source   ", 11), "dim")]
    return lines


def _of_step(plan: Plan | None, name: str) -> str:
    """A part of the step as a share of it, and what of it is hidden."""
    term = next((term for term in plan.time if term.name == name), None) if plan else None
    if plan is None or term is None:
        return ""
    hidden = f", and {show_seconds(term.hidden)} more hidden" if term.hidden else ""
    return f"  {percent(term.value / plan.step)} of the step{hidden}"


def shown(value: float, unit: Unit) -> str:
    """A quantity with its unit."""
    if unit == "s":
        return show_seconds(value)
    if unit == "B":
        return show_bytes(value) if value >= 1024 else f"{value:.3g} B"
    if unit == "$":
        return dollars(value) if value >= 1 else f"${three_digits(value)}"
    if unit == "%":
        return percent(value)
    if unit == "B/s":
        return f"{three_digits(value / GB)} GB/s"
    if unit in ("FLOP", "FLOP/s"):
        return f"{show_count(value).replace(' B', ' G')}{unit}"
    text = f"{value:,.0f}" if value == round(value) and value < 1e9 else three_digits(value)
    text = show_count(value) if value >= 1e9 else text
    return f"{text} {unit}".rstrip()


def _substituted(how: Derivation) -> str:
    values = {quantity.name: shown(quantity.value, quantity.unit) for quantity in how.inputs}
    return re.sub(r"[A-Za-z_]+", lambda match: values.get(match[0], match[0]), how.formula)


def _written(formula: str) -> str:
    """As people write it."""
    return formula.replace(" * ", " × ").replace(" - ", " − ")


def render_rule(found: RulePrice, width: int) -> list[Line]:
    """What a rule demands, what it removed, and what the best of that would have taken."""
    lines: list[Line] = [(Span(f"  rule:{found.rule}", "head"), Span(f"  ({found.family})", "dim"))]
    lines += styled(flow([found.sentence], " ", width, "  ", 2))
    lines += styled(flow([found.source], " ", width, "  Source   ", 11), "dim")
    counts = f"It removed {found.removed:,} layouts"
    alone = f", {found.alone:,} of them alone." if found.alone != found.removed else "."
    lines += [BLANK, *styled([f"  {counts}{alone}"])]
    if found.best is None or found.degrees is None:
        return [*lines, *styled(flow([f"No price: {found.note}."], " ", width, "  ", 2))]
    gain = found.best / found.step - 1
    if gain < -5e-5:
        price = f"Its price is {percent(-gain, 2 if gain > -0.01 else 1)} of the step at most: "
    else:
        price = "It costs nothing: "
    without, now = show_seconds(found.best), show_seconds(found.step)
    price += f"without it the best of these would take {without}, the plan takes {now}."
    memory = f"{gib(found.memory or 0.0)} GiB on the fullest chip"
    lines += styled(flow([price], " ", width, "  ", 2), "caution" if gain < -0.01 else "good")
    return [*lines, *styled(flow([*described(found.degrees), memory], ", ", width, "  ", 2))]


def _facts(item: Facts, width: int) -> list[Line]:
    """Values with what the schema says of them; long texts below the table."""
    if len(item.rows) == 1:
        row = item.rows[0]
        lines: list[Line] = [(Span(f"  {item.id}", "head"),)]
        lines += styled(flow([_value(row)], " ", width, "  ", 2))
        return [*lines, *styled(flow([row.meaning], " ", width, "  ", 2), "dim")]
    rows = [row for row in item.rows if len(_value(row)) <= LONG]
    columns = [
        Column(heading=item.id, cells=[row.place for row in rows], left=True),
        Column(heading="", cells=[_value(row) for row in rows]),
        Column(heading="", cells=[row.meaning for row in rows], left=True, drop=1),
    ]
    lines = table(columns, width)
    for row in item.rows:
        if row not in rows:
            lines += styled(flow([_value(row)], " ", width, f"  {row.place}  ", 4))
    return lines


def _value(row: Fact) -> str:
    if isinstance(row.value, bool) or row.value is None or isinstance(row.value, str):
        return str(row.value)
    exact = isinstance(row.value, int) and not row.unit
    if not exact:
        return shown(float(row.value), row.unit)
    return f"{row.value:,}" + (f" ({show_count(row.value)})" if row.value >= 1e6 else "")


def _stage(plan: Plan, item: OneStage, width: int) -> list[Line]:
    stage = item.stage
    ways = f"{show_seconds(stage.forward)} forwards, {show_seconds(stage.backward)} backwards"
    held = f"Stage {stage.index}: {ways} for one micro-batch."
    memory = [f"{term.label} {show_bytes(term.value)}" for term in stage.memory]
    return [
        *styled(flow([held], " ", width, "  ", 2)),
        *styled(flow(stage.layers, ", ", width, "  Layers   ", 11)),
        *styled(flow(memory, ", ", width, f"  {gib(stage.memory_total)} GiB: ", 2)),
        BLANK,
        *render_tree(plan, width, stage=stage),
    ]


def _layers(plan: Plan, item: Layers, width: int) -> list[Line]:
    block = item.block
    title = f"{block.name}: {block.layers} ({block.count}×), for one micro-batch on one chip"
    rows = block.operators
    prefix = f"{block.name}." if width >= WIDE else ""
    columns = [
        Column(heading="operator", cells=[prefix + op.name for op in rows], left=True),
        Column(
            heading="split", cells=[split_words(plan.degrees, op) for op in rows], left=True, drop=1
        ),
        Column(heading="forward", cells=[show_seconds(op.forward) for op in rows]),
        Column(heading="backward", cells=[show_seconds(op.backward) for op in rows]),
        Column(heading="of roofline", cells=[_reached(op) for op in rows], drop=2),
        Column(heading="exposed", cells=[_exposed(op) for op in rows], drop=3),
    ]
    once = block.gradient_collectives
    states = [
        f"{c.kind} of {c.tensor} over {c.axis}, {show_bytes(c.bytes)}, {show_seconds(c.seconds)}"
        for c in once
    ]
    after = styled(flow(states, " · ", width, "  Gradients and weights: ", 4)) if states else []
    sums = f"forwards {show_seconds(block.forward)}, backwards {show_seconds(block.backward)}, all included"
    head = styled(flow([title], " ", width, "  ", 2), "head")
    return [*head, *table(columns, width), *styled(flow([sums], " ", width, "  ", 2)), *after]


def _operator(plan: Plan, item: OneOperator, width: int) -> list[Line]:
    op, block = item.operator, item.block
    where = f"{op.kind}, layers {block.layers} ({block.count}×)"
    lines: list[Line] = [(Span(f"  {item.id}", "head"), Span(f"  {where}"))]
    if len(item.id) + len(where) + 4 > width:
        lines = [*styled([f"  {item.id}"], "head"), *styled(flow([where], " ", width, "  ", 2))]
    shape = " × ".join(f"{dim} {size:,.6g}" for dim, size in op.shape.items())
    facts = [
        ("shape", f"{shape} on one chip"),
        ("split", split_words(plan.degrees, op) or "nothing"),
        ("forward", f"{show_seconds(op.forward)}, {_reached(op)} of the roofline's {show_seconds(op.roofline)}"),
        ("backward", show_seconds(op.backward) + (" and once more forwards: recomputed" if op.recomputed else "")),
        ("basis", source_of(plan, op) or "a source that the profile does not state"),
        ("FLOPs", f"{shown(op.flops, 'FLOP')} forwards"),
        ("keeps", f"{show_bytes(op.saved)} for the backward pass"),
    ]  # fmt: skip
    for title, tensors in (("reads", op.inputs), ("weights", op.weights), ("writes", op.outputs)):
        words = [f"{name}[{placed(plan.degrees, layout)}]" for name, layout in tensors.items()]
        facts.append((title, ", ".join(words) or "none"))
    for name, text in facts:
        lines += styled(flow([text], " ", width, f"  {name:<9}", 11))
    rows = [c for c in op.collectives if c.seconds]
    if not rows:
        return lines
    columns = [
        Column(heading="collective", cells=[c.kind for c in rows], left=True),
        Column(heading="tensor", cells=[c.tensor for c in rows], left=True),
        Column(heading="axis", cells=[c.axis for c in rows], left=True),
        Column(heading="phase", cells=[c.phase for c in rows], left=True, drop=1),
        Column(heading="size", cells=[show_bytes(c.bytes) for c in rows]),
        Column(heading="time", cells=[show_seconds(c.seconds) for c in rows]),
        Column(heading="exposed", cells=[show_seconds(c.exposed) for c in rows]),
    ]
    return [*lines, BLANK, *table(columns, width)]


def _reached(op: OperatorPlan) -> str:
    return percent(op.roofline / op.forward, 0) if op.forward else "–"


def _exposed(op: OperatorPlan) -> str:
    seconds = sum(c.exposed for c in op.collectives)
    return show_seconds(seconds) if seconds else ""
