"""Stages of unlike length and layers that recompute unlike, in the trainers' own words."""

from __future__ import annotations

import ast
from itertools import pairwise

import pytest

from planner.api import Question, check
from planner.errors import PlannerError
from planner.export.targets import export
from tests.export.plans import stated

MEGATRON = "tp=4,pp=2,zero=1,stage-layers=17+15,full-layers=3+3"
CHUNKS = "tp=4,pp=2,vpp=2,zero=1,stage-layers=8+8+8+8,full-layers=2+2+2+2"
ASCEND = "tp=4,pp=2,stage-layers=17+15,full-layers=3+0,selective-layers=2+1"


def text_of(plan, to):
    return "\n".join(file.text for file in export(plan, to))


@pytest.mark.parametrize("layout", [MEGATRON, CHUNKS])
def test_megatron_repeats_the_first_layers_of_every_chunk(layout):
    plan = stated("llama-3-8b", "h100-sxm:16", "megatron", layout)
    assert plan.degrees.recompute == "mixed"
    text = text_of(plan, "megatron")
    words = text.replace("\\\n", " ").split()
    after = dict(pairwise(words))
    assert after["--recompute-granularity"] == "full"
    assert after["--recompute-method"] == "block"
    assert after["--recompute-num-layers"] == str(plan.degrees.full_layers[0])


def test_mindformers_counts_layers_stage_by_stage():
    plan = stated("llama-3-8b", "a910b:32", "mindspore", ASCEND)
    assert [stage.recompute for stage in plan.stages] == [
        {"none": 12, "selective": 2, "full": 3},
        {"none": 14, "selective": 1},
    ]
    text = text_of(plan, "mindformers")
    assert "recompute: [3, 0]" in text
    assert "mul: [5, 1]" in text
    assert "offset: [1, -1]" in text


@pytest.mark.parametrize("to", ["galvatron", "torchtitan", "deepspeed", "maxtext"])
def test_other_formats_refuse_layers_that_differ(to):
    plan = stated("llama-3-8b", "h100-sxm:16", "megatron", MEGATRON)
    with pytest.raises(PlannerError) as error:
        export(plan, to)
    assert any("differ in what they recompute" in str(fault) for fault in error.value.faults)


def test_the_format_of_the_same_trainer_that_holds_them_is_named():
    plan = stated("llama-3-8b", "a910b:32", "mindspore", ASCEND)
    with pytest.raises(PlannerError, match=r"--to mindspore, --to mindformers or .*recompute=full"):
        export(plan, "galvatron")


def test_mindspore_says_of_every_layer_what_is_computed_again():
    plan = stated("llama-3-8b", "a910b:32", "mindspore", ASCEND)
    text = next(f.text for f in export(plan, "mindspore") if f.name == "auto_parallel.py")
    line = next(line for line in text.splitlines() if line.startswith("RECOMPUTE = "))
    layers = ast.literal_eval(line.removeprefix("RECOMPUTE = "))
    parts = ("attention_norm", "ffn_norm", "feed_forward.mul", "feed_forward.w1.activation.silu")
    assert layers == [("",)] * 3 + [parts] * 2 + [()] * 12 + [parts] + [()] * 14


def test_megatron_refuses_numbers_of_its_own_for_every_stage():
    plan = stated("llama-3-8b", "a910b:32", "mindspore", ASCEND)
    with pytest.raises(PlannerError) as error:
        export(plan, "megatron")
    assert any("unlike in number" in str(fault) for fault in error.value.faults)


@pytest.mark.parametrize(
    ("trainer", "cluster", "to", "name", "layout"),
    [
        ("megatron", "h100-sxm:16", "megatron", "megatron.sh", MEGATRON),
        ("megatron", "h100-sxm:16", "megatron", "megatron.sh", CHUNKS),
        ("mindspeed", "a910b:16", "mindspeed", "mindspeed.sh", "tp=4,pp=2,zero=1,stage-layers=16+16,full-layers=5+5"),
        ("mindspore", "a910b:32", "mindformers", "mindformers.yaml", ASCEND),
        ("mindspore", "a910b:32", "mindformers", "mindformers.yaml", "tp=4,pp=2,stage-layers=16+16,full-layers=5+0"),
    ],
)  # fmt: skip
def test_how_many_layers_recompute_is_read_back(trainer, cluster, to, name, layout, tmp_path):
    plan = stated("llama-3-8b", cluster, trainer, layout)
    for file in export(plan, to):
        (tmp_path / file.name).write_text(file.text)
    found = check(tmp_path / name, Question(model="", cluster=cluster), search=False)
    assert found.plan is not None
    assert [s.recompute for s in found.plan.stages] == [s.recompute for s in plan.stages]
    assert found.plan.step == pytest.approx(plan.step, rel=1e-6)
    assert not found.silent
