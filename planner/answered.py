"""What every answer carries besides what was found: the question, who answered, figures where they are asked for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from planner.cost.prices import Prices
from planner.plan.schema import Plan
from planner.question import Question, Understood
from planner.search.answer import Header
from planner.search.engine import Outcome
from planner.search.pins import Pins


def header_of(known: Understood, pins: Pins) -> Header:
    """What a plan says of its question."""
    return Header(
        made_by=made_by(),
        asked=known.asked,
        fingerprints=known.fingerprints,
        pins=pins.texts(),
        assumptions=known.assumptions,
        hints=known.hints,
    )


def made_by() -> str:
    """Program and version, as plans carry it."""
    try:
        return f"shardwright {version('shardwright')}"
    except PackageNotFoundError:
        return "shardwright (from a checkout)"


def drawn(
    found: Plan,
    question: Question,
    best: Prices,
    outcome: Outcome | None = None,
    pins: Pins | None = None,
) -> Plan:
    """The plan with the figures of a report, where they are asked for; one who interrupts keeps the plan without."""
    if not question.figures:
        return found
    from planner.search.figures import figures

    try:
        made = figures(best.task, best, outcome, pins)
    except KeyboardInterrupt:
        return found
    return found.model_copy(update={"figures": made})
