"""What half and twice as many of a plan's chips would do: the clusters that a report shows beside it."""

from __future__ import annotations

from dataclasses import replace

from planner.plan.findings import Comparison
from planner.plan.schema import Plan
from planner.question import Question
from planner.studies.compare import Point, compared, row_of
from planner.studies.specs import scaled

PATIENCE = 5.0
"""Seconds for the search on other chips, where that of the plan was stopped: whoever waited once should not again."""


def neighbours(question: Question, answer: Plan) -> Comparison:
    """The plan as a row between those on half and on twice as many chips, of the same batch.

    Args:
        question: which the plan answers.
        answer: the plan.
    """
    chips = answer.cluster.num_chips
    limit = min(PATIENCE, question.time_limit) if answer.proof.stopped else question.time_limit
    asked = replace(question, global_batch=answer.recipe.global_batch, top=1, figures=False,
                    warm_start={}, objective="step-time", time_limit=limit)  # fmt: skip
    rows = []
    for factor in (0.5, 1, 2):
        name = scaled(question.cluster, chips, factor)
        point = Point(question=replace(asked, cluster=name), chips=int(factor * chips))
        if factor == 1:
            rows.append(
                row_of(replace(point, question=replace(asked, cluster=question.cluster)), answer)
            )
        elif name:
            rows.append(compared(point))
    priced = [i for i, row in enumerate(rows) if row.price_per_million_tokens is not None]
    fit = [i for i, row in enumerate(rows) if row.fits]
    return Comparison(
        model=answer.model,
        recipe=answer.recipe,
        rows=tuple(rows),
        fastest=max(fit, key=lambda i: rows[i].tokens_per_second or 0.0),
        cheapest=min(priced, key=lambda i: rows[i].price_per_million_tokens or 0.0, default=None),
        crossovers=(),
    )
