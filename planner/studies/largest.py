"""How large: the longest sequence that fits on a cluster, the largest global batch within a step time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from planner.asking import read
from planner.errors import PlannerError
from planner.plan.findings import Compared, Largest, Target
from planner.question import MOST_SEQ, Question
from planner.search.answer import model_facts, recipe_facts
from planner.studies.compare import Point, compared
from planner.studies.fewest import missed

MOST_BATCH = 2**20
"""Sequences beyond which no global batch is looked at."""
PARTS = 8
"""Between two powers of two, the largest is told to one of so many parts."""


def largest(
    question: Question,
    what: Literal["global-batch", "seq-len"],
    *,
    target: Target | None = None,
    done: Callable[[int, int], None] | None = None,
) -> Largest:
    """The largest global batch or sequence that fits and meets a target.

    Sequences are looked at with as many tokens in a step as the question has, or one sequence. What is told is exact to
    an eighth of a power of two; larger ones may fit where others below them do not, which is not looked for.

    Args:
        question: what is asked; of ``what`` it only says where to start.
        what: ``global-batch`` or ``seq-len``.
        target: what to meet besides fitting. A global batch needs one: it is accumulated, so memory never limits it.
        done: called with the number of plans so far.

    Raises:
        PlannerError: wrong input, or a global batch without a step time (A03).
        KeyboardInterrupt: Ctrl-C before the first plan; after it the plans that there are make the answer.
    """
    target = target or Target()
    known = read(question)
    tokens = known.task.recipe.tokens
    if what == "global-batch" and target.step is None:
        raise PlannerError.of(
            "A03",
            "--largest global-batch needs --step-time: a batch is accumulated, so memory does not limit it.",
        )
    rows: dict[int, Compared] = {}
    most = MOST_BATCH if what == "global-batch" else MOST_SEQ

    def meets(value: int) -> bool:
        if value not in rows:
            asked = replace(question, top=1, global_batch=value)
            if what == "seq-len":
                asked = replace(
                    question, top=1, seq_len=value, global_batch=max(1, tokens // value)
                )
            rows[value] = compared(Point(question=asked, chips=known.task.cluster.num_chips))
            if done is not None:
                done(len(rows), len(rows) + 1)
        return not missed(rows[value], target)

    first = 1024 if what == "seq-len" else _start(known.task.cluster.num_chips)
    value, stopped = _searched(first, most, meets)
    if stopped and not rows:
        raise KeyboardInterrupt
    if stopped:
        value = max((v for v, row in rows.items() if not missed(row, target)), default=None)
    above = min((v for v in rows if value is None or v > value), default=None)
    facts = {"model": model_facts(known.task), "recipe": recipe_facts(known.task)}
    found = {"value": value, "answer": rows.get(value or 0), "above": rows.get(above or 0)}
    curve = tuple(sorted(rows.items()))
    return Largest.model_validate(
        facts
        | found
        | {"what": what, "target": target, "above_value": above, "curve": curve, "stopped": stopped}
    )


def _searched(first: int, most: int, meets: Callable[[int], bool]) -> tuple[int | None, bool]:
    """The largest that does it, and whether the user stopped before it was found."""
    try:
        value = _doubled(first, most, meets)
        return (None if value is None else _refined(value, meets)), False
    except KeyboardInterrupt:
        return None, True


def _start(chips: int) -> int:
    """A batch of a power of two that few chips do not exceed."""
    return 1 << max(0, chips.bit_length() - 4)


def _doubled(first: int, most: int, meets: Callable[[int], bool]) -> int | None:
    """The last of first, twice that, … that does it before one that does not; smaller ones where the first does not."""
    if not meets(first):
        while first > 1:
            first //= 2
            if meets(first):
                return first
        return None
    while 2 * first <= most and meets(2 * first):
        first *= 2
    return first


def _refined(value: int, meets: Callable[[int], bool]) -> int:
    """The largest part of the way to twice the value."""
    unit = max(1, value // PARTS)
    low, high = 0, min(PARTS, value // unit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(value + middle * unit) else (low, middle)
    return value + low * unit
