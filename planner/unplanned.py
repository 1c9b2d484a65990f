"""No plan: the closest miss and what would fit, or what is wrong with pins that leave nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.answered import made_by
from planner.candidates import concatenate
from planner.errors import Fault, PlannerError, listed
from planner.frontends.catalog import entries
from planner.frontends.cluster_file import read_chip, read_cluster
from planner.hardware.cluster import Cluster
from planner.plan.schema import NoPlan
from planner.question import Understood
from planner.search.engine import Outcome
from planner.search.miss import build_miss
from planner.search.operator_faults import unsatisfied
from planner.search.semi_automatic import plan_operators
from planner.search.space import build_space, degree_rows
from planner.stated import filled, usual_row
from planner.trainers.registry import faults, with_able
from planner.trainers.trainer import Task
from planner.trainers.wording import divisors


def no_plan(known: Understood, outcome: Outcome, *, remedies: bool) -> NoPlan:
    """Why a search found nothing.

    Args:
        known: the question.
        outcome: of its search.
        remedies: whether to look for the smallest changes that would fit.

    Raises:
        PlannerError: pins that no layout can satisfy.
    """
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
        return with_able(task, guilty, table, pinned)
    broken = sum((~rule.keeps(task, table)).astype(int) for rule in task.trainer.rules)
    return faults(task, choices[int(np.argmin(broken))], pinned)


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
