"""Pins on a page: as they were written, with what each costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan.facts import Facts
from planner.plan.items import find_item
from planner.plan.read import read_plan
from planner.plan.schema import PinPrice
from planner.report.markdown import render_markdown
from planner.report.pins import pinned
from planner.report.tables import plain
from planner.report.text import render
from planner.report.tree import render_tree

PLAN = read_plan(Path(__file__).parent / "dense.json").model_copy(
    update={
        "pins": ("tp=8", "attn.q.heads=tp", "pp=2"),
        "pin_prices": (
            PinPrice(pin="tp=8", without=15.0, cost=3.2),
            PinPrice(pin="attn.q.heads=tp", without=18.2, cost=0.0),
            PinPrice(pin="pp=2", without=None, cost=None),
            PinPrice(pin="all pins", without=14.0, cost=4.2),
        ),
        "step": 18.2,
    }
)


def test_every_pin_has_its_price():
    assert pinned(PLAN) == [
        "tp=8 (costs 3.20 s, 17.6 % of the step)",
        "attn.q.heads=tp (costs nothing)",
        "pp=2 (price not known: the search for it was stopped)",
        "all pins (costs 4.20 s, 23.1 % of the step)",
    ]
    assert "costs 3.20 s" in plain(render(PLAN))
    assert "Pinned   tp=8 (costs 3.20 s, 17.6 % of the step)" in plain(render_tree(PLAN, 100))
    assert "- Pinned: `tp=8` (costs 3.20 s, 17.6 % of the step)" in render_markdown(PLAN)


def test_pins_without_prices_are_told_as_they_are():
    assert pinned(PLAN.model_copy(update={"pin_prices": ()})) == list(PLAN.pins)


@pytest.mark.parametrize(
    ("asked", "pin"),
    [
        ("layers.*.mlp.up", "layers.*.mlp.up=((1,1),(1,8))"),
        ("layers.*.mlp.up=((1,1),(1,8))", "layers.*.mlp.up=((1,1),(1,8))"),
        ("pp<=4", "pp<=4"),
        ("all pins", "all pins"),
    ],
)
def test_a_pin_is_found_as_it_was_typed(asked: str, pin: str) -> None:
    pins = ("pp<=4", "layers.*.mlp.up=((1,1),(1,8))")
    prices = tuple(PinPrice(pin=p, without=15.0, cost=3.2) for p in (*pins, "all pins"))
    priced = find_item(PLAN.model_copy(update={"pins": pins, "pin_prices": prices}), asked)
    assert isinstance(priced, Facts)
    assert [row.value for row in priced.rows] == [pin, 15.0, 3.2]


def test_a_pin_without_a_price_is_found_too() -> None:
    told = find_item(PLAN.model_copy(update={"pins": ("pp<=4",), "pin_prices": ()}), "pp<=4")
    assert isinstance(told, Facts)
    assert [(row.place, row.value) for row in told.rows] == [("pins.0", "pp<=4")]
