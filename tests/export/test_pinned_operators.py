"""Operators that do what no role says: in MindSpore's strategy file, refused where only degrees can be written."""

from __future__ import annotations

import json

import pytest

from planner.errors import PlannerError
from planner.export.targets import TARGETS, export
from planner.pricing import price
from planner.question import Question


@pytest.fixture(scope="module")
def plan():
    asked = Question(
        model="llama-3-8b",
        cluster="910b2:8",
        trainer="mindspore",
        global_batch=64,
        pins=("layers.*.mlp.up.embed=tp",),
    )
    return price(asked, {"tp": 8}, usual=True)


def test_the_strategy_file_has_what_was_pinned(plan):
    files = {file.name: file.text for file in export(plan, "mindspore")}
    layouts = json.loads(files["parameters_stage_0.json"])["parallel_layout_item"]
    up = layouts["model.layers.0.feed_forward.w1.weight"]
    assert up["dev_matrix"] == [1, 1, 8]
    assert up["tensor_map"] == [-1, 0]
    assert layouts["model.layers.0.feed_forward.w2.weight"]["tensor_map"] == [-1, 0]


@pytest.mark.parametrize("to", [target.name for target in TARGETS if target.name != "mindspore"])
def test_what_only_has_roles_refuses_it(plan, to):
    with pytest.raises(
        PlannerError, match=r"cannot hold dense\.mlp\.up cut by batch/dp seq/cp embed/tp"
    ):
        export(plan, to)
