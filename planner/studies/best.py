"""The question whose answer a study recommends, to be asked once more with all that a report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import singledispatch

from planner.plan.findings import Compared, Comparison, Largest, Sizing
from planner.question import Question
from planner.studies.specs import stated_prices


@singledispatch
def best_question(
    found: Comparison | Sizing | Largest,
    question: Question,
    *,
    dollars: Mapping[str, float] | None = None,
) -> Question | None:
    """What the best row answered, with the figures of a report; None where there is none.

    Args:
        found: clusters compared, whose fastest is the best; or sizes.
        question: as it was given to the study.
        dollars: prices that were stated to the study.
    """
    raise TypeError(type(found).__name__)


@best_question.register
def _(
    found: Comparison, question: Question, *, dollars: Mapping[str, float] | None = None
) -> Question | None:
    if found.fastest is None:
        return None
    row = found.rows[found.fastest]
    changes = [part.strip() for part in row.what_if.split(" and ")] if row.what_if else []
    asked = _of_row(question, row, found.recipe.global_batch)
    changes += stated_prices(asked, dollars or {})
    return replace(asked, trainer=row.trainer, what_if=(*question.what_if, *changes))


@best_question.register
def _(
    found: Sizing, question: Question, *, dollars: Mapping[str, float] | None = None
) -> Question | None:
    if found.answer is None:
        return None
    return _of_row(question, found.answer, found.recipe.global_batch)


@best_question.register
def _(
    found: Largest, question: Question, *, dollars: Mapping[str, float] | None = None
) -> Question | None:
    if found.value is None:
        return None
    tokens = found.recipe.global_batch * found.recipe.seq
    if found.what == "global-batch":
        return replace(question, global_batch=found.value, figures=True)
    batch = max(1, tokens // found.value)
    return replace(question, seq_len=found.value, global_batch=batch, figures=True)


def _of_row(question: Question, row: Compared, batch: int) -> Question:
    return replace(question, cluster=row.cluster, global_batch=batch, figures=True)
