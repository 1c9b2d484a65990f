"""From a question to its answer: read it, search, build the plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from planner.candidates import concatenate
from planner.cost.prices import Prices
from planner.cost.step import exact
from planner.errors import Fault, PlannerError, listed
from planner.frontends.catalog import entries
from planner.frontends.cluster_file import read_chip, read_cluster
from planner.hardware.cluster import Cluster
from planner.plan.figures import Sensitivity
from planner.plan.layout import DIVISION, layout_of, plain
from planner.plan.schema import NoPlan, Plan
from planner.question import Question, Understood, understand
from planner.search.answer import Header, assembled, build_plan
from planner.search.engine import Outcome, Progress, search
from planner.search.figures import figures
from planner.search.idle import better, divides_badly, fewer
from planner.search.miss import build_miss
from planner.search.operator_faults import unsatisfied
from planner.search.pin_prices import Without, pin_prices
from planner.search.pins import Pins
from planner.search.semi_automatic import plan_operators
from planner.search.sensitivity import sensitivities
from planner.search.space import build_space, degree_rows
from planner.search.stages.winners import best_cuts
from planner.stated import by_trainer, fastest, filled, of_operators, read_layout, usual_row
from planner.trainers.registry import faults
from planner.trainers.trainer import Task
from planner.trainers.wording import divisors


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
    raw = search(
        known.task, known.pins, top=question.top, time_limit=question.time_limit, progress=progress
    )
    outcome = best_cuts(raw, known.pins, deadline)
    without = Without(known.task, known.pins, (raw, outcome), question.top, deadline)
    if time.monotonic() > deadline:  # some of the winners kept their even stages
        outcome = replace(outcome, stopped=True)
    outcome, idle = _some_idle(known, question, outcome, deadline)
    if outcome.best is not None:
        header = replace(
            header_of(known, known.pins),
            idle=idle,
            pin_prices=pin_prices(known.pins, float(outcome.step[0]), without.step),
        )
        found = build_plan(known.task, outcome, header, own)
        return drawn(found, question, outcome.row(0), outcome, known.pins)
    ruled_out: tuple[Fault, ...] = ()
    if not len(outcome.space.candidates):
        ruled_out = _of_the_roles(known, _fewest_faults(known))
        if known.pins.restrict:
            raise PlannerError(*(_unsatisfied(known) or ruled_out or _nothing_left(known)))
    miss = build_miss(
        known.task,
        known.pins,
        outcome.space,
        made_by=made_by(),
        assumptions=known.assumptions,
        larger=_larger(known.task) if remedies else None,
        stopped=outcome.stopped,
    )
    why = " ".join(text for fault in ruled_out for text in (fault.what, *fault.fix))
    return miss.model_copy(update={"explanation": why}) if why else miss


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
    try:
        made = figures(best.task, best, outcome, pins)
    except KeyboardInterrupt:
        return found
    return found.model_copy(update={"figures": made})


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
    part = search(replace(task, chips=chips), pins, top=question.top, time_limit=left)
    return better(outcome, best_cuts(part, pins, deadline))


def _own(known: Understood, question: Question) -> Prices | None:
    """The layout that the user has, filled in as the fastest; else that of a trainer's file, if one is the model."""
    if not question.warm_start:
        return _of_file(known)
    return fastest(read_layout(known, question.warm_start), Pins(), question.time_limit).prices


def _of_file(known: Understood) -> Prices | None:
    """The layout of the trainer's file that stands for the model, priced as the trainer fills it in.

    None where it is for other chips or breaks rules, of which ``check`` tells.
    """
    if not known.file_layout:
        return None
    stated = read_layout(known, known.file_layout)
    if any(faults(stated.task, stated.row)):
        return None
    try:
        return stated.priced(stated.task, stated.row)
    except PlannerError:
        return None


def header_of(known: Understood, pins: Pins) -> Header:
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


