"""Numbers taken apart: every formula gives its number, and every printed number has one."""

from __future__ import annotations

import pytest

from planner.api import Question, plan, price
from planner.plan.items import find_item
from planner.plan.schema import BlockPlan, Plan, Stage
from planner.plan.tree import plan_tree
from planner.studies.compare import Point, row_of

LAYOUTS = {
    "pipeline": ("llama-3-70b", "h100-sxm:64", "megatron", {"tp": 8, "pp": 4, "recompute": "full"}),
    "sharded": ("llama-3-8b", "h100-sxm:16", "torchtitan", {"zero": 3, "recompute": "selective"}),
    "experts": ("mixtral-8x7b", "a100-sxm-80gb:32", "megatron", {"tp": 2, "ep": 8, "pp": 2}),
    "offload": (
        "llama-3-8b",
        "rtx-4090:2",
        "deepspeed",
        {"zero": 3, "recompute": "full", "offload": "states+activations"},
    ),
    "host": (
        "llama-3-8b",
        "h100-sxm:8",
        "megatron",
        {"tp": 2, "offload": "optimizer+activations"},
    ),
    "idle": ("llama-3-8b", "h100-sxm:13", "megatron", {"dp": 4, "pp": 3}),
    "ring": ("llama-3-8b", "h100-sxm:32", "megatron", {"cp": 4, "tp": 2, "pp": 2, "vpp": 2}),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def priced(request: pytest.FixtureRequest) -> Plan:
    model, cluster, trainer, layout = LAYOUTS[request.param]
    return price(Question(model=model, cluster=cluster, trainer=trainer, seq_len=4096), layout)


def test_every_formula_gives_its_number(priced: Plan) -> None:
    assert len(priced.derivations) >= 14
    for name, how in priced.derivations.items():
        given = {quantity.name: quantity.value for quantity in how.inputs}
        found = eval(how.formula, {"max": max, "__builtins__": {}}, given)
        assert found == pytest.approx(how.value, rel=1e-9, abs=1e-12), name


def test_every_shown_number_has_a_derivation(priced: Plan) -> None:
    fullest = priced.stages[priced.memory_stage].memory
    shown = {term.name: term.value for term in (*priced.time, *fullest)} | {
        "step": priced.step,
        "memory": priced.memory,
        "memory-upper": priced.memory_upper,
        "mfu": priced.mfu,
        "tokens": priced.tokens_per_second,
        "tokens-per-chip": priced.tokens_per_second_per_chip,
        "price": priced.price_per_million_tokens,
    }
    if priced.cluster.watts:
        row = row_of(Point(question=Question.again(priced.asked), chips=0), priced)
        shown["energy"] = row.energy_per_million_tokens
    if priced.host_memory:
        shown["host"] = priced.host_memory
    assert {name: how.value for name, how in priced.derivations.items()} == pytest.approx(shown)


def test_stages_are_the_sums_of_their_layers(priced: Plan) -> None:
    for stage in priced.stages:
        for way in ("forward", "backward"):
            layers = sum(held(stage, b, priced) * getattr(b, way) for b in priced.blocks)
            assert layers == pytest.approx(getattr(stage, way))


def test_the_tree_of_every_stage_sums(priced: Plan) -> None:
    for stage in (None, *priced.stages):
        for node in plan_tree(priced, stage).walk():
            if node.children:
                parts = sum(child.seconds for child in node.children)
                assert parts == pytest.approx(node.seconds), node.id


@pytest.mark.parametrize(
    "layout",
    [
        {"pp": 4, "recompute": "selective", "stage-layers": "9+8+8+7"},
        {"pp": 2, "stage-layers": "17+15", "full-layers": "4+4"},
    ],
)
def test_the_tree_sums_and_nothing_in_it_is_negative_where_layers_differ(
    layout: dict[str, int | str],
) -> None:
    found = price(
        Question(model="llama-3-8b", cluster="h100-sxm:8", seq_len=4096, global_batch=64), layout
    )
    nodes = list(plan_tree(found).walk())
    for node in nodes:
        if node.children:
            assert sum(child.seconds for child in node.children) == pytest.approx(node.seconds)
    assert min(node.seconds for node in nodes) > -1e-9
    known = {node.id for node in nodes} - {"step.recompute"}
    assert all(find_item(found, name) for name in known)
    assert ("step.recompute" in {node.id for node in nodes}) == (found.degrees.recompute == "mixed")


def held(stage: Stage, block: BlockPlan, whole: Plan) -> int:
    """How many of a block's layers a stage holds, read off the plan."""
    if block.layers in ("embedding", "head", "mtp"):
        last = stage.index == len(whole.stages) - 1
        return block.count * (stage.embedding if block.layers == "embedding" else last)
    mine = {n for part in stage.layers for n in numbers(part)}
    return len(mine & set(numbers(block.layers)))


def numbers(folded: str) -> list[int]:
    """``0-2, 5`` as numbers."""
    ends = [part.split("-") for part in folded.split(", ") if part]
    return [n for first, *rest in ends for n in range(int(first), int((rest or [first])[0]) + 1)]


def test_a_plan_keeps_its_question() -> None:
    question = Question(
        model="gpt3-6.7b", cluster="a100-sxm-80gb:16", global_batch="1Mtok", pins=("pp=1",)
    )
    found = plan(question)
    assert isinstance(found, Plan)
    assert Question.again(found.asked) == question
    assert found.asked.layout is None
    stated = price(question, {"tp": 2, "recompute": "full"})
    assert stated.asked.layout == {"tp": 2, "recompute": "full"}
