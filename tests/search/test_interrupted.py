"""Ctrl-C after a search: what it found is the answer, whatever was done with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner import planning
from planner.asking import plan
from planner.plan.schema import Plan
from planner.question import Question
from planner.search import engine
from planner.search.stages import winners

QUESTION = Question(
    model="llama-2-7b", cluster="a100-sxm-80gb:16", global_batch=64, pins=("pp=4",)
)  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> Plan:
    found = plan(QUESTION)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize(("room", "name"), [(winners, "_divide"), (engine, "_moved")])
def test_the_best_so_far_is_the_answer(
    room: Any, name: str, whole: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, left = getattr(room, name), [1]

    def interrupted(*given: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return true(*given)

    def searched_for_a_price(*_: Any) -> None:
        raise AssertionError("prices of pins are searched for after Ctrl-C")

    monkeypatch.setattr(room, name, interrupted)
    monkeypatch.setattr(planning.Without, "_searched", searched_for_a_price)
    found = plan(QUESTION)
    assert isinstance(found, Plan)
    assert found.proof.stopped
    assert found.step >= whole.step * (1 - 1e-9)
    assert found.proof.bound <= whole.step * (1 + 1e-9)


@pytest.mark.parametrize("name", ["_searched", "_sifted"])
def test_ctrl_c_among_the_prices_of_pins_keeps_the_plan(
    name: str, whole: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(*given: Any) -> Any:
        calls.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(planning.Without, name, interrupted)
    found = plan(replace(QUESTION, pins=("pp=4", "vpp=1")))
    assert isinstance(found, Plan)
    assert not found.proof.stopped
    assert [price.cost for price in found.pin_prices] == [None, None, None]
    assert len(calls) == 1, "no other price is searched for after Ctrl-C"
