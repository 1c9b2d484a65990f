"""The question whose answer a study recommends, to be asked once more with all that a report shows."""

from __future__ import annotations

from dataclasses import replace

from planner.plan.findings import Compared, Comparison, Largest, Sizing
from planner.question import Question


def best_row(found: Comparison | Sizing | Largest) -> Compared | None:
    """The fastest of several clusters, or the answer of a size; None where nothing fits."""
    if not isinstance(found, Comparison):
        return found.answer
    return None if found.fastest is None else found.rows[found.fastest]


def best_question(found: Comparison | Sizing | Largest, question: Question) -> Question | None:
    """What the best row answered, with the figures of a report; None where there is none.

    Args:
        found: clusters compared, whose fastest is the best; or sizes.
        question: as it was given to the study, for its limit of time.
    """
    row = best_row(found)
    if row is None:
        return None
    asked = Question.again(row.asked)
    return replace(asked, time_limit=question.time_limit, top=question.top, figures=True)
