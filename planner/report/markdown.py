"""The answer as Markdown, for pull requests and wikis."""

from __future__ import annotations

from collections.abc import Sequence

from planner.plan.findings import Comparison, Largest, Sizing
from planner.plan.removed import everything_removed
from planner.plan.schema import NoPlan, Plan
from planner.report.degrees import alternative_columns, row_notes
from planner.report.left_open import left_open
from planner.report.no_plan import render_no_plan
from planner.report.numbers import gib, gib_parts, percents, seconds_parts
from planner.report.pins import pinned
from planner.report.removed import removed_by_family
from planner.report.tables import BLANK, Column, Line, plain
from planner.report.text import searched, verdict
from planner.units import show_seconds

TRUST = "- Trust: "
"""A line of every page begins with it."""
ENDLESS = 10_000
"""Columns of a page whose lines are not broken."""


def render_markdown(answer: Plan | NoPlan) -> str:
    """The page: verdict, where a step goes, the fullest chip, alternatives, and what it rests on."""
    title = _title(answer)
    if isinstance(answer, NoPlan):
        return markdown_page(answer, "", render_no_plan(answer, 100))
    sentences = "\n\n".join(line.strip() for line in plain(verdict(answer, ENDLESS)).splitlines())
    basis = [
        *([f"- Objective: {answer.objective}"] if answer.objective else []),
        *(f"- Pinned: {pin}" for pin in pinned(answer, "`")),
        *(f"- {label}: {' · '.join(pieces)}" for label, pieces in left_open(answer).items()),
        *(f"- Assumed: {assumption.text}" for assumption in answer.assumptions),
        *(f"- Warning: {warning}" for warning in answer.warnings),
        *(f"- Hint: {hint}" for hint in answer.hints),
        f"{TRUST}{answer.trust.text}",
    ]
    found = [*searched(answer, ENDLESS), BLANK]
    found += removed_by_family(everything_removed(answer), ENDLESS)
    removed = "\n".join(line.strip() for line in plain(found).splitlines()).strip()
    parts = [
        title,
        f"{sentences}\n",
        "\n".join(basis) + "\n",
        _time(answer),
        _memory(answer),
        _alternatives(answer),
        f"{removed}\n" if removed else "",
    ]
    return "\n".join(part for part in parts if part)


def markdown_page(
    answer: Plan | NoPlan | Comparison | Sizing | Largest, item: str, page: Sequence[Line]
) -> str:
    """A page of the terminal as it stands, below a title: a tree is no table.

    Args:
        answer: what it is about.
        item: the id of what is shown; empty where that is the whole plan.
        page: its lines.
    """
    what = f"\n`{item}`\n" if item else ""
    return f"{_title(answer)}{what}\n```text\n{plain(page)}```\n"


def _title(answer: Plan | NoPlan | Comparison | Sizing | Largest) -> str:
    if not isinstance(answer, Plan | NoPlan):
        return f"## {answer.model.name}\n"
    cluster = answer.cluster
    return f"## {answer.model.name} on {cluster.num_chips:,} × {cluster.chip}, {answer.trainer}\n"


def _time(plan: Plan) -> str:
    terms = [term for term in plan.time if term.value or term.hidden]
    values = [term.value for term in terms]
    behind = seconds_parts([term.hidden for term in terms], plan.step)
    hidden = [text if term.hidden else "" for term, text in zip(terms, behind, strict=True)]
    columns = [
        Column(heading="Where a step goes", cells=[term.label for term in terms], left=True),
        Column(heading=show_seconds(plan.step), cells=seconds_parts(values, plan.step)),
        Column(heading="share", cells=percents(values, plan.step)),
        Column(heading="hidden", cells=hidden),
    ]
    return markdown_table(columns)


def _memory(plan: Plan) -> str:
    stage = next((stage for stage in plan.stages if stage.index == plan.memory_stage), None)
    if stage is None:
        return ""
    terms = [term for term in stage.memory if term.value]
    sizes = gib_parts([term.value for term in terms], stage.memory_total)
    heading = f"{gib(plan.memory)} of {gib(plan.memory_limit)} GiB"
    return markdown_table([
        Column(heading=f"Fullest chip (stage {stage.index})", cells=[t.label for t in terms], left=True),
        Column(heading=heading, cells=[f"{size} GiB" for size in sizes]),
    ])  # fmt: skip


def _alternatives(plan: Plan) -> str:
    rows = plan.alternatives
    if len(rows) < 2:
        return ""
    legend = "".join(f"\n{text}\n" for text in row_notes(rows))
    return (
        markdown_table(alternative_columns(rows, reasons=True, front=plan.proof.front > 0)) + legend
    )


def markdown_table(columns: Sequence[Column]) -> str:
    """A table with pipes; pipes inside cells are escaped."""
    rule = [":--" if column.left else "--:" for column in columns]
    rows = [[column.heading for column in columns], rule]
    rows += [list(cells) for cells in zip(*(column.cells for column in columns), strict=True)]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows
    )
