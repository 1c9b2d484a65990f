"""How many chips, or how large a sequence or batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from planner.plan.findings import Largest, Sizing, Target
from planner.question import Question
from planner.studies.fewest import fewest
from planner.studies.largest import largest as largest_of


def size(
    question: Question,
    *,
    largest: Literal["seq-len", "global-batch"] | None = None,
    step: float | None = None,
    tokens: float | None = None,
    days: float | None = None,
    dollars: float | None = None,
    jobs: int | None = None,
    backend: str = "local",
    done: Callable[[int, int], None] | None = None,
) -> Sizing | Largest:
    """The fewest chips that fit and meet a target, or the largest sequence or batch that the cluster's chips do.

    Args:
        question: what is asked; a number of chips in its cluster is the most that may be used.
        largest: what is to be as large as can be, on all of these chips; None for the fewest chips.
        step: seconds that a step may take.
        tokens: to train on.
        days: in which all tokens are to be seen.
        dollars: that all tokens may cost.
        jobs: processes (:func:`planner.studies.parallel.answers`); the largest is searched for step by step.
        backend: where they run.
        done: called with the number of plans so far and of all that are known to be needed.

    Raises:
        PlannerError: wrong input, or a target that cannot be judged (A03).
    """
    target = Target(step=step, tokens=tokens, days=days, dollars=dollars)
    if largest is not None:
        return largest_of(question, largest, target=target, done=done)
    return fewest(question, target=target, jobs=jobs, backend=backend, done=done)
