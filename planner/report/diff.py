"""Two plans beside one another: what was asked differently, what the layout does differently, what that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.plan.diff import Change, Difference, Pair
from planner.report.numbers import dollars, gib, percent, seconds_parts
from planner.report.tables import BLANK, Column, Line, Span, Style, flow, styled, table
from planner.units import show_seconds, three_digits

SMALL = 0.002
"""Share of the step below which an operator's change is not shown."""


def render_diff(found: Difference, width: int, title: str = "") -> list[Line]:
    """The page of ``diff``, and of ``explain PLAN '#2'``."""
    a, b = found.before, found.after
    lines = _verdict(found, title, width)
    for heading, changes in (("Asked differently", found.inputs), ("Layout", found.layout)):
        if changes:
            lines += [BLANK, *_changes(heading, changes, a, b, width)]
    if not found.layout:
        lines += [BLANK, *styled(["  The layout is the same."])]
    step = max(found.step.before, found.step.after)
    lines += [
        BLANK,
        *_pairs("Where the step goes", found.time, a, b, lambda p: seconds_parts(p, step), width),
    ]
    kinds = [pair for pair in found.kinds if pair.before or pair.after]
    lines += [
        BLANK,
        *_pairs("Fullest chip, GiB", kinds, a, b, lambda p: [gib(x) for x in p], width),
    ]
    least = SMALL * step
    operators = [pair for pair in found.operators if abs(pair.change) > least]
    if operators:
        lines += [
            BLANK,
            *_pairs("Operators", operators, a, b, lambda p: [show_seconds(x) for x in p], width),
        ]
    return lines


def _verdict(found: Difference, title: str, width: int) -> list[Line]:
    word, style = _speed(found.rate.before, found.rate.after)
    pieces = [
        _not(found.step, show_seconds, " a step"),
        _not(found.rate, three_digits, " tokens/s"),
        _not(found.memory, gib, " GiB"),
    ]
    if found.price is not None:
        pieces.append(_not(found.price, dollars, " per million tokens"))
    word = "the same" if found.same else word
    first = title or f"{found.after} beside {found.before}"
    return [(Span(f"  {first}: "), Span(word, style)), *styled(flow(pieces, " · ", width, "  ", 2))]


def _not(pair: Pair, show: Callable[[float], str], unit: str) -> str:
    """One number of both plans: ``8.27 s a step, not 9.10 s``, or ``8.27 s a step in both``."""
    before, after = show(pair.before), show(pair.after)
    return f"{after}{unit} in both" if after == before else f"{after}{unit}, not {before}"


def _speed(before: float, after: float) -> tuple[str, Style]:
    """How much slower, by the time a token takes as in the tables of layouts, or how much faster, by tokens a second.

    >>> _speed(300.0, 100.0)[0], _speed(100.0, 300.0)[0]
    ('200.0 % slower', '200.0 % faster')
    """
    by = max(before, after) / min(before, after) - 1
    if by < 5e-5:
        return "as fast", ""
    return (
        (f"{percent(by)} faster", "good")
        if after > before
        else (f"{percent(by)} slower", "caution")
    )


def _changes(title: str, changes: Sequence[Change], a: str, b: str, width: int) -> list[Line]:
    columns = [
        Column(heading=title, cells=[f"  {change.key}" for change in changes], left=True),
        Column(heading=a, cells=[change.before for change in changes], left=True),
        Column(heading=b, cells=[change.after for change in changes], left=True),
    ]
    return table(columns, width)


def _pairs(
    title: str,
    pairs: Sequence[Pair],
    a: str,
    b: str,
    show: Callable[[list[float]], list[str]],
    width: int,
) -> list[Line]:
    changes = [pair.change for pair in pairs]
    most = max((abs(change) for change in changes), default=0.0)
    signs = ["+" if change > 0 else "−" if change < 0 else "" for change in changes]
    sizes = show([abs(change) for change in changes])
    styles: list[Style] = ["" if abs(c) > 0.1 * most else "dim" for c in changes]
    columns = [
        Column(heading=title, cells=[f"  {pair.label}" for pair in pairs], left=True),
        Column(heading=a, cells=show([pair.before for pair in pairs]), drop=2),
        Column(heading=b, cells=show([pair.after for pair in pairs])),
        Column(
            heading="change",
            cells=[s + size if s else "" for s, size in zip(signs, sizes, strict=True)],
        ),
        Column(heading="id", cells=[pair.id for pair in pairs], left=True, drop=1),
    ]
    return table(columns, width, styles)
