"""How many chips, or how large a batch or sequence: the answer, what the next smaller one lacks, the curve."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from planner.plan.findings import Compared, Largest, Sizing, Target
from planner.report.compare import NOTHING, degrees_product
from planner.report.markdown import ENDLESS, markdown_table
from planner.report.numbers import bar, dollars, gib, percent
from planner.report.tables import BLANK, Column, Line, Span, Style, flow, plain, styled, table
from planner.units import show_count, show_seconds, three_digits

BAR = 16


def render_sizing(found: Sizing, width: int) -> list[Line]:
    """The page of ``size``."""
    title = styled(flow([_title(found)], " ", width, "  ", 2), "head")
    rows = list(shown_rows(found))
    styles: list[Style] = [
        "good" if row is found.answer else "" if row.fits else "dim" for row in rows
    ]
    curve = [BLANK, *table(sizing_columns(found), width, styles)] if rows else []
    return [*title, BLANK, *_verdict(found, width), *curve]


def _title(found: Sizing) -> str:
    recipe = found.recipe
    asked = f"{recipe.global_batch:,} × {recipe.seq:,} tokens a step, {recipe.precision}"
    return f"{found.model.name} on {found.cluster}, {asked}"


def _verdict(found: Sizing, width: int) -> list[Line]:
    wanted = wishes(found.target)
    if found.answer is None:
        words = f"No number of chips would {wanted or 'fit'}: {found.note}."
        return styled(flow([words], " ", width, "  ", 2), "bad")
    answer = f"{found.answer.chips:,} chip{'s' * (found.answer.chips > 1)}"
    are = "is" if found.answer.chips == 1 else "are"
    verdict = f"{are} the fewest that fit and {wanted}" if wanted else f"{are} the fewest that fit"
    lines: list[Line] = [(Span(f"  {answer}", "good"), Span(f" {verdict}."))]
    if found.below is not None:
        words = f"{found.below.chips:,}: {lack(found.below, found.target)}."
        lines += styled(flow([words], " ", width, "  ", 4), "dim")
    return lines


def wishes(target: Target) -> str:
    """What a target demands, in words after “that”."""
    words = []
    if target.step is not None:
        words.append(f"take {show_seconds(target.step)} a step")
    tokens = f"see {show_count(target.tokens or 0.0)} tokens"
    if target.days is not None:
        tokens += f" in {target.days:g} days"
    if target.dollars is not None:
        tokens += f" for at most {money(target.dollars)}"
    if target.days is not None or target.dollars is not None:
        words.append(tokens)
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


def sizing_columns(found: Sizing) -> list[Column]:
    """The columns of the table; days and cost where tokens are asked for."""
    target, answer, rows = found.target, found.answer, list(shown_rows(found))
    chips = [
        f"{row.chips:,}" + (" ✔" if answer and row.chips == answer.chips else "") for row in rows
    ]
    columns = [Column(heading="chips", cells=chips, left=True), *curve_columns(rows)]
    if target.tokens is not None:
        columns += [
            Column(heading="days", cells=[days(row, target) for row in rows]),
            Column(heading="cost", cells=[_cost(row, target) for row in rows]),
        ]
    return columns


def shown_rows(found: Sizing) -> Iterator[Compared]:
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


UNITS = {"seq-len": "tokens", "global-batch": "sequences"}


def render_largest(found: Largest, width: int) -> list[Line]:
    """The page of ``size --largest``."""
    styles: list[Style] = [
        "good" if row is found.answer else "" if row.fits else "dim" for _, row in found.curve
    ]
    title = styled(flow([_largest_title(found)], " ", width, "  ", 2), "head")
    curve = table(largest_columns(found), width, styles)
    return [*title, BLANK, *_largest_verdict(found, width), BLANK, *curve]


def _largest_title(found: Largest) -> str:
    recipe, cluster = found.recipe, (found.answer or found.curve[0][1]).cluster
    tokens = recipe.global_batch * recipe.seq
    kept = {
        "seq-len": f"{tokens:,} tokens a step however long ({recipe.global_batch:,} × {recipe.seq:,})",
        "global-batch": f"sequences of {recipe.seq:,} tokens",
    }[found.what]
    return f"{found.model.name} on {cluster}, {kept}, {recipe.precision}"


def _largest_verdict(found: Largest, width: int) -> list[Line]:
    what = {"seq-len": "sequence", "global-batch": "global batch"}[found.what]
    limit = found.target.step
    within = "" if limit is None else f" in steps of at most {show_seconds(limit)}"
    if found.value is None:
        lines = styled([f"  No {what} fits{within}."], "bad")
    else:
        size = "longest" if found.what == "seq-len" else "largest"
        verdict = f" are the {size} {what} that fits{within}."
        lines = [(Span(f"  {found.value:,} {UNITS[found.what]}", "good"), Span(verdict))]
    if found.above is not None:
        why = lack(found.above, found.target)
        lines += styled(flow([f"{found.above_value:,}: {why}."], " ", width, "  ", 4), "dim")
    return lines


def largest_columns(found: Largest) -> list[Column]:
    """The columns of the table, what was looked at first."""
    values = [f"{value:,}" + (" ✔" if value == found.value else "") for value, _ in found.curve]
    first = Column(heading=UNITS[found.what], cells=values, left=True)
    return [first, *curve_columns([row for _, row in found.curve])]


def sizing_markdown(found: Sizing) -> str:
    """The answer and the table as Markdown."""
    return _markdown(_title(found), sizing_sentences(found), sizing_columns(found))


def sizing_sentences(found: Sizing) -> list[str]:
    """What was found, and what the next smaller number lacks."""
    return _sentences(_verdict(found, ENDLESS))


def largest_markdown(found: Largest) -> str:
    """The answer and the table as Markdown."""
    return _markdown(_largest_title(found), largest_sentences(found), largest_columns(found))


def largest_sentences(found: Largest) -> list[str]:
    """What was found, and what the next larger one lacks."""
    return _sentences(_largest_verdict(found, ENDLESS))


def _sentences(verdict: Sequence[Line]) -> list[str]:
    return [line.strip() for line in plain(verdict).splitlines()]


def _markdown(title: str, sentences: Sequence[str], columns: Sequence[Column]) -> str:
    without_bars = [column for column in columns if column.heading]
    paragraphs = "\n\n".join(sentences)
    return f"## {title}\n\n{paragraphs}\n\n{markdown_table(without_bars)}"


def sizing_csv(found: Sizing) -> str:
    """The curve, numbers in full: seconds, bytes, dollars."""
    return _csv([((), row) for row in found.curve])


def largest_csv(found: Largest) -> str:
    """The same with the batch or sequence in front."""
    return _csv([((value,), row) for value, row in found.curve], (found.what,))


def _csv(rows: Sequence[tuple[tuple[int, ...], Compared]], first: tuple[str, ...] = ()) -> str:
    names = [name for name in Compared.model_fields if name not in ("degrees", "sensitivities")]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*first, *names])
    for before, row in rows:
        values = (getattr(row, name) for name in names)
        writer.writerow([*before, *("" if value is None else value for value in values)])
    return stream.getvalue()
