"""Where questions go: those on one kind of chip, and those on pools of different chips."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner import planning
from planner.frontends.pools_file import read_pools
from planner.hardware.pools import Pools
from planner.plan.figures import Sensitivity
from planner.plan.schema import NoPlan, Plan
from planner.question import Question, Understood, understand
from planner.search.engine import Progress


def plan(
    question: Question,
    progress: Callable[[Progress], None] | None = None,
    *,
    remedies: bool = True,
) -> Plan | NoPlan:
    """The plan that is best by the question's objective, with its proof; or why there is none.

    Args:
        question: what is asked.
        progress: called between batches of the search.
        remedies: whether to look for the smallest changes that would fit, where nothing does and chips are of one kind.

    Raises:
        PlannerError: wrong input, or pins that no layout can satisfy.
    """
    pools = _pools(question)
    if pools is not None:
        from planner.pooled import plan_pools

        return plan_pools(question, pools, progress)
    if question.objective == "fewest-chips":
        from planner.smallest import plan_smallest

        return plan_smallest(question, progress, remedies=remedies)
    return planning.plan(question, progress, remedies=remedies)


def read(question: Question) -> Understood:
    """A question read into a task, that on the first of its pools where it has several.

    Raises:
        PlannerError: wrong input.
    """
    pools = _pools(question)
    if pools is None:
        return understand(question)
    from planner.pooled import understood

    return understood(question, pools)[0]


def price(question: Question, layout: Mapping[str, int | str], *, usual: bool = False) -> Plan:
    """What a stated layout costs; what it leaves open is chosen, as the fastest that fits.

    Args:
        question: what is asked; its pins hold too.
        layout: degrees and settings by name, such as ``{"tp": 8, "pp": 4, "recompute": "full"}``. Degrees that are left
            out are 1, except dp, which takes what is left of the chips.
        usual: let settings that are left out be what the trainer takes by itself.

    Raises:
        PlannerError: wrong input, or every rule of the trainer that the layout breaks.
    """
    pools = _pools(question)
    if pools is None:
        from planner import pricing

        return pricing.price(question, layout, usual=usual)
    from planner.pooled import price_pools

    return price_pools(question, pools, layout, usual=usual)


def sensitive(question: Question, answer: Plan) -> tuple[Sensitivity, ...]:
    """The step of a plan with every number of its hardware a fifth lower and higher; largest effect first."""
    pools = _pools(question)
    if pools is None:
        from planner.pricing import sensitive as on_chips

        return on_chips(question, answer)
    from planner.pooled import sensitive as on_pools

    return on_pools(question, pools, answer)


def _pools(question: Question) -> Pools | None:
    """The pools that a question is about, under its what-ifs; None where it is about one kind of chip."""
    pools = read_pools(question.cluster, question.folders)
    if pools is None or not question.what_if:
        return pools
    from planner.hardware.change_pools import changed_pools

    for text in question.what_if:
        pools = changed_pools(pools, text)
    return pools
