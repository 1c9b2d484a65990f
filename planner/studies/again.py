"""A plan taken up again: its question read anew, and checked against what the plan was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.asking import price, read
from planner.errors import Fault, PlannerError, listed
from planner.frontends.recipe_file import read_recipe
from planner.plan.layout import layout_of
from planner.plan.schema import Alternative, Plan
from planner.question import Question, Understood

PARTS = ("model", "cluster", "recipe", "trainer")
STATED = {
    "seq": ("seq", "--seq-len"),
    "global_batch": ("global batch", "--global-batch"),
    "precision": ("precision", "--precision"),
    "optimizer": ("optimizer", "--optimizer"),
}
"""What a plan tells of its recipe: the word for it, and the option that states it."""
SAME = 1e-6
"""Share of the step within which a plan that is priced again must find its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A plan whose inputs are as they were."""

    plan: Plan
    question: Question
    known: Understood

    def row(self, row: Alternative) -> Plan:
        """One of the alternatives as a plan of its own."""
        found = price(self.question, layout_of(row.degrees, self.plan.pins))
        return found.model_copy(update={"pins": self.plan.pins})


def reopen(plan: Plan, name: str = "The plan") -> Again:
    """Reads a plan's question again.

    Raises:
        PlannerError: model, cluster, recipe or trainer are not what the plan was made from, or this version of the
            program prices it otherwise (V01); whatever is wrong with the inputs.
    """
    question = Question.again(plan.asked)
    known = read(question)
    changed = [
        part
        for part in PARTS
        if getattr(known.fingerprints, part) != getattr(plan.fingerprints, part)
    ]
    if changed == ["recipe"] and (other := _otherwise(plan, known)):
        raise PlannerError(_made_with(name, other))
    if changed:
        raise PlannerError(stale(name, f"its {listed(changed, 'and')} changed since"))
    now = price(question, layout_of(plan.degrees, plan.pins)).step
    if abs(now - plan.step) > SAME * plan.step:
        why = f"{plan.made_by} priced it, and this version finds {now / plan.step - 1:+.2%}"
        raise PlannerError(stale(name, why))
    return Again(plan=plan, question=question, known=known)


def recipe_states(recipe: Path) -> tuple[str, ...]:
    """What a recipe states of a question: these stand in place of what an earlier plan was asked.

    Raises:
        PlannerError: what is wrong with the recipe.
    """
    file = read_recipe(recipe)
    names = ("global_batch", "seq_len", "precision", "optimizer")
    return tuple(name for name in names if getattr(file, name) is not None)


def staleness(plan: Plan, name: str = "The plan") -> str:
    """What makes a plan stale, in a sentence; empty where nothing changed since it was made."""
    try:
        reopen(plan, name)
    except PlannerError as error:
        first = error.faults[0]
        return first.what if first.code == "V01" else f"{name} cannot be checked: {first.what}"
    return ""


def _otherwise(plan: Plan, known: Understood) -> list[tuple[str, str, str, str]]:
    """What a plan was made with and the recipe now says otherwise: a word, its option, both values."""
    made, now = plan.recipe, known.task.recipe
    return [
        (word, option, str(getattr(made, field)), str(getattr(now, field)))
        for field, (word, option) in STATED.items()
        if getattr(made, field) != getattr(now, field)
    ]


def _made_with(name: str, other: Sequence[tuple[str, str, str, str]]) -> Fault:
    """What to say of a plan whose recipe says something else now."""
    was = listed([f"{word} {before}" for word, _, before, _ in other], "and")
    now = listed(
        [after if len(other) == 1 else f"{word} {after}" for word, _, _, after in other], "and"
    )
    flags = "".join(f" {option} {after}" for _, option, _, after in other)
    return Fault(
        "V01",
        f"{name} was made with {was}; the recipe says {now}. Its times are not valid.",
        _ways_out(name, flags),
    )


def _ways_out(name: str, flags: str = "") -> tuple[str, ...]:
    return (
        f"Price it again:  shardwright price --like {name}{flags}",
        f"Search again:    shardwright plan --like {name}{flags}",
    )


def stale(name: str, why: str) -> Fault:
    """What to say of a plan whose times do not hold any more."""
    return Fault(
        "V01",
        f"{name} is stale: {why}. Its times are not valid.",
        _ways_out(name),
    )