def _fewest_faults(known: Understood) -> tuple[Fault, ...]:
    """Where rules and pins leave nothing: what is wrong with the layout that breaks fewest rules."""
    task, pins = known.task, known.pins
    batch, micro = task.recipe.global_batch, pins.fixed("micro_batch")
    if micro is not None and batch % micro:
        near = [b for b in divisors(batch) if b <= 2 * micro]
        fix = f"Micro-batches that can, up to {2 * micro}: {listed(near, 'and')}."
        what = f"global batch {batch} cannot be cut into micro-batches of {micro}, whatever dp is."
        return (Fault("B01", what, (fix,)),)
    given = {pin.column: pin.value for pin in pins.pins if pin.compare == "="}
    rows = degree_rows(task, pins)
    choices = [filled(task, given, row) for row in rows] or [usual_row(task, pins)]
    table = concatenate(choices)
    pinned = {pin.column for pin in pins.pins}
    own = (rule for rule in task.trainer.rules if rule.needs <= pinned)
    guilty = tuple(
        rule.fault(task, choices[0]) for rule in own if not rule.keeps(task, table).any()
    )
    if guilty:
        return guilty
    broken = sum((~rule.keeps(task, table)).astype(int) for rule in task.trainer.rules)
    return tuple(faults(task, choices[int(np.argmin(broken))]))


def _of_the_roles(known: Understood, broken: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Broken rules of the trainer, and that pins on operators do not lift them."""
    if not known.pins.operators or not broken:
        return broken
    *others, last = broken
    name = known.task.trainer.name
    line = f"{name} asks this of its axes, however pins let operators be cut: pin other degrees."
    return (*others, replace(last, fix=(*last.fix, line)))


def _unsatisfied(known: Understood) -> tuple[Fault, ...]:
    """What is wrong with pins on operators where the rules and the other pins leave something."""
    if not known.pins.operators:
        return ()
    rows = build_space(known.task, replace(known.pins, operators=())).candidates
    if not len(rows):
        return ()
    *others, last = unsatisfied(known.task, known.pins.operators, rows)
    return (*others, replace(last, fix=(*last.fix, *_removed(known))))


def _removed(known: Understood) -> Iterator[str]:
    """The rule that keeps degrees away with which pins on operators could be had."""
    task, pins = known.task, known.pins
    given = {pin.column: pin.value for pin in pins.pins if pin.compare == "="}
    table = concatenate([filled(task, given, row) for row in degree_rows(task, pins)])
    able = table.take(plan_operators(task, pins.operators, table).kept)
    if len(able):
        broken = sum((~rule.keeps(task, able)).astype(int) for rule in task.trainer.rules)
        row = able.take(np.array([int(np.argmin(broken))]))
        degrees = ", ".join(f"{n}={int(getattr(row, n)[0])}" for n in ("tp", "cp", "pp", "dp"))
        yield from (f"{degrees} would, but: {fault.what}" for fault in faults(task, row)[:1])
    elif pins.pins:
        yield f"That is under {listed([pin.text for pin in pins.pins], 'and')}: drop that, or change it."


def _nothing_left(known: Understood) -> tuple[Fault, ...]:
    """Ranges of pins that no number of these chips lies in."""
    pins = listed(known.pins.texts(), "and")
    chips = f"{known.task.cluster.num_chips:,} chips"
    return (Fault("N03", f"no layout of {chips} has {pins}.", ("Drop a pin, or widen it.",)),)


def _larger(task: Task) -> Iterator[Cluster]:
    """As many chips of the same vendor with more memory that have the precision, least memory first."""
    chip, precision = task.cluster.chip, task.recipe.precision
    others = [read_chip(entry.name) for entry in entries("chip")]
    for other in sorted(others, key=lambda c: (c.memory_bytes, c.name)):
        more = other.memory_bytes > chip.memory_bytes and precision in other.peak
        if other.vendor == chip.vendor and more:
            yield read_cluster(f"{other.name}:{task.cluster.num_chips}")


def sensitive(question: Question, answer: Plan) -> tuple[Sensitivity, ...]:
    """The step of a plan with every number of its hardware a fifth lower and higher."""
    known = understand(question)
    stated = read_layout(known, layout_of(answer.degrees, answer.pins))
    return sensitivities(stated.task, stated.priced(stated.task, stated.row), known.pins)
