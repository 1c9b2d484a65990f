"""Why a plan is as it is: all of it as a tree, or one of its items."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

from planner.errors import PlannerError
from planner.plan.diff import Difference, diff
from planner.plan.findings import RulePrice
from planner.plan.items import Item, Row, Rule, find_item
from planner.plan.schema import Plan
from planner.plan.tree import Node, plan_tree
from planner.search.rule_price import price_of_rule
from planner.studies.again import reopen
from planner.studies.hardware import hardware_item
from planner.studies.rows import Study, asked_row, own_number, plan_of, turn

Explanation: TypeAlias = Node | Item | Difference | RulePrice


def explain(
    plan: Plan | Study, item: str | Plan | None = None, *, name: str = "The plan"
) -> Explanation:
    """The plan as a tree with costs; or why a row lost, what a rule costs, how a number comes about.

    Args:
        plan: what is explained; or a comparison or size, of whose rows an item begins with one: ``#2 mfu``, ``64``.
        item: an id that the plan's pages print, such as ``#2``, ``rule:kv-heads``, ``step.gradients``, ``mfu``,
            ``stage.0``, ``dense.mlp.up``, ``node.bandwidth``; another plan for what differs; without one the whole
            step.
        name: what to call the plan in messages, its file for one.

    Raises:
        PlannerError: nothing has the id (I01); for a row or a rule, which are priced anew, a stale plan (V01).
    """
    if not isinstance(plan, Plan):
        return explained(plan, str(item or ""), name)[1]
    if item is None:
        return plan_tree(plan)
    if isinstance(item, Plan):
        return diff(plan, item)
    try:
        found = find_item(plan, item)
    except PlannerError as error:
        number = None
        with suppress(PlannerError):  # then it is no number of the hardware either
            number = hardware_item(reopen(plan, name), " ".join(item.split()))
        if number is None:
            raise error from None
        return number
    if isinstance(found, Row) and found.row.rank == 1:
        return plan_tree(plan)
    if isinstance(found, Row):
        return diff(plan, reopen(plan, name).row(found.row), ("#1", found.id))
    if isinstance(found, Rule):
        again = reopen(plan, name)
        return price_of_rule(again.known.task, again.known.pins, found.removed, plan.step)
    return found


def explained(found: Study, asked: str, name: str) -> tuple[Plan | None, Explanation]:
    """What a comparison or a size tells of one of its rows, and the row's plan where that has to be made for it.

    Args:
        found: what was kept.
        asked: a row by its id, and what of its plan, if not all: ``#2``, ``#2 step.tp``, ``64 days``; or ``turn.1``.
        name: what to call it in messages.

    Raises:
        PlannerError: as :func:`explain`.
    """
    if (where := turn(found, asked)) is not None:
        return None, where
    id, row, rest = asked_row(found, asked)
    if (own := own_number(found, id, row, rest)) is not None:
        return None, own
    made = plan_of(row, id, name)
    return made, explain(made, rest or None, name=name)
