"""Explanations that price anew: rows as plans, rules lifted, stale plans refused."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from planner.api import Plan, PlannerError, Question, explain, plan
from planner.candidates import Candidates
from planner.plan.diff import Difference
from planner.plan.findings import RulePrice
from planner.plan.layout import layout_of
from planner.plan.schema import Fingerprints
from planner.plan.tree import Node
from planner.search.engine import search
from planner.search.pins import NAMES
from planner.studies.again import reopen, staleness

QUESTION = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=96, seq_len=4096)


@pytest.fixture(scope="module")
def found() -> Plan:
    answer = plan(QUESTION)
    assert isinstance(answer, Plan)
    return answer


def test_rows_are_priced_as_the_search_priced_them(found: Plan) -> None:
    again = reopen(found)
    assert len(found.alternatives) == 5
    for row in found.alternatives:
        one = again.row(row)
        assert one.step == pytest.approx(row.step, rel=1e-9)
        assert one.memory == pytest.approx(row.memory, rel=1e-9)
        assert one.degrees == row.degrees


def test_a_row_is_the_difference_from_the_winner(found: Plan) -> None:
    why = explain(found, "#2")
    assert isinstance(why, Difference)
    assert why.step.change == pytest.approx(found.alternatives[1].step - found.step)
    terms = {term.name: term.value for term in found.alternatives[1].difference}
    assert {pair.id: pair.change for pair in why.time} == pytest.approx(terms, abs=1e-12)


def test_the_price_of_a_rule_is_the_best_of_what_it_alone_removes(found: Plan) -> None:
    """Against another way: the search of a trainer without the rule, and without what the rule allows."""
    rules = [rule.rule for rule in found.removed]
    assert len(rules) >= 3
    priced = 0
    for name in rules:
        why = explain(found, f"rule:{name}")
        assert isinstance(why, RulePrice)
        assert why.alone <= why.removed
        if why.best is None:
            assert why.note
            continue
        priced += 1
        again = reopen(found)
        task = again.known.task
        others = tuple(rule for rule in task.trainer.rules if rule.name != name)
        free = replace(task, trainer=replace(task.trainer, rules=others))
        best = search(free, again.known.pins, top=1)
        assert min(why.best, found.step) <= float(best.step[0]) * (1 + 1e-9) or why.gain == 0
        assert why.degrees is not None
    assert priced >= 1


def test_lifting_the_memory_limit_never_costs(found: Plan) -> None:
    why = explain(found, "rule:memory")
    assert isinstance(why, RulePrice)
    assert why.memory is not None
    assert why.memory > found.memory_limit / 1.2
    assert why.best is not None


def test_the_tree_needs_only_the_plan(found: Plan) -> None:
    elsewhere = found.model_copy(update={"asked": found.asked.model_copy(update={"model": "gone"})})
    assert isinstance(explain(elsewhere), Node)
    with pytest.raises(PlannerError):
        explain(elsewhere, "#2")


def test_a_stale_plan_is_refused(found: Plan) -> None:
    old = Fingerprints(**found.fingerprints.model_dump() | {"cluster": "0" * 16})
    with pytest.raises(PlannerError) as caught:
        explain(found.model_copy(update={"fingerprints": old}), "#2", name="plan.json")
    [fault] = caught.value.faults
    assert fault.code == "V01"
    assert "its cluster changed" in fault.what
    assert "shardwright plan --like plan.json" in fault.fix[1]
    assert "its cluster changed" in staleness(found.model_copy(update={"fingerprints": old}))
    assert staleness(found) == ""
    slower = found.model_copy(update={"step": 1.1 * found.step})
    with pytest.raises(PlannerError, match=r"finds -9\.09%"):
        explain(slower, "rule:memory")


def test_a_layout_says_all_of_itself(found: Plan) -> None:
    """Every column of the candidates' table is stated, so that nothing takes a usual value."""
    assert layout_of(found.degrees, ("kv-heads=copy",))["kv-heads"] == "copy"
    whole = layout_of(found.degrees.model_copy(update={"offload": "states"}))
    chosen = {f.name for f in fields(Candidates)} - {"operators"}  # which follow from pins
    assert {NAMES[key] for key in whole} == chosen
