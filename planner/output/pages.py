"""Pages for people: an answer, a study, or what was explained, as the command line shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from planner.errors import PlannerError
from planner.output import studied
from planner.plan.diff import Difference
from planner.plan.facts import Facts
from planner.plan.findings import Comparison, Largest, RulePrice, Sizing
from planner.plan.items import Item, Number
from planner.plan.schema import NoPlan, Plan
from planner.plan.tree import Node
from planner.report.diff import render_diff
from planner.report.explain import render_alone, render_item, render_rule
from planner.report.tables import Line, plain
from planner.report.text import WIDEST, render
from planner.report.tree import render_tree

Explained: TypeAlias = Node | Item | Difference | RulePrice


def text(
    found: Plan | NoPlan | Comparison | Sizing | Largest | Explained,
    plan: Plan | None = None,
    *,
    width: int = WIDEST,
    detail: Sequence[str] = (),
) -> str:
    """The page that the command line shows.

    Args:
        found: an answer, or what ``explain`` gave.
        plan: of which something was explained; numbers, rows and rules do without.
        width: columns, at most 100.
        detail: of a plan also these tables: memory, time, ops, comm, rules, sources, all.

    Raises:
        PlannerError: a tree, a stage, layers or an operator without their plan (A03).
    """
    width = min(width, WIDEST)
    if isinstance(found, Plan | NoPlan):
        return plain(render(found, width=width, detail=detail))
    if isinstance(found, Comparison | Sizing | Largest):
        return plain(studied.page(found, width))
    return plain(explained_page(plan, found, width))


def explained_page(
    plan: Plan | None,
    why: Explained,
    width: int,
    depth: int = 2,
    measured: Mapping[str, float] | None = None,
) -> list[Line]:
    """The page of what was explained of a plan, beside what was measured of its operators.

    Raises:
        PlannerError: what cannot be shown without its plan (A03).
    """
    if isinstance(why, Difference):
        return render_diff(why, width)
    if isinstance(why, RulePrice):
        return render_rule(why, width)
    if isinstance(why, Number | Facts) and plan is None:
        return render_alone(why, width)
    if plan is None:
        raise PlannerError.of(
            "A03",
            f"the page of a {type(why).__name__} needs the plan that it is of.",
            "Write it like text(explain(best), best)",
        )
    if isinstance(why, Node):
        return render_tree(plan, width, depth, measured=measured or {})
    return render_item(plan, why, width)
