"""From a question to its answer: read it, search, build the plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from planner.answered import drawn, header_of
from planner.cost.prices import Prices
from planner.plan.schema import NoPlan, Plan
from planner.question import Question, Understood, understand
from planner.search.answer import build_plan
from planner.search.engine import Outcome, Progress, search
from planner.search.front import front, with_host_memory
from planner.search.idle import better, divides_badly, fewer
from planner.search.pin_prices import Without, pin_prices
from planner.search.pins import Pins
from planner.search.stages.winners import JUDGED, searched


def plan(
    question: Question,
    progress: Callable[[Progress], None] | None = None,
    *,
    remedies: bool = True,
) -> Plan | NoPlan:
    """The fastest plan that fits, with its proof; or why there is none.

    Args:
        question: what is asked.
        progress: called between batches of the search.
        remedies: whether to look for the smallest changes that would fit, where nothing does.

    Raises:
        PlannerError: wrong input, or pins that no layout can satisfy.
    """
    known = understand(question)
    own = _own(known, question)
    deadline = time.monotonic() + question.time_limit
    whole = question.objective == "pareto"  # on the front are slower ones, too
    raw, outcome = searched(known.task, known.pins, question.top, deadline, progress, whole=whole)
    deadline = time.monotonic() if outcome.stopped else deadline
    without = Without(known.task, known.pins, (raw, outcome), max(question.top, JUDGED), deadline)
    if time.monotonic() > deadline:  # some of the winners kept their even stages
        outcome = replace(outcome, stopped=True)
    outcome, idle = _some_idle(known, question, outcome, deadline)
    if outcome.best is not None:
        if whole:
            outcome = with_host_memory(known.pins, outcome)
            outcome = front(known.task, outcome, question.top, deadline)
        header = replace(
            header_of(known, known.pins),
            idle=idle,
            objective=_objective(question, outcome),
            on_chips=_on_chips(outcome),
            pin_prices=pin_prices(known.pins, float(outcome.step[0]), without.step),
        )
        found = build_plan(known.task, outcome, header, own)
        return drawn(found, question, outcome.row(0), outcome, known.pins)
    from planner.unplanned import no_plan

    return no_plan(known, outcome, remedies=remedies)


def _objective(question: Question, outcome: Outcome) -> str:
    """What another objective than the fastest step came to, in words."""
    if outcome.front:
        told = f"pareto: {outcome.front:,} layouts beaten by none in both step and memory"
        every = len(outcome.step) == outcome.front
        return told if every else f"{told}; {len(outcome.step)} of them are rows below"
    if question.objective == "cost-per-token":
        return "cost-per-token: all chips are paid for, so the fastest step has the cheapest token"
    return ""


def _on_chips(outcome: Outcome) -> float:
    """Seconds of the fastest layout found that keeps nothing in host memory."""
    plain = outcome.space.candidates.offload[outcome.index] == 0
    return min(outcome.on_chips, float(outcome.step[plain].min(initial=math.inf)))


def _own(known: Understood, question: Question) -> Prices | None:
    """The layout that the user has, if any."""
    if not question.warm_start and not known.file_layout:
        return None
    from planner.stated import own_layout

    return own_layout(known, question.warm_start, question.time_limit)


def _some_idle(
    known: Understood, question: Question, outcome: Outcome, deadline: float
) -> tuple[Outcome, str]:
    """The outcome, or that of fewer chips where it is better, and why the others are idle."""
    task, pins = known.task, known.pins
    nothing, left = outcome.best is None, deadline - time.monotonic()
    if nothing and pins.restrict:  # a pin on what a plan would be leaves that plan
        nothing = search(task, Pins(), top=1, time_limit=max(left, 0.0)).best is None
        left = deadline - time.monotonic()
    chips = fewer(task.cluster) if nothing or divides_badly(task.cluster.num_chips) else ()
    if not chips or left <= 0 or outcome.stopped:
        return outcome, ""
    whole = question.objective == "pareto"
    _, part = searched(replace(task, chips=chips), pins, question.top, deadline, whole=whole)
    return better(outcome, part)
