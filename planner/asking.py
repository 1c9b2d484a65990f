"""Where questions go: those on one kind of chip, and those on pools of different chips."""

from __future__ import annotations

from collections.abc import Callable

from planner import planning
from planner.frontends.pools_file import read_pools
from planner.plan.schema import NoPlan, Plan
from planner.question import Question
from planner.search.engine import Progress


def plan(question: Question, progress: Callable[[Progress], None] | None = None) -> Plan | NoPlan:
    """The fastest plan that fits, with its proof; or why there is none.

    Args:
        question: what is asked.
        progress: called between batches of the search.

    Raises:
        PlannerError: wrong input, or pins that no layout can satisfy.
    """
    pools = read_pools(question.cluster, question.folders)
    if pools is None:
        return planning.plan(question, progress)
    from planner.pooled import plan_pools

    return plan_pools(question, pools, progress)
