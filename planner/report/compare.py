"""Clusters beside one another: a row each, what is best, where the order turns, what each depends on."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from planner.plan.findings import Compared, Comparison, Crossover
from planner.plan.schema import Degrees
from planner.report.markdown import ENDLESS, markdown_table
from planner.report.numbers import dollars, gib, percent
from planner.report.tables import BLANK, Column, Line, Style, flow, plain, styled, table
from planner.units import show_count, show_seconds, three_digits

NOTHING = "–"
LONG = ("degrees", "sensitivities", "pool_prices")
"""Fields of a row that are no single value."""


def render_comparison(found: Comparison, width: int) -> list[Line]:
    """The page of ``compare``."""
    lines: list[Line] = [*styled(flow([_title(found)], " ", width, "  ", 2), "head"), BLANK]
    best = {found.fastest, found.cheapest} - {None}
    styles: list[Style] = [
        "good" if index in best else "" if row.fits else "dim"
        for index, row in enumerate(found.rows)
    ]
    lines += table(_numbered(found), width, styles)
    notes = _notes(found)
    if notes:
        lines += [
            BLANK,
            *(
                line
                for note in notes
                for line in styled(flow([note], " ", width, "  ", 4), "caution")
            ),
        ]
    lines += [BLANK, *_best(found, width)]
    if found.cheapest is not None:
        lines += styled(flow(_prices(found), " · ", width, "  Prices of a chip-hour: ", 4), "dim")
    for place, turn in enumerate(found.crossovers, 1):
        words = f"{crossover_words(turn)} (turn.{place})"
        lines += styled(flow([words], " ", width, "  ", 2))
    for row in found.rows:
        if row.sensitivities:
            lines += [BLANK, *_sensitivities(row, width)]
    return lines


def _title(found: Comparison) -> str:
    recipe = found.recipe
    trainers = dict.fromkeys(row.trainer for row in found.rows)
    what = f"{found.model.name}, {recipe.global_batch:,} × {recipe.seq:,} tokens a step, {recipe.precision}"
    return f"{what}, {next(iter(trainers))}" if len(trainers) == 1 else what


def _notes(found: Comparison) -> list[str]:
    """What there is to say of rows; once where it is the same of several on one cluster."""
    alike: dict[tuple[str, str], list[Compared]] = {}
    for row in found.rows:
        if row.note:
            alike.setdefault((row.kind, row.note), []).append(row)
    return [
        f"{kind}, {len(rows)} rows: {note}"
        if len(rows) > 1
        else f"{label(rows[0])}{_chips(rows[0])}: {note}"
        for (kind, note), rows in alike.items()
    ]


def label(row: Compared) -> str:
    """A row's cluster and what is changed of it."""
    return f"{row.kind}, {row.what_if}" if row.what_if else row.kind


def _chips(row: Compared) -> str:
    return f", {row.chips:,} chip{'s' * (row.chips > 1)}" if row.chips else ""


def _cluster(row: Compared) -> str:
    """What-ifs stand below the cluster whose numbers they change."""
    return f"  {row.what_if}" if row.what_if else label(row)


def _numbered(found: Comparison) -> list[Column]:
    """The columns of the table behind numbers by which ``explain`` knows the rows."""
    numbers = [f"{place}" for place in range(1, len(found.rows) + 1)]
    return [Column(heading="#", cells=numbers), *comparison_columns(found)]


def comparison_columns(found: Comparison) -> list[Column]:
    """The columns of the table; trainers only where there are several."""
    rows = found.rows
    several = len({row.trainer for row in rows}) > 1
    trainer = Column(heading="trainer", cells=[row.trainer for row in rows], left=True)
    return [
        Column(heading="cluster", cells=[_cluster(row) for row in rows], left=True),
        Column(heading="chips", cells=[f"{row.chips:,}" if row.chips else NOTHING for row in rows]),
        *([trainer] if several else []),
        Column(heading="step", cells=[_step(row, index == found.fastest) for index, row in enumerate(rows)]),
        Column(heading="tokens/s", cells=[_count(row.tokens_per_second) for row in rows], drop=2),
        Column(heading="MFU", cells=[_percent(row.mfu) for row in rows], drop=4),
        Column(heading="dp·tp·pp", cells=[degrees_product(row.degrees) for row in rows], left=True, drop=5),
        Column(heading="GiB", cells=[NOTHING if row.memory is None else gib(row.memory) for row in rows], drop=6),
        Column(heading="$/Mtok", cells=[_price(row, index == found.cheapest) for index, row in enumerate(rows)]),
        Column(heading="kWh/Mtok", cells=[_energy(row) for row in rows], drop=1),
        Column(heading="bound by", cells=[row.bound_by or NOTHING for row in rows], left=True, drop=3),
    ]  # fmt: skip


def degrees_product(d: Degrees | None) -> str:
    """The degrees in short: ``8·4·2``, with cp and ep where they are used."""
    if d is None:
        return NOTHING
    more = "".join(f" {axis}{getattr(d, axis)}" for axis in ("cp", "ep") if getattr(d, axis) > 1)
    return f"{d.dp}·{d.tp}·{d.pp}{more}"


