"""A kept comparison or size, asked for one of its rows: the plan of the row, or what only the study knows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeAlias

from planner.asking import plan
from planner.errors import PlannerError
from planner.plan.derivation import Derivation, Quantity, named
from planner.plan.facts import Fact, Facts, facts
from planner.plan.findings import Compared, Comparison, Crossover, Largest, Sizing
from planner.plan.items import Number
from planner.plan.schema import Plan
from planner.question import Question
from planner.studies.again import SAME
from planner.studies.compare import Point, compared
from planner.studies.crossover import CLOSE, row_names

Study: TypeAlias = Comparison | Sizing | Largest
TURN = re.compile(r"turn\.(\d+)")


def asked_row(found: Study, asked: str) -> tuple[str, Compared, str]:
    """The row that words begin with, by its id, and what of it they ask for: ``#2 step.tp``, ``64``, ``8,192 mfu``.

    Raises:
        PlannerError: no row is called so (I01).
    """
    first, _, rest = asked.strip().partition(" ")
    rows = known_rows(found)
    for word in (first, first.replace(",", ""), f"#{first}", first.removeprefix("#")):
        if word in rows:
            return word, rows[word], rest.strip()
    if not rows:
        raise PlannerError.of("I01", f"no row is called '{first}', and there are none.")
    names = list(rows)
    more = " and turn.1 for where the order turns" if getattr(found, "crossovers", ()) else ""
    raise PlannerError.of(
        "I01",
        f"no row is called '{first}'. It has {names[0]} to {names[-1]}{more}.",
        f"Any number of a row's plan: '{names[0]} step.compute'",
    )


def known_rows(found: Study) -> dict[str, Compared]:
    """Rows by their ids: their places where clusters are compared, chips, tokens or sequences otherwise."""
    if isinstance(found, Comparison):
        return {f"#{place}": row for place, row in enumerate(found.rows, 1)}
    if isinstance(found, Sizing):
        return {str(row.chips): row for row in found.curve}
    return {str(value): row for value, row in found.curve}


def plan_of(row: Compared, id: str, name: str) -> Plan:
    """The plan that a row tells of, made anew.

    Raises:
        PlannerError: it has none (I01), or this version of the program, or what it reads, finds another (V01).
    """
    if row.step is None:
        raise PlannerError.of("I01", f"row {id} has no plan: {row.note or 'nothing fits'}.")
    made = plan(Question.again(row.asked), remedies=False)
    if not isinstance(made, Plan) or abs(made.step - row.step) > SAME * row.step:
        now = f"{made.step / row.step - 1:+.2%}" if isinstance(made, Plan) else "that nothing fits"
        raise PlannerError.of(
            "V01",
            f"row {id} of {name} is stale: asked again, its step is found {now}.",
            "Ask all of it again with the command that made it.",
        )
    return made


def own_number(found: Study, id: str, row: Compared, word: str) -> Number | Facts | None:
    """What a row tells and its plan does not: days and cost of all tokens, what bounds it; None for anything else."""
    tells = row.step is not None and (word == "days" or row.price_per_million_tokens is not None)
    if isinstance(found, Sizing) and word in ("days", "cost") and found.target.tokens and tells:
        return _of_all_tokens(f"{id} {word}", row, word, found.target.tokens)
    return facts(row, word) if word in ("bound_by", "chips", "note", "what_if") else None


def _of_all_tokens(id: str, row: Compared, word: str, tokens: float) -> Number:
    put_in = {"tokens": Quantity(value=tokens, meaning="to train on")}
    rate, price = row.tokens_per_second or 0.0, row.price_per_million_tokens or 0.0
    if word == "days":
        put_in["rate"] = Quantity(value=rate, unit="tokens/s", meaning="of this plan")
        how = Derivation(
            meaning="Days until all tokens are seen.", formula="tokens / rate / 86400",
            inputs=named(put_in), value=tokens / rate / 86400.0,
        )  # fmt: skip
    else:
        put_in["price"] = Quantity(value=price, unit="$", meaning="a million tokens")
        how = Derivation(
            meaning="What all tokens cost.", formula="tokens / 1e6 * price",
            inputs=named(put_in), value=tokens / 1e6 * price, unit="$",
        )  # fmt: skip
    return Number(id, how)


def turn(found: Study, asked: str) -> Number | Facts | None:
    """Where the order of two rows turns, and how that was found; None where that is not asked for.

    Raises:
        PlannerError: there is no such turn (I01).
    """
    match = TURN.fullmatch(asked.strip())
    if match is None or not isinstance(found, Comparison):
        return None
    number = int(match[1])
    if not 1 <= number <= len(found.crossovers):
        have = f"turn.1 to turn.{len(found.crossovers)}" if found.crossovers else "none"
        raise PlannerError.of("I01", f"no {match[0]} in the comparison. It has {have}.")
    each = found.crossovers[number - 1]
    how = _of_prices if each.value.startswith("$") else _of_range
    return how(found, each, match[0])


def _named(found: Comparison, name: str, what_if: str = "") -> Compared:
    """The row of a name whose what-if begins so; without one the row that has none.

    Raises:
        PlannerError: there is none, as after an edit by hand (V04).
    """
    for own, row in zip(row_names(found.rows), found.rows, strict=True):
        if own == name and (row.what_if.startswith(what_if) if what_if else not row.what_if):
            return row
    raise _disagrees(f"no row of it is {f'{name} {what_if}'.strip()}, whose order turns")


def _disagrees(what: str) -> PlannerError:
    fix = "Take the file as it was written."
    return PlannerError.of("V04", f"the comparison disagrees: {what}.", fix)


def _of_prices(found: Comparison, each: Crossover, id: str) -> Number:
    """The price of a chip-hour at which both tokens cost the same: a token's price is proportional to it."""
    other, best = (_named(found, name) for name in (each.below, each.above))
    price, token = other.price, other.price_per_million_tokens
    least = best.price_per_million_tokens
    if price is None or token is None or least is None:
        raise _disagrees(f"{each.below} and {each.above} turn at a price, and have none")
    inputs = {
        "price": Quantity(value=price, unit="$", meaning=f"a chip-hour of {each.below} now"),
        "least": Quantity(value=least, unit="$", meaning=f"a million tokens of {each.above}"),
        "token": Quantity(value=token, unit="$", meaning=f"a million tokens of {each.below}"),
    }
    meaning = f"Below this price of a chip-hour {each.below} has the cheaper tokens."
    how = Derivation(
        meaning=meaning, formula="price * least / token", inputs=named(inputs),
        value=price * least / token, unit="$",
    )  # fmt: skip
    return Number(id, how)


def _of_range(found: Comparison, each: Crossover, id: str) -> Facts:
    """Both rows asked once more with the number just where their order turns."""
    rows = [Fact(each.number, each.value, "", f"found by bisection, to {CLOSE - 1:.0%}")]
    for name in (each.below, each.above):
        row = _named(found, name, f"{each.number}=")
        label = f"{each.number}={each.value}"
        kept = (text for text in row.asked.what_if if text != row.what_if)
        question = replace(Question.again(row.asked), what_if=(*kept, label))
        there = compared(Point(question=question, chips=row.chips, label=label))
        if each.by == "rate":
            rows.append(Fact(name, there.tokens_per_second, "tokens/s", "there"))
        else:
            rows.append(Fact(name, there.price_per_million_tokens, "$", "a million tokens, there"))
    return Facts(id, tuple(rows))
