"""Other clusters and sizes beside the plan: a table, curves, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from planner.plan.findings import Compared, Comparison, Largest, Sizing, Target
from planner.plan.schema import Plan
from planner.report.compare import comparison_columns, crossover_words, label
from planner.report.html.curves import COLORS, Curve, Panel, draw
from planner.report.html.tables import Table, as_on_pages
from planner.report.numbers import dollars, percent
from planner.report.size import (
    UNITS,
    largest_columns,
    largest_sentences,
    money,
    shown_rows,
    sizing_columns,
    sizing_sentences,
)
from planner.units import show_seconds

LEAST = 3
"""Points of a curve that is worth drawing."""
Points = Sequence[tuple[float, Compared]]
"""Rows by what the horizontal scale counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What stands among the what-ifs of a report."""

    title: str
    table: Table
    sentences: tuple[str, ...]
    curves: Markup | None
    keys: tuple[tuple[str, str], ...] = ()
    """Colour and name of each curve, where there are several."""


def study(found: Comparison | Sizing | Largest, plan: Plan) -> Study:
    """A comparison or a search for a size as the report of a plan shows it."""
    if isinstance(found, Comparison):
        return _clusters(found, plan)
    if isinstance(found, Sizing):
        rows = list(shown_rows(found))
        points: Points = [(row.chips, row) for row in found.curve if row.fits]
        return Study(
            title="Other numbers of chips",
            table=as_on_pages(sizing_columns(found), _place(rows, plan)),
            sentences=tuple(sizing_sentences(found)),
            curves=_curves({"": points}, plan, found.target, "chips"),
        )
    points = [(value, row) for value, row in found.curve if row.fits]
    return Study(
        title="Other sequences" if found.what == "seq-len" else "Other batches",
        table=as_on_pages(largest_columns(found), _place([row for _, row in found.curve], plan)),
        sentences=tuple(largest_sentences(found)),
        curves=_curves({"": points}, plan, found.target, UNITS[found.what]),
    )


def _clusters(found: Comparison, plan: Plan) -> Study:
    """Clusters, with a curve for each of which there are several numbers of chips."""
    several = len({row.trainer for row in found.rows}) > 1
    lines: dict[str, list[tuple[float, Compared]]] = {}
    for row in sorted(found.rows, key=lambda row: row.chips):
        if row.fits and not row.what_if:
            name = f"{label(row)} under {row.trainer}" if several else label(row)
            lines.setdefault(name, []).append((row.chips, row))
    long = {name: points for name, points in lines.items() if len(points) >= LEAST}
    return Study(
        title="Other clusters",
        table=as_on_pages(comparison_columns(found), _place(found.rows, plan)),
        sentences=tuple(crossover_words(turn) for turn in found.crossovers),
        curves=_curves(dict(list(long.items())[: len(COLORS)]), plan, Target(), "chips"),
        keys=tuple(zip(COLORS, long, strict=False)) if len(long) > 1 else (),
    )


def _place(rows: Sequence[Compared], plan: Plan) -> int | None:
    """The row that is the plan."""
    chips = plan.cluster.num_chips
    mine = (i for i, row in enumerate(rows) if (row.chips, row.step) == (chips, plan.step))
    return next(mine, None)


def _curves(lines: dict[str, Points], plan: Plan, target: Target, across: str) -> Markup | None:
    """The step on the left; on the right what tokens cost, or how well chips are used where no price is known."""
    if not lines or min(map(len, lines.values())) < LEAST:
        return None

    def curves(value: Callable[[Compared], float | None]) -> tuple[Curve, ...]:
        return tuple(
            Curve(
                name,
                tuple(float(x) for x, _ in points),
                tuple(value(row) or 0.0 for _, row in points),
                _place([row for _, row in points], plan),
            )
            for name, points in lines.items()
        )

    rows = [row for points in lines.values() for _, row in points]
    step = Panel(title="Time of a step", curves=curves(lambda row: row.step), show=show_seconds,
                 limit=target.step)  # fmt: skip
    tokens = target.tokens
    if any(row.price_per_million_tokens is None for row in rows):
        other = Panel(title="MFU", curves=curves(lambda row: row.mfu), show=lambda v: percent(v, 0))
    elif tokens is None:
        other = Panel(title="Price of a million tokens", curves=curves(lambda row: row.price_per_million_tokens),
                      show=dollars)  # fmt: skip
    else:
        millions = tokens / 1e6
        other = Panel(title="Price of all tokens", show=money, limit=target.dollars,
                      curves=curves(lambda row: millions * (row.price_per_million_tokens or 0.0)))  # fmt: skip
    return draw([step, other], across)
