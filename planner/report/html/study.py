"""Other clusters and sizes beside the plan: a table, curves, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from planner.plan.findings import Compared, Comparison, Largest, Sizing
from planner.report.compare import comparison_columns, crossover_words, label
from planner.report.html.curves import COLORS, Curve, Panel, draw
from planner.report.html.tables import Table, alternatives
from planner.report.numbers import dollars, percent
from planner.report.size import (
    UNITS,
    largest_columns,
    largest_sentences,
    money,
    sizing_columns,
    sizing_sentences,
)
from planner.report.tables import Column
from planner.units import show_seconds

LEAST = 3
"""Points of a curve that is worth drawing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What stands among the what-ifs of a report."""

    title: str
    table: Table
    sentences: tuple[str, ...]
    curves: Markup | None = None
    keys: tuple[tuple[str, str], ...] = ()
    """Colour and name of each curve, where there are several."""


def study(found: Comparison | Sizing | Largest) -> Study:
    """A comparison or a search for a size as the report shows it."""
    if isinstance(found, Comparison):
        curves = _of_clusters(found)
        named = (
            tuple(zip(COLORS, (c.name for c in curves), strict=False)) if len(curves) > 1 else ()
        )
        return Study(
            title="Other clusters",
            table=_table(comparison_columns(found)),
            sentences=tuple(crossover_words(turn) for turn in found.crossovers),
            curves=_drawn(curves, _prices(found.rows, curves), "chips") if curves else None,
            keys=named,
        )
    if isinstance(found, Sizing):
        rows = [row for row in found.curve if row.fits]
        steps = _steps("", [(row.chips, row) for row in rows], found.answer)
        tokens = found.target.tokens
        costs = _costs(rows, [float(row.chips) for row in rows], found.answer, tokens)
        return Study(
            title="Other numbers of chips",
            table=_table(sizing_columns(found)),
            sentences=tuple(sizing_sentences(found)),
            curves=_drawn([steps], costs, "chips", found.target.step, found.target.dollars, tokens)
            if len(rows) >= LEAST
            else None,
        )
    pairs = [(value, row) for value, row in found.curve if row.fits]
    steps = _steps("", pairs, found.answer)
    rates = _rates(pairs, found.answer)
    return Study(
        title="Other lengths" if found.what == "seq-len" else "Other batches",
        table=_table(largest_columns(found)),
        sentences=tuple(largest_sentences(found)),
        curves=_drawn([steps], rates, UNITS[found.what], found.target.step, mfu=True)
        if len(pairs) >= LEAST
        else None,
    )


def _table(columns: Sequence[Column]) -> Table:
    """As every page shows it, without the bars."""
    return alternatives([column for column in columns if column.heading])


def _of_clusters(found: Comparison) -> list[Curve]:
    """A curve for each cluster of at least so many numbers of chips, as it is."""
    several = len({row.trainer for row in found.rows}) > 1
    lines: dict[str, list[tuple[float, Compared]]] = {}
    for row in found.rows:
        if row.fits and not row.what_if:
            name = f"{label(row)} under {row.trainer}" if several else label(row)
            lines.setdefault(name, []).append((row.chips, row))
    best = None if found.fastest is None else found.rows[found.fastest]
    return [
        _steps(name, sorted(points, key=lambda p: p[0]), best)
        for name, points in lines.items()
        if len(points) >= LEAST
    ][: len(COLORS)]


def _steps(name: str, points: Sequence[tuple[float, Compared]], answer: Compared | None) -> Curve:
    return Curve(
        name,
        tuple(float(x) for x, _ in points),
        tuple(row.step or 0.0 for _, row in points),
        _place([row for _, row in points], answer),
    )


def _place(rows: Sequence[Compared], answer: Compared | None) -> int | None:
    return next((place for place, row in enumerate(rows) if row == answer), None)


def _prices(rows: Sequence[Compared], steps: Sequence[Curve]) -> list[Curve]:
    """What a million tokens costs on the same points; none where a price is not known."""
    known = {
        (label(row), float(row.chips)): row.price_per_million_tokens
        for row in rows
        if not row.what_if
    }
    found = []
    for curve in steps:
        name = curve.name.partition(" under ")[0]
        costs = [known.get((name, x)) for x in curve.x]
        if None in costs:
            return []
        found.append(Curve(curve.name, curve.x, tuple(cost or 0.0 for cost in costs), curve.chosen))
    return found


def _costs(
    rows: Sequence[Compared], xs: Sequence[float], answer: Compared | None, tokens: float | None
) -> list[Curve]:
    """Dollars for all tokens, or for a million."""
    prices = [row.price_per_million_tokens for row in rows]
    if None in prices:
        return []
    times = 1.0 if tokens is None else tokens / 1e6
    return [Curve("", tuple(xs), tuple(times * (p or 0.0) for p in prices), _place(rows, answer))]


def _rates(points: Sequence[tuple[float, Compared]], answer: Compared | None) -> list[Curve]:
    """How well the chips are used."""
    rows = [row for _, row in points]
    used = tuple(row.mfu or 0.0 for row in rows)
    return [Curve("", tuple(float(x) for x, _ in points), used, _place(rows, answer))]


def _drawn(
    steps: Sequence[Curve],
    others: Sequence[Curve],
    across: str,
    step: float | None = None,
    limit: float | None = None,
    tokens: float | None = None,
    *,
    mfu: bool = False,
) -> Markup:
    """Time on the left, money or use of the chips on the right where it is known."""
    panels = [
        Panel(
            title="Seconds a step", curves=tuple(steps), show=show_seconds, rising=False, limit=step
        )
    ]
    if mfu:
        panels.append(
            Panel(title="MFU", curves=tuple(others), show=lambda v: percent(v, 0), rising=True)
        )
    elif others:
        title = "Dollars for a million tokens" if tokens is None else "Dollars for all tokens"
        show = dollars if tokens is None else money
        panels.append(Panel(title=title, curves=tuple(others), show=show, rising=True, limit=limit))
    return draw(panels, across)
