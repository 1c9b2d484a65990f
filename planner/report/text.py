"""The answer as a page for a terminal: the verdict first, then what it rests on.

Everything shown is read from the plan; shares and rounding are all that happens here. The page is lines of styled
spans (:mod:`planner.report.tables`), and reads the same without the styles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from planner.plan.removed import everything_removed
from planner.plan.schema import OWN, NoPlan, Plan, Term
from planner.report.degrees import alternative_columns, computed_again, described, row_notes
from planner.report.left_open import counted, left_open
from planner.report.numbers import (
    TOLD,
    bar,
    dollars,
    gib,
    gib_parts,
    percent,
    percents,
    seconds_parts,
)
from planner.report.pins import pinned
from planner.report.pools import searched_pools, seated, ways
from planner.report.removed import removed_by_family
from planner.report.tables import (
    BLANK,
    INDENT,
    Column,
    Line,
    Span,
    Style,
    fitting,
    flow,
    labelled,
    styled,
    table,
    table_width,
)
from planner.units import show_seconds, three_digits

WIDEST = 100
"""Columns of a page, however wide the terminal."""
VERDICT = 80
"""Columns of the verdict, so that it can be pasted anywhere."""
BAR = 30
TERMS = {
    "hidden": "behind other work, no part of the step",
    "jitter": "what measured pipelines take beyond their schedule",
}
"""Words beside bars that not everyone knows."""
LABELS = 22
"""Least columns of the labels beside bars."""

NextSteps: TypeAlias = Sequence[tuple[str, str]]
"""Commands to type next, and what each is good for."""


def render(
    answer: Plan | NoPlan,
    *,
    width: int = WIDEST,
    detail: Collection[str] = (),
    next_steps: NextSteps = (),
) -> list[Line]:
    """The page of an answer.

    Args:
        answer: what was found, or why nothing was.
        width: of the terminal; pages are never wider than 100 columns.
        detail: extra sections, of :data:`planner.report.detail.DETAILS`.
        next_steps: shown at the end.
    """
    width = min(width, WIDEST)
    if isinstance(answer, NoPlan):
        from planner.report.no_plan import render_no_plan

        return render_no_plan(answer, width, detail)
    blocks = [
        verdict(answer, min(width, VERDICT)),
        _basis(answer, width),
        _where_a_step_goes(answer, width),
        _fullest_chip(answer, width),
        ways(answer, width),
        _alternatives(answer, width),
        [
            *searched(answer, width),
            *removed_by_family(everything_removed(answer), width),
        ],
        *_details(answer, width, detail),
        next_lines(next_steps, width),
    ]
    return [line for block in blocks if block for line in (*block, BLANK)][:-1]


def _details(plan: Plan, width: int, detail: Collection[str]) -> list[list[Line]]:
    if not detail:
        return []
    from planner.report.detail import details

    return details(plan, width, detail)


def in_host(plan: Plan) -> str:
    """How much of the host's memory a chip has is used."""
    most = "unknown" if plan.host_limit is None else gib(plan.host_limit)
    return f"{gib(plan.host_memory)} of {most} GiB of host memory a chip"


def verdict(plan: Plan, width: int = VERDICT) -> list[Line]:
    """The answer in three sentences: whether it fits and how fast it is, the layout, the memory."""
    rates = [
        f"{show_seconds(plan.step)} a step: {three_digits(plan.tokens_per_second_per_chip)} tokens/s/chip",
        f"{percent(plan.mfu)} MFU",
    ]
    if plan.price_per_million_tokens is not None:
        rates.append(f"{dollars(plan.price_per_million_tokens)} per million tokens")
    memory = [
        f"{gib(plan.memory)} of {gib(plan.memory_limit)} GiB on the fullest chip (stage {plan.memory_stage})",
        f"at most {gib(plan.memory_upper)} in nine of ten runs",
    ]
    if plan.host_memory:
        memory.append(in_host(plan))
    layout = [*described(plan.degrees, computed_again(plan)), *seated(plan)]
    if plan.degrees.chips_used < plan.cluster.num_chips:
        paid = "" if plan.cluster.pools else ", all paid for"
        layout.append(f"{plan.degrees.chips_used:,} of {plan.cluster.num_chips:,} chips used{paid}")
    where = flow(layout, ", ", width, "  ", INDENT)
    if not plan.fits:
        return [
            *styled(flow(memory, ", ", width, "  Does not fit: ", INDENT), "bad"),
            *styled(where),
            *styled(flow(rates, ", ", width, "  Were there room, ", INDENT), "dim"),
        ]
    first, *more = flow(rates, ", ", width, "  Fits. ", INDENT)
    return [
        (Span("  "), Span("Fits.", "good"), Span(first.removeprefix("  Fits."), "head")),
        *styled(more, "head"),
        *styled(where),
        *styled(flow(memory, ", ", width, "  ", INDENT)),
    ]


def _basis(plan: Plan, width: int) -> list[Line]:
    width = min(width, VERDICT)
    aim = labelled("Objective", [plan.objective], width) if plan.objective else []
    pins = labelled("Pinned", pinned(plan), width) if plan.pins else []
    assumed = [assumption.text for assumption in plan.assumptions] or ["nothing"]
    caution: Style = "" if plan.trust.measured else "caution"
    trust = labelled("Trust", [plan.trust.text], width, caution)
    hints = labelled("Hints", list(plan.hints), width) if plan.hints else []
    chosen = [
        line for label, pieces in left_open(plan).items() for line in labelled(label, pieces, width)
    ]
    return [*aim, *pins, *chosen, *labelled("Assumed", assumed, width), *trust, *hints]


