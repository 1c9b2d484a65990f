"""Where the order of two rows turns: for prices by a formula, along a range by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from planner.plan.findings import Compared, Crossover
from planner.studies.ranges import WhatIf

if TYPE_CHECKING:
    from planner.studies.compare import Point

CLOSE = 1.01
"""Ratio of two values between which nothing more is asked."""
MOST_PRICES = 3
"""Rows of which the price at which they would be cheapest is told, the nearest first."""
By = Literal["rate", "price"]


def crossovers(
    points: Sequence[Point],
    rows: Sequence[Compared],
    what_ifs: Sequence[WhatIf],
    ask: Callable[[Point, str], Compared],
) -> Iterator[Crossover]:
    """All turning points: of prices, then of every range."""
    yield from prices_that_tie(rows)
    for what_if in what_ifs:
        if what_if.values:
            yield from _along(points, rows, what_if, ask)


def prices_that_tie(rows: Sequence[Compared]) -> Iterator[Crossover]:
    """For rows of other chips than the cheapest row's: below which price of theirs their tokens are cheaper."""
    named = zip(row_names(rows), rows, strict=True)
    priced = sorted(
        (row.price_per_million_tokens, row.price, row.kind, name)
        for name, row in named
        if row.price and row.price_per_million_tokens and not row.what_if
    )
    others: dict[str, tuple[float, float, str, str]] = {}
    for row in priced[1:]:
        if row[2] != priced[0][2]:
            others.setdefault(row[2], row)
    for token, price, _, name in list(others.values())[:MOST_PRICES]:
        value = price * priced[0][0] / token
        yield Crossover(
            by="price",
            number="chip.price",
            value=f"${value:.2f}",
            below=name,
            above=priced[0][3],
        )


def row_names(rows: Sequence[Compared]) -> list[str]:
    """What rows are called among one another, their what-ifs left out: the trainer only where there are several."""
    several = len({row.trainer for row in rows}) > 1
    return [f"{row.cluster} under {row.trainer}" if several else row.cluster for row in rows]


def _along(
    points: Sequence[Point],
    rows: Sequence[Compared],
    what_if: WhatIf,
    ask: Callable[[Point, str], Compared],
) -> Iterator[Crossover]:
    """Between two neighbouring values with different winners, the value where the order turns."""
    at = dict(zip(what_if.texts, what_if.values, strict=True))
    lines: dict[float, dict[str, int]] = {}
    for index, name in enumerate(row_names(rows)):
        if rows[index].what_if in at:
            lines.setdefault(at[rows[index].what_if], {})[name] = index
    by: By
    for by in ("rate", "price"):
        for low, high in pairwise(sorted(lines)):
            before, after = (_winner(rows, lines[value], by) for value in (low, high))
            if before is None or after is None or before == after:
                continue
            pair = points[lines[low][before]], points[lines[low][after]]
            value = _bisected(pair, (low, high), what_if, by, ask)
            yield Crossover(
                by=by,
                number=what_if.number,
                value=what_if.at(value).partition("=")[2],
                below=before,
                above=after,
            )


def _winner(rows: Sequence[Compared], line: dict[str, int], by: By) -> str | None:
    names = [name for name, index in line.items() if _merit(rows[index], by) is not None]
    return max(names, key=lambda name: _merit(rows[line[name]], by) or 0.0, default=None)


def _merit(row: Compared, by: By) -> float | None:
    """Larger is better; None where nothing fits or no price is known."""
    if by == "rate":
        return row.tokens_per_second
    price = row.price_per_million_tokens
    return None if not price else 1.0 / price


def _bisected(
    pair: tuple[Point, Point],
    ends: tuple[float, float],
    what_if: WhatIf,
    by: By,
    ask: Callable[[Point, str], Compared],
) -> float:
    """The value at which the second of a pair becomes the better one."""
    low, high = ends
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        first, second = (_merit(ask(point, what_if.at(middle)), by) or 0.0 for point in pair)
        low, high = (low, middle) if second > first else (middle, high)
    return math.sqrt(low * high)