def _step(row: Compared, best: bool) -> str:
    return NOTHING if row.step is None else show_seconds(row.step) + (" ✔" if best else "")


def _count(value: float | None) -> str:
    return NOTHING if value is None else show_count(value)


def _percent(value: float | None) -> str:
    return NOTHING if value is None else percent(value, 0)


def _price(row: Compared, best: bool) -> str:
    price = row.price_per_million_tokens
    return NOTHING if price is None else dollars(price) + (" ✔" if best else "")


def _energy(row: Compared) -> str:
    energy = row.energy_per_million_tokens
    return NOTHING if energy is None else three_digits(energy)


def _best(found: Comparison, width: int) -> list[Line]:
    if found.fastest is None:
        return styled(["  Nothing fits anywhere."], "bad")
    several = len({row.trainer for row in found.rows}) > 1

    def called(row: Compared) -> str:
        return f"{label(row)} on {row.chips:,}" + (f" under {row.trainer}" if several else "")

    fast = called(found.rows[found.fastest])
    if found.cheapest is None:
        text = f"Fastest: {fast}. No price is known; give one with --price NAME=DOLLARS."
    else:
        row = found.rows[found.cheapest]
        cheap = called(row)
        both = found.cheapest == found.fastest
        text = (
            f"Fastest and cheapest per token: {fast}."
            if both
            else f"Fastest: {fast}. Cheapest per token: {cheap}."
        )
    return styled(flow([text], " ", width, "  ", 2), "good")


def _prices(found: Comparison) -> list[str]:
    """What a chip-hour costs on each cluster, and how to state another price."""
    prices: dict[str, float] = {}
    for row in found.rows:
        if not row.what_if:
            prices |= row.pool_prices if row.price is None else {row.kind: row.price}
    said = [f"{name} {dollars(price)}" for name, price in prices.items()]
    return [*said, "others: --price NAME=DOLLARS"]


def crossover_words(turn: Crossover) -> str:
    """A turning point in a sentence."""
    better = "faster" if turn.by == "rate" else "cheaper per token"
    if turn.number == "chip.price" and turn.value.startswith("$"):
        return f"{turn.below} is cheaper than {turn.above} below {turn.value} a chip-hour."
    return f"Below {turn.number} {turn.value} {turn.below} is {better}, above it {turn.above}."


def _sensitivities(row: Compared, width: int) -> list[Line]:
    """The step with each number lowered and raised."""
    rows = row.sensitivities
    share = percent(rows[0].share, 0)
    columns = [
        Column(heading=f"{label(row)} on {row.chips:,}", cells=[s.label for s in rows], left=True),
        Column(heading=f"−{share}", cells=[_effect(s.low, row.step) for s in rows]),
        Column(heading=f"+{share}", cells=[_effect(s.high, row.step) for s in rows]),
        Column(heading="id", cells=[s.name for s in rows], left=True, drop=1),
    ]
    price = row.price_per_million_tokens
    if price is None:
        return table(columns, width)
    words = price_words(price, rows[0].share)
    return [*table(columns, width), *styled(flow([words], " ", width, "  ", 2))]


def price_words(price: float, share: float) -> str:
    """What a million tokens would cost at other prices of a chip-hour, which change no step."""
    low, high = (dollars(price * (1 + sign * share)) for sign in (-1, 1))
    other = f"With the price of a chip-hour (chip.price) {percent(share, 0)} lower or higher"
    return f"{other}: {low} or {high} per million tokens."


def _effect(step: float | None, now: float | None) -> str:
    if step is None or now is None:
        return "nothing fits"
    change = 100 * (step / now - 1)
    return "same" if abs(change) < 0.05 else f"{change:+.1f} %".replace("-", "−")


def comparison_markdown(found: Comparison) -> str:
    """The table as Markdown, and the sentences below it."""
    sentences = [
        *_notes(found),
        *(line.strip() for line in plain(_best(found, ENDLESS)).splitlines()),
    ]
    sentences += [crossover_words(turn) for turn in found.crossovers]
    table_text = markdown_table(_numbered(found))
    return "\n\n".join([f"## {_title(found)}", table_text.strip(), *sentences]) + "\n"


def comparison_csv(found: Comparison) -> str:
    """A row a line, numbers in full: seconds, bytes, dollars."""
    plain = [name for name in Compared.model_fields if name not in LONG]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*plain, *Degrees.model_fields])
    for row in found.rows:
        writer.writerow([*(_cell(getattr(row, name)) for name in plain), *_degrees(row.degrees)])
    return stream.getvalue()


def _cell(value: object) -> object:
    return "" if value is None else value


def _degrees(degrees: Degrees | None) -> Sequence[object]:
    if degrees is None:
        return [""] * len(Degrees.model_fields)
    return list((degrees.model_dump() | {"order": "-".join(degrees.order)}).values())
