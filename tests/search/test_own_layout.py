"""The layout that a person has is always a row of the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.api import Plan, PlannerError, Question, plan, price
from planner.plan.items import find_item
from planner.plan.layout import layout_of
from planner.plan.tree import plan_tree
from planner.report.tables import plain
from planner.report.text import render
from planner.units import show_seconds

QUESTION = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64, seq_len=4096, top=3)


def answered(layout: dict[str, int | str]) -> Plan:
    found = plan(replace(QUESTION, warm_start=layout))
    assert isinstance(found, Plan)
    return found


def test_one_that_is_not_among_the_best_stands_below_them() -> None:
    layout = {"tp": 8, "pp": 2, "recompute": "full"}
    found = answered(layout)
    assert len(found.alternatives) == 4
    own = found.alternatives[-1]
    alone = price(QUESTION, layout)
    assert (own.own, own.rank, own.fits) == (True, 0, True)
    assert own.step == pytest.approx(alone.step)
    assert own.memory == pytest.approx(alone.memory)
    assert own.reason
    assert sum(term.value for term in own.difference) == pytest.approx(own.step - found.step)
    assert find_item(found, "yours").row == own
    page = plain(render(found))
    assert " yours " in page
    assert "others lie between it and the row above" in page


def test_one_of_the_best_is_marked_where_it_stands() -> None:
    best = plan(QUESTION)
    assert isinstance(best, Plan)
    found = answered(layout_of(best.alternatives[1].degrees))
    assert [row.own for row in found.alternatives] == [False, True, False]
    assert [row.step for row in found.alternatives] == [row.step for row in best.alternatives]
    assert "2 ≈ yours" in plain(render(found)) or "2 yours" in plain(render(found))


def test_one_that_does_not_fit_says_so() -> None:
    own = answered({"dp": 16, "mbs": 4, "zero": 0}).alternatives[-1]
    assert not own.fits
    assert own.reason.startswith("does not fit: ")


def test_one_that_cannot_run_is_refused() -> None:
    with pytest.raises(PlannerError) as caught:
        answered({"tp": 3})
    assert {fault.code for fault in caught.value.faults} & {"D01", "D02"}


def test_another_batch_than_the_plan_s_comes_with_hints() -> None:
    found = plan(replace(QUESTION, base_batch=32))
    assert isinstance(found, Plan)
    assert "64 is 2.00 × the base batch 32" in found.hints[0]
    assert "rules of thumb" in found.hints[1]


def test_a_row_that_waits_for_launches_says_so() -> None:
    """The clause of the user's own layout has what the tree of that layout shows beside its operators."""
    question = Question(model="llama-3.2-1b", cluster="h100-sxm:16", global_batch=512, seq_len=512)
    own = {"tp": 8, "micro_batch": 1, "recompute": "none", "zero": 1}
    found = plan(replace(question, warm_start=own))
    priced = price(question, own)
    assert isinstance(found, Plan)
    rest = sum(node.seconds for node in plan_tree(priced).walk() if node.id.endswith(".rest"))
    mine = next(row for row in found.alternatives if row.own)
    assert rest > 0.8 * priced.step
    assert f"(launches +{show_seconds(rest)})" in mine.reason
    busy = [row for row in found.alternatives if row.reason.startswith("compute") and not row.own]
    assert any("launches" not in row.reason for row in busy)
