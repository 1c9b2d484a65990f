"""Every rule that can remove a candidate, in the order in which the search learns what it needs.

A trainer takes its own subset by name (:func:`choose`). All rules of a trainer hold together: a rule may leave rows
alone that an earlier one removes, so that each row is counted once where that is cheap to say.
"""

from __future__ import annotations

from planner.candidates import Candidates
from planner.errors import Fault
from planner.trainers.rules import (
    batch,
    deepspeed,
    degrees,
    encoders,
    experts,
    features,
    offload,
    pipeline,
    sequence,
    sizes,
)
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import every
from planner.units import BoolArray

STEPS: tuple[frozenset[str], ...] = (
    frozenset({"tp"}),
    frozenset({"cp"}),
    frozenset({"pp"}),
    frozenset({"dp"}),
    frozenset({"ep", "etp"}),
    frozenset({"vpp", "schedule"}),
    frozenset({"micro_batch"}),
    frozenset({"sp"}),
    frozenset({"sharding", "shard_group", "order"}),
    frozenset({"recompute"}),
    frozenset({"offload"}),
)
"""Columns in the order in which the search builds them."""


def step_of(rule: Rule) -> int:
    """Index of the step after which a rule can be applied."""
    return max(index for index, columns in enumerate(STEPS) if columns & rule.needs)


RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *degrees.RULES,
            *sizes.RULES,
            *sequence.RULES,
            *pipeline.RULES,
            *batch.RULES,
            *experts.RULES,
            *encoders.RULES,
            *features.RULES,
            *offload.RULES,
            *deepspeed.RULES,
        ),
        key=step_of,
    )
)


def choose(*names: str) -> tuple[Rule, ...]:
    """The rules of these names, in the order of ``RULES``.

    Raises:
        ValueError: a name that no rule has.
    """
    unknown = set(names) - {rule.name for rule in RULES}
    if unknown:
        raise ValueError(f"no rule named {sorted(unknown)}")
    return tuple(rule for rule in RULES if rule.name in names)


def allowed(task: Task, candidates: Candidates) -> BoolArray:
    """Rows that keep every rule of the task's trainer."""
    keeps = every(candidates.tp)
    for rule in task.trainer.rules:
        keeps &= rule.keeps(task, candidates)
    return keeps


def broken(task: Task, candidates: Candidates) -> tuple[tuple[Rule, Fault], ...]:
    """The rules that a single stated layout breaks, each with what to tell its author."""
    return tuple(
        (rule, rule.fault(task, candidates))
        for rule in task.trainer.rules
        if not rule.keeps(task, candidates)[0]
    )
