"""How many chips, or how large a batch or sequence: the answer, what the next smaller one lacks, the curve."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from planner.plan.findings import Compared, Largest, Sizing, Target
from planner.report.compare import NOTHING, degrees_product
from planner.report.numbers import bar, dollars, gib, percent
from planner.report.tables import BLANK, Column, Line, Span, Style, flow, styled, table
from planner.units import show_count, show_seconds, three_digits

BAR = 16


def render_sizing(found: Sizing, width: int) -> list[Line]:
    """The page of ``size``."""
    recipe = found.recipe
    title = f"{found.model.name} on {found.cluster}, {recipe.global_batch:,} × {recipe.seq:,} tokens a step"
    lines: list[Line] = [(Span(f"  {title}, {recipe.precision}", "head"),), BLANK]
    wanted = wishes(found.target)
    if found.answer is None:
        return [
            *lines,
            *styled(
                flow(
                    [f"No number of chips would {wanted or 'fit'}: {found.note}."],
                    " ",
                    width,
                    "  ",
                    2,
                ),
                "bad",
            ),
            *_curve(found, width),
        ]
    answer = f"{found.answer.chips:,} chip{'s' * (found.answer.chips > 1)}"
    are = "is" if found.answer.chips == 1 else "are"
    verdict = f"{are} the fewest that fit and {wanted}" if wanted else f"{are} the fewest that fit"
    lines.append((Span(f"  {answer}", "good"), Span(f" {verdict}.")))
    if found.below is not None:
        lines += styled(
            flow(
                [f"{found.below.chips:,}: {lack(found.below, found.target)}."], " ", width, "  ", 4
            ),
            "dim",
        )
    return [*lines, *_curve(found, width)]


def wishes(target: Target) -> str:
    """What a target demands, in words after “that”."""
    words = []
    if target.step is not None:
        words.append(f"take {show_seconds(target.step)} a step")
    if target.days is not None:
        words.append(f"see {show_count(target.tokens or 0.0)} tokens in {target.days:g} days")
    if target.dollars is not None:
        words.append(f"cost {money(target.dollars)} for {show_count(target.tokens or 0.0)} tokens")
    return " and ".join(words)


def money(amount: float) -> str:
    """Dollars as people say sums."""
    return f"${show_count(amount)}" if amount >= 1000 else dollars(amount)


def lack(row: Compared, target: Target) -> str:
    """What a row lacks."""
    if not row.fits or row.step is None:
        return row.note.rstrip(".") or "nothing fits"
    words = [f"{show_seconds(row.step)} a step"]
    if target.tokens is not None:
        words += [f"{days(row, target)} days", _cost(row, target)]
    return ", ".join(words)


def _curve(found: Sizing, width: int) -> list[Line]:
    rows = list(_shown(found))
    if not rows:
        return []
    target, answer = found.target, found.answer
    chips = [
        f"{row.chips:,}" + (" ✔" if answer and row.chips == answer.chips else "") for row in rows
    ]
    columns = [Column(heading="chips", cells=chips, left=True), *curve_columns(rows)]
    if target.tokens is not None:
        columns += [
            Column(heading="days", cells=[days(row, target) for row in rows]),
            Column(heading="cost", cells=[_cost(row, target) for row in rows]),
        ]
    styles: list[Style] = ["good" if row is answer else "" if row.fits else "dim" for row in rows]
    return [BLANK, *table(columns, width, styles)]


def _shown(found: Sizing) -> Iterator[Compared]:
    """Rows that tell something: those that are faster than all with fewer chips, and the nearest that does not fit."""
    best = float("inf")
    for row in found.curve:
        if row.step is not None and row.step < best:
            best = row.step
            yield row
        elif found.below is not None and row.chips == found.below.chips and not row.fits:
            yield row


def curve_columns(rows: Sequence[Compared]) -> list[Column]:
    """Time, rate, memory and price of rows, with bars of the time."""
    steps = [row.step or 0.0 for row in rows]
    most = max(steps, default=0.0)
    return [
        Column(heading="step", cells=[NOTHING if row.step is None else show_seconds(row.step) for row in rows]),
        Column(heading="", cells=[bar(step, most, BAR) for step in steps], left=True, drop=1),
        Column(heading="tokens/s", cells=[_rate(row) for row in rows]),
        Column(heading="MFU", cells=[NOTHING if row.mfu is None else percent(row.mfu, 0) for row in rows], drop=4),
        Column(heading="dp·tp·pp", cells=[degrees_product(row.degrees) for row in rows], left=True, drop=2),
        Column(heading="GiB", cells=[NOTHING if row.memory is None else gib(row.memory) for row in rows], drop=3),
        Column(heading="$/Mtok", cells=[_price(row) for row in rows]),
    ]  # fmt: skip


def _rate(row: Compared) -> str:
    return NOTHING if row.tokens_per_second is None else show_count(row.tokens_per_second)


def _price(row: Compared) -> str:
    price = row.price_per_million_tokens
    return NOTHING if price is None else dollars(price)


def days(row: Compared, target: Target) -> str:
    """Days that a row takes for the target's tokens."""
    if target.tokens is None or not row.tokens_per_second:
        return NOTHING
    return three_digits(target.tokens / row.tokens_per_second / 86400.0)


def _cost(row: Compared, target: Target) -> str:
    price = row.price_per_million_tokens
    return NOTHING if price is None or target.tokens is None else money(price * target.tokens / 1e6)


def render_largest(found: Largest, width: int) -> list[Line]:
    """The page of ``size --largest``."""
    what = {"seq-len": "sequence", "global-batch": "global batch"}[found.what]
    unit = {"seq-len": "tokens", "global-batch": "sequences"}[found.what]
    row = found.answer or found.curve[0][1]
    lines: list[Line] = [(Span(f"  {found.model.name} on {row.cluster}", "head"),), BLANK]
    limit = found.target.step
    within = "" if limit is None else f" in steps of at most {show_seconds(limit)}"
    if found.value is None:
        lines += styled([f"  No {what} fits{within}."], "bad")
    else:
        verdict = f" are the {'longest' if found.what == 'seq-len' else 'largest'} {what} that fits{within}."
        lines.append((Span(f"  {found.value:,} {unit}", "good"), Span(verdict)))
    if found.above is not None:
        why = lack(found.above, found.target)
        lines += styled(flow([f"{found.above_value:,}: {why}."], " ", width, "  ", 4), "dim")
    values = [f"{value:,}" + (" ✔" if value == found.value else "") for value, _ in found.curve]
    rows = [row for _, row in found.curve]
    styles: list[Style] = [
        "good" if row is found.answer else "" if row.fits else "dim" for row in rows
    ]
    columns = [Column(heading=unit, cells=values, left=True), *curve_columns(rows)]
    return [*lines, BLANK, *table(columns, width, styles)]


def sizing_csv(found: Sizing) -> str:
    """The curve, numbers in full: seconds, bytes, dollars."""
    names = [name for name in Compared.model_fields if name not in ("degrees", "sensitivities")]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in found.curve:
        values = (getattr(row, name) for name in names)
        writer.writerow(["" if value is None else value for value in values])
    return stream.getvalue()