def _where_a_step_goes(plan: Plan, width: int) -> list[Line]:
    terms = [term for term in plan.time if term.value or term.hidden]
    values = [term.value for term in terms]
    seconds = seconds_parts(values, plan.step)
    behind = seconds_parts([term.hidden for term in terms], plan.step)
    hidden = [f"+{s} hidden" if t.hidden else "" for t, s in zip(terms, behind, strict=True)]
    after = [
        Column(heading="", cells=percents(values, plan.step)),
        Column(heading="", cells=hidden, left=True, drop=1),
    ]
    lines = _bars("Where a step goes", show_seconds(plan.step), terms, seconds, after, width)
    told = {"hidden": any(hidden), "jitter": any(term.name == "step.jitter" for term in terms)}
    words = [f"{word}: {TERMS[word]}" for word, shown in told.items() if shown]
    return lines + (styled(flow(words, "; ", width, "  ", INDENT), "dim") if words else [])


def _fullest_chip(plan: Plan, width: int) -> list[Line]:
    stage = next((stage for stage in plan.stages if stage.index == plan.memory_stage), None)
    if stage is None:
        return []
    terms = [term for term in stage.memory if term.value]
    sizes = gib_parts([term.value for term in terms], stage.memory_total)
    total = f"{gib(plan.memory)} of {gib(plan.memory_limit)} GiB"
    cells = [f"{size} GiB" for size in sizes]
    return _bars(f"Fullest chip (stage {stage.index})", total, terms, cells, [], width)


def _bars(
    title: str,
    total: str,
    terms: Sequence[Term],
    values: Sequence[str],
    after: Sequence[Column],
    width: int,
) -> list[Line]:
    """Terms with their labels, bars that are scaled to the largest, values, and further columns."""
    if not terms:
        return []
    names = ["  " + term.label for term in terms]
    least = min(LABELS, width // 2)
    columns = [
        Column(heading=title.ljust(least), cells=[name.ljust(least) for name in names], left=True),
        Column(heading=total, cells=values),
        *after,
    ]
    columns = fitting(columns, width)
    room = min(BAR, width - table_width(columns) - 2)
    if room >= 4:
        largest = max(term.value for term in terms)
        cells = [bar(term.value, largest, room).ljust(room) for term in terms]
        columns.insert(1, Column(heading="", cells=cells, left=True))
    return table(columns, width)


def _alternatives(plan: Plan, width: int) -> list[Line]:
    rows = plan.alternatives
    if len(rows) < 2:
        return []
    styles: list[Style] = ["good" if row is rows[0] else "" for row in rows]
    columns = alternative_columns(rows, reasons=True, front=plan.proof.front > 0)
    notes = (flow([text], " ", width, "  ", INDENT) for text in row_notes(rows))
    marks = styled((line for lines in notes for line in lines), "dim")
    if table_width(columns) <= width:
        return table(columns, width, styles) + marks
    lines = table(alternative_columns(rows, reasons=False), width, styles) + marks
    title = "What less memory costs" if plan.proof.front else "Why they lost"
    lines += [BLANK, (Span(f"  {title}"),)]
    hang = 5 if all(row.rank for row in rows) else 8
    for row in rows:
        if row.reason:
            label = f"  {row.rank or OWN}".ljust(hang)
            lines += styled(flow([row.reason], " ", width, label, hang))
    return lines


def searched(plan: Plan, width: int) -> list[Line]:
    """How much was searched, and what that proves."""
    proof = plan.proof
    if plan.uses:
        return searched_pools(plan, width)
    if proof.searched <= 1:
        return [(Span("  Priced this one layout; nothing was searched."),)]
    stated = plan.left_open is not None
    counts = f"Searched {proof.searched:,} layouts, {proof.fitting:,} fit."
    counts = counted(plan) if stated else counts
    if not proof.fitting:
        return [(Span(f"  {counts}"),)]
    if proof.optimal:
        bound = f"None of them is faster in this cost model (gap {percent(proof.gap, 0)})."
        if proof.cut_gap >= TOLD:
            bound = (
                f"None of them with even stages is faster in this cost model (gap {percent(proof.gap, 0)}), "
                f"none with any stages by more than {percent(proof.cut_gap)}."
            )
    else:
        bound = (
            f"Nothing can be faster than {show_seconds(proof.bound)} (gap {percent(proof.gap)})."
        )
        bound = f"Stopped early. {bound}" if proof.stopped else bound
    caution: Style = "" if proof.optimal else "caution"
    told = [counts, bound]
    if (
        not (stated or proof.front)
        and plan.degrees.offload == "none"
        and not any("offload" in pin for pin in plan.pins)
    ):
        told.append(
            "Host memory was not looked at."
            if proof.stopped
            else "Nothing in host memory would be faster."
        )
    return styled(flow(told, " ", width, "  ", INDENT), caution)


def next_lines(steps: NextSteps, width: int) -> list[Line]:
    """Commands to type next, below a page."""
    if not steps:
        return []
    commands = Column(heading="", cells=[command for command, _ in steps], left=True)
    uses = Column(
        heading="", cells=[use for _, use in steps], left=True, drop=1, styles=["dim"] * len(steps)
    )
    _, *lines = table([commands, uses], width - 7)
    return [
        (Span("  Next   " if index == 0 else " " * 9), *line[1:])
        for index, line in enumerate(lines)
    ]
