"""The price of a rule: how much faster the plan could be if the rule did not apply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.candidates import Candidates
from planner.cost.orders import Schedule
from planner.cost.prices import Prices
from planner.plan.findings import RulePrice
from planner.plan.removed import MEMORY
from planner.plan.schema import Removed
from planner.search.breakdown import degrees_of
from planner.search.engine import Outcome, search
from planner.search.pins import Pins
from planner.search.space import Space, build_space
from planner.trainers.trainer import Task
from planner.units import BoolArray, IntArray

ENDLESS = 1e30
"""Bytes of a chip on which everything fits."""
NO_STEP = "what it removes is no training step at all: its parts do not come out as whole numbers"
NONE_FIT = "none of what only this rule keeps out would fit"
NOTHING = "other rules keep out all that it removes"


def price_of_rule(
    task: Task, pins: Pins, removed: Removed, step: float, *, time_limit: float = 60.0
) -> RulePrice:
    """The best layout among those that only this rule keeps out.

    Such layouts are priced as if they could run: what the rule stands for, a kernel that does not exist or an uneven
    share, costs nothing here. So the price is the most that lifting the rule could bring.

    Args:
        task: the question.
        pins: of its search.
        removed: the rule, and what it removed from the space.
        step: of the plan that the search found, seconds.
        time_limit: seconds for the search without the rule.
    """
    if removed.rule == MEMORY:
        task = replace(task, memory_limit=ENDLESS)
        space, source, note = (
            build_space(task, pins),
            "usable memory of the chip, or --memory-limit",
            "",
        )
    else:
        own = next(r for r in task.trainer.rules if r.name == removed.rule)
        others = tuple(r for r in task.trainer.rules if r is not own)
        task = replace(task, trainer=replace(task.trainer, rules=others))
        space = build_space(task, pins)
        alone = space.candidates.take(~own.keeps(task, space.candidates))
        whole = alone.take(_is_a_step(task, alone))
        note = NOTHING if not len(alone) else NO_STEP if not len(whole) else ""
        space = Space(whole, len(alone), operators=space.operators)
        source = own.source
    outcome = search(task, pins, top=1, time_limit=time_limit, within=space) if not note else None
    return _price(removed, step, source, space, outcome, note)


def _price(
    removed: Removed, step: float, source: str, space: Space, outcome: Outcome | None, note: str
) -> RulePrice:
    best: Prices | None = None if outcome is None else outcome.best
    found = {}
    if outcome is not None and best is not None:
        found = {
            "best": float(outcome.step[0]),
            "memory": float(outcome.memory[0]),
            "degrees": degrees_of(best),
            "stopped": outcome.stopped,
        }
    return RulePrice.model_validate(
        {
            "rule": removed.rule,
            "family": removed.family,
            "sentence": removed.sentence,
            "source": source,
            "removed": removed.count,
            "alone": removed.count if removed.rule == MEMORY else space.searched,
            "step": step,
            "best": None,
            "note": note or ("" if found else NONE_FIT),
        }
        | found
    )


def _is_a_step(task: Task, rows: Candidates) -> BoolArray:
    """Layouts whose batch and expert mesh come out even and whose schedule exists: their step is what was asked for."""
    batch = task.recipe.global_batch
    micro = rows.num_micro_batches(batch)
    whole = micro * rows.dp * rows.micro_batch == batch
    meshes = rows.edp * rows.ep * rows.etp == rows.dp * rows.cp * rows.tp
    return np.asarray(whole & (micro > 0) & meshes & _has_order(rows, micro))


def _has_order(rows: Candidates, micro: IntArray) -> BoolArray:
    """Layouts whose schedule has an order for their chunks and micro-batches, as :mod:`planner.cost.orders` says."""
    exists = np.zeros(len(rows), dtype=np.bool_)
    for schedule in Schedule:
        chunks = rows.vpp == 2 if schedule.folded else (rows.vpp == 1) | schedule.grouped
        enough = micro >= 2 * rows.pp if schedule == Schedule.DUALPIPEV else micro > 0
        exists |= (rows.schedule == schedule) & chunks & enough
    return exists
