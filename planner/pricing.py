"""From a stated layout to its price: read it, fill in what it leaves open, build the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from planner.answered import drawn, header_of
from planner.cost.step import exact
from planner.plan.figures import Sensitivity
from planner.plan.layout import DIVISION, layout_of, plain
from planner.plan.schema import Plan
from planner.question import Question, understand
from planner.search.answer import assembled
from planner.search.pin_prices import pin_prices
from planner.search.pins import Pins
from planner.search.sensitivity import sensitivities
from planner.stated import by_trainer, fastest, of_operators, read_layout


def price(question: Question, layout: Mapping[str, int | str], *, usual: bool = False) -> Plan:
    """What a stated layout costs.

    Args and errors: as :func:`planner.asking.price`, for chips of one kind.
    """
    known = understand(question)
    stated = read_layout(known, layout)
    found = fastest(stated, known.pins, question.time_limit, usual=usual)
    best, pinned = found.prices, Pins(operators=known.pins.operators)
    row = replace(best.rows, operators=np.zeros_like(best.rows.operators))

    def step(fewer: Pins) -> float | None:
        task, rows = of_operators(stated.task, fewer, row)
        return float(exact(stated.priced(task, rows)).step[0]) if len(rows) else None

    division = (f"{key}={value}" for key, value in layout.items() if plain(key) in DIVISION)
    header = replace(
        header_of(known, stated.pins),
        pins=tuple(dict.fromkeys((*stated.pins.texts(), *division, *known.pins.texts()))),
        asked=known.asked.model_copy(update={"layout": dict(layout)}),
        pin_prices=pin_prices(pinned, float(exact(best).step[0]), step),
        left_open=by_trainer(stated, known.pins, found),
    )
    plan = assembled(stated.task, best, header, alternatives=(), removed=(), proof=found.proof)
    return drawn(plan, question, best)


def sensitive(question: Question, answer: Plan) -> tuple[Sensitivity, ...]:
    """The step of a plan with every number of its hardware a fifth lower and higher."""
    known = understand(question)
    stated = read_layout(known, layout_of(answer.degrees, answer.pins))
    return sensitivities(stated.task, stated.priced(stated.task, stated.row), known.pins)
