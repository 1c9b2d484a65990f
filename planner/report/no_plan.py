"""The page of a search that found nothing: the closest miss, its arithmetic, the smallest changes that fit."""

from __future__ import annotations

from collections.abc import Collection

from planner.plan.removed import everything_removed
from planner.plan.schema import NoPlan, Remedy
from planner.report.degrees import product
from planner.report.numbers import gib, gib_parts
from planner.report.removed import removed_by_family, removed_by_rule
from planner.report.tables import (
    BLANK,
    Column,
    Line,
    Span,
    flow,
    labelled,
    styled,
    table,
    table_width,
)

VERDICT = 80


def render_no_plan(answer: NoPlan, width: int, detail: Collection[str] = ()) -> list[Line]:
    """The page: verdict, closest candidate, remedies, what was removed."""
    every_rule = "rules" in detail or "all" in detail
    removed = everything_removed(answer)
    blocks: list[list[Line]] = [
        styled(flow(verdict_words(answer), " ", min(width, VERDICT), "  ", 2), "bad"),
        _closest(answer, width),
        _remedies(answer, width),
        _basis(answer, min(width, VERDICT)),
        removed_by_family(removed, width, "" if every_rule else "More: --detail rules"),
        [(Span("  Rules", "head"),), *removed_by_rule(removed, width)] if every_rule else [],
    ]
    return [line for block in blocks if block for line in (*block, BLANK)][:-1]


def verdict_words(answer: NoPlan) -> list[str]:
    """Why there is no plan."""
    cluster = f"{answer.cluster.num_chips:,} × {answer.cluster.chip}"
    where = f"no layout of {answer.model.name} on {cluster}"
    if answer.closest is None:
        return [f"No plan: {where} is allowed by the rules; all {answer.searched:,} were removed."]
    if max(answer.memory, answer.memory_upper) <= answer.memory_limit:
        where = where.replace("no layout", "any layout")
        return [f"No plan yet: the search was stopped before {where} was priced."]
    return [f"Does not fit: {where} stays under {gib(answer.memory_limit)} GiB."]


def _closest(answer: NoPlan, width: int) -> list[Line]:
    if answer.closest is None:
        return labelled("Why", [answer.explanation], width) if answer.explanation else []
    lines = styled(flow(closest_words(answer).split("  "), " ", width, "  Closest     ", 14))
    terms = [term for term in answer.terms if term.value]
    if not terms:
        return lines
    largest = max(terms, key=lambda term: term.value)
    sizes = gib_parts([term.value for term in terms], answer.memory)
    columns = [
        Column(heading="", cells=["  " + term.label for term in terms], left=True),
        Column(heading="", cells=[f"{size} GiB" for size in sizes]),
    ]
    why = [answer.explanation if term is largest else "" for term in terms]
    return lines + _with_notes(columns, why, width)


def closest_words(answer: NoPlan) -> str:
    """How much the closest miss needs, and which layout it is; two blanks between them."""
    degrees = answer.closest
    if degrees is None:
        return ""
    recompute = "no" if degrees.recompute == "none" else degrees.recompute
    layout = f"({product(degrees)}, micro-batch {degrees.micro_batch}, {recompute} recompute)"
    head = f"{gib(answer.memory)} GiB on stage {answer.stage}"
    if answer.memory <= answer.memory_limit < answer.memory_upper:
        head += f", up to {gib(answer.memory_upper)} in nine of ten runs"
    return f"{head}  {layout}"


def _remedies(answer: NoPlan, width: int) -> list[Line]:
    if not answer.remedies:
        return []
    columns = [
        Column(heading="", cells=["  " + remedy.change for remedy in answer.remedies], left=True),
        Column(
            heading="", cells=[needs(remedy, answer.memory_limit) for remedy in answer.remedies]
        ),
    ]
    notes = [remedy.note for remedy in answer.remedies]
    return [(Span("  Smallest changes that fit", "head"),), *_with_notes(columns, notes, width)]


def needs(remedy: Remedy, limit: float) -> str:
    """What the fullest chip needs with it."""
    same = gib(remedy.limit) == gib(limit)
    return f"{gib(remedy.memory)} {'' if same else f'of {gib(remedy.limit)} '}GiB"


def _with_notes(columns: list[Column], notes: list[str], width: int) -> list[Line]:
    """A table without headings whose last column goes below its row where there is no room beside it."""
    last = Column(heading="", cells=notes, left=True)
    if table_width([*columns, last]) <= width:
        return table([*columns, last], width)[1:]
    lines: list[Line] = []
    for row, note in zip(table(columns, width)[1:], notes, strict=True):
        lines.append(row)
        if note:
            lines += styled(flow([note], " ", width, " " * 8, 8), "dim")
    return lines


def _basis(answer: NoPlan, width: int) -> list[Line]:
    pinned = labelled("Pinned", answer.pins, width) if answer.pins else []
    assumed = [assumption.text for assumption in answer.assumptions]
    return [*pinned, *(labelled("Assumed", assumed, width) if assumed else [])]
