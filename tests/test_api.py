"""Questions as a program asks them: published layouts, sums that must be sums, and answers to anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.api import Plan, Question, plan, price
from planner.cost.collectives import collective
from planner.errors import PlannerError
from planner.frontends.catalog import entries
from planner.frontends.cluster_file import read_cluster
from planner.frontends.model_file import read_model
from planner.plan.layout import layout_of
from planner.plan.read import read_plan
from planner.plan.schema import NoPlan
from planner.plan.write import write_plan
from planner.trainers.registry import TRAINERS
from tests.search.problems import MORE, examples

ROOT = Path(__file__).parents[1]
MODELS = [entry.name for entry in entries("model")]
NAMES = [trainer.name for trainer in TRAINERS]
MIB = 2**20


def codes(error: PlannerError) -> set[str]:
    return {fault.code for fault in error.faults}


# ---- published layouts ------------------------------------------------------------------------------------------

GPT_3 = Question(model="gpt3-175b", cluster="a100-sxm-80gb:1024", global_batch=1536, seq_len=2048)


@pytest.mark.parametrize("how", ["priced", "pinned"])
def test_a_product_of_degrees_that_is_not_the_chips_is_refused_with_its_arithmetic(how):
    with pytest.raises(PlannerError) as caught:
        if how == "priced":
            price(GPT_3, {"dp": 64, "pp": 8, "tp": 16})
        else:
            plan(replace(GPT_3, pins=("dp=64", "pp=8", "tp=16")))
    assert codes(caught.value) == {"D01"}
    text = str(caught.value).replace(",", "")
    assert "8192" in text
    assert "1024" in text
    assert "dp becomes 8" in text


LLAMA_405B = Question(
    model="llama-3.1-405b", cluster="h100-sxm:16384", seq_len=8192, global_batch=2048
)
PAPER = {"tp": 8, "cp": 1, "pp": 16, "dp": 128}


def test_llama_3_on_16384_chips_reaches_about_the_published_utilisation():
    """Llama 3 (2407.21783), table 4: 41 % of peak with tp 8, cp 1, pp 16, dp 128 and 16 sequences a data rank.

    The paper's pipeline is interleaved but names no number of chunks: assumed one layer a chunk, vpp 8 (126 layers and
    both ends on 16 × 8). It recomputes nothing; here norms, the part of a dense layer that Megatron can do again by
    itself, and memory is predicted a little above what is there.
    """
    found = price(LLAMA_405B, PAPER | {"vpp": 8, "recompute": "selective"})
    assert found.memory < 1.03 * found.memory_limit
    assert found.degrees.num_micro_batches == 16
    assert found.mfu == pytest.approx(0.41, rel=0.15)


def test_the_published_degrees_alone_fit_and_reach_about_as_much():
    """What the paper leaves open is chosen; megatron's own defaults would neither interleave nor fit."""
    found = price(LLAMA_405B, PAPER)
    assert found.fits
    assert found.mfu == pytest.approx(0.41, rel=0.15)
    assert found.left_open.chosen["vpp"] > 1
    assert not found.left_open.usual.fits
    assert found.left_open.usual.degrees.vpp == 1
    assert plan(LLAMA_405B).step <= found.step


def test_no_layout_of_the_published_degrees_beats_the_plan():
    best = plan(LLAMA_405B)
    assert best.proof.optimal
    fitting = 0
    for vpp in (1, 2, 4, 8):
        for mode in ("none", "selective", "full"):
            found = price(LLAMA_405B, PAPER | {"vpp": vpp, "recompute": mode})
            fitting += found.fits
            assert not found.fits or best.step <= found.step
    assert fitting >= 4


def test_fsdp_of_a_llama_layer_moves_its_weights_in_bf16_and_gradients_in_fp32():
    """218,112,000 parameters a layer: 416.016 MiB gathered, 832.03 MiB scattered."""
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:8", trainer="torchtitan", global_batch=16
    )
    layer = price(question, {"dp": 8, "zero": 3}).blocks[1]
    sizes = {(c.kind, c.phase): c.bytes / MIB for c in layer.gradient_collectives}
    assert layer.count == 32
    assert sizes["all-gather", "weight"] == pytest.approx(416.016, abs=1e-3)
    assert sizes["reduce-scatter", "gradient"] == pytest.approx(832.03, abs=1e-2)
    gathers = [c for c in layer.gradient_collectives if c.kind == "all-gather"]
    assert len(gathers) == 2  # forwards and backwards


def test_data_parallelism_of_a_gpt_layer_reduces_its_gradients():
    question = Question(model="gpt3-6.7b", cluster="a100-sxm-80gb:16", global_batch=64)
    for tp, level, kinds in (
        (1, 0, {"all-reduce": 4}),
        (2, 0, {"all-reduce": 4}),
        (2, 1, {"reduce-scatter": 4, "all-gather": 2}),
    ):
        layer = price(question, {"tp": tp, "zero": level}).blocks[1]
        weights = 12 * 4096**2 / tp
        sizes = {c.kind: c.bytes for c in layer.gradient_collectives}
        assert set(sizes) == set(kinds)
        for kind, each in kinds.items():
            assert sizes[kind] == pytest.approx(each * weights, rel=2e-3)  # norms and biases


# ---- where axes lie ---------------------------------------------------------------------------------------------


def axis_collectives(found: Plan, axis: str):
    return [c for b in found.blocks for op in b.operators for c in op.collectives if c.axis == axis]


@pytest.mark.parametrize("chips", [72, 512, 576])
@pytest.mark.parametrize(
    ("model", "layout", "axis"),
    [("llama-3-70b", {"tp": 8}, "tp"), ("qwen3-30b-a3b", {"tp": 1, "ep": 8}, "ep")],
)
def test_hosts_inside_an_nvlink_domain_do_not_count(chips, model, layout, axis):
    """Four chips to a host, 72 to an NVLink domain: eight ranks cross hosts and stay on NVLink."""
    spec = f"b200-nvl72:{chips}"
    cluster = read_cluster(spec)
    assert cluster.chips_per_host == 4
    question = Question(model=model, cluster=spec, global_batch=chips * 2, seq_len=4096)
    found = axis_collectives(price(question, layout), axis)
    assert found
    inside = np.zeros(len(cluster.levels), dtype=np.int64) + 1
    inside[0] = 8
    copies = 8.0 if axis == "ep" else 1.0  # top-8: one copy of a token to each far group
    for c in found:
        expected = collective(c.kind, c.bytes, inside, cluster, copies)
        assert c.seconds == pytest.approx(float(expected))


def test_beyond_the_nvlink_domain_the_network_counts():
    question = Question(model="llama-3-70b", cluster="b200-nvl72:512", global_batch=512)
    boxes = replace(question, cluster="dgx-b200:512")
    layout = {"tp": 8, "mbs": 1, "sp": "on", "recompute": "none"}
    within = {c.tensor: c.seconds for c in axis_collectives(price(question, layout), "tp")}
    same = {c.tensor: c.seconds for c in axis_collectives(price(boxes, layout), "tp")}
    assert within.keys() == same.keys()
    wide = layout | {"tp": 16, "kv-heads": "copy"}
    far = axis_collectives(price(boxes, wide), "tp")
    near = axis_collectives(price(question, wide), "tp")
    assert sum(c.seconds for c in far) > 1.2 * sum(c.seconds for c in near)


# ---- sums are sums ----------------------------------------------------------------------------------------------

SUMS = [
    ("llama-3-8b", "h100-sxm:8", "megatron", {}),
    ("llama-3-8b", "h100-sxm:8", "torchtitan", {"dp": 4, "pp": 2, "zero": 3}),
    ("llama-3-8b", "h100-sxm:16", "megatron", {"tp": 2, "pp": 4, "cp": 2, "vpp": 2}),
    ("qwen3-30b-a3b", "h100-sxm:32", "megatron", {"pp": 2, "ep": 8, "recompute": "full"}),
    ("deepseek-v3", "h100-sxm:512", "megatron", {"pp": 8, "ep": 64, "recompute": "full"}),
    ("llama-2-7b", "ascend-910b1:16", "mindspore", {"tp": 4, "pp": 2}),
    ("gemma-2-27b", "b200-nvl72:72", "fsdp", {"zero": 3}),
    ("gpt2", "a100-sxm-40gb:1", "fsdp", {}),
]


def chips_for(trainer: str, count: int) -> str:
    """So many chips that a trainer runs on."""
    return f"{'ascend-910b2' if trainer == 'mindspeed' else 'h100-sxm'}:{count}"


def check_sums(found: Plan) -> None:
    """Everything in a plan that is a sum, a share or a rate of something else in it."""
    assert sum(term.value for term in found.time) == pytest.approx(found.step)
    assert all(term.value >= 0 and term.hidden >= 0 for term in found.time)
    for stage in found.stages:
        assert sum(term.value for term in stage.memory) == pytest.approx(stage.memory_total)
    totals = [stage.memory_total for stage in found.stages]
    assert found.memory == max(totals)
    assert totals[found.memory_stage] == found.memory
    assert found.fits == (found.memory_upper <= found.memory_limit)
    chips = found.degrees.chips_used
    tokens = found.recipe.global_batch * found.recipe.seq
    assert found.tokens_per_second == pytest.approx(tokens / found.step)
    assert found.tokens_per_second_per_chip == pytest.approx(
        tokens / found.step / found.cluster.num_chips
    )
    assert 0 < found.mfu < 1
    hourly = found.cluster.price
    if hourly is None:
        assert found.price_per_million_tokens is None
    else:
        dollars = hourly * found.cluster.num_chips * found.step / 3600
        assert found.price_per_million_tokens == pytest.approx(dollars / tokens * 1e6)
    d = found.degrees
    assert d.dp * d.tp * d.pp * d.cp == chips <= found.cluster.num_chips
    assert (chips < found.cluster.num_chips) == any("idle" in warning for warning in found.warnings)
    assert d.dp * d.micro_batch * d.num_micro_batches == found.recipe.global_batch
    assert len(found.stages) == d.pp
    layers = [n for stage in found.stages for span in stage.layers for n in _unfold(span)]
    assert sorted(layers) == list(range(found.model.num_layers))
    assert found.proof.bound <= found.step * (1 + 1e-12)
    assert 0 <= found.proof.gap < 1
    for rank, other in enumerate(found.alternatives, 1):
        assert other.rank == rank
        assert other.step >= found.step * (1 - 1e-9)
        assert other.memory <= found.memory_limit
        if rank > 1:
            assert other.reason
            more = sum(term.value for term in other.difference)
            assert more == pytest.approx(other.step - found.step, abs=1e-9 * found.step)


def _unfold(text: str) -> list[int]:
    found: list[int] = []
    for part in filter(None, text.split(", ")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.parametrize(("model", "cluster", "trainer", "layout"), SUMS)
def test_terms_of_a_priced_layout_sum_to_what_they_are_part_of(model, cluster, trainer, layout):
    chips = read_cluster(cluster).num_chips
    question = Question(
        model=model, cluster=cluster, trainer=trainer, global_batch=8 * chips, seq_len=4096
    )
    check_sums(price(question, layout))


@pytest.mark.parametrize("trainer", NAMES)
def test_terms_of_a_plan_sum_to_what_they_are_part_of(trainer):
    cluster = chips_for(trainer, 16)
    question = Question(model="llama-3-8b", cluster=cluster, trainer=trainer, global_batch=64)
    found = plan(question)
    check_sums(found)
    proof = found.proof
    assert proof.optimal
    assert proof.gap == 0
    assert proof.searched == proof.allowed + sum(rule.count for rule in found.removed)
    assert proof.allowed >= proof.fitting >= 1
    again = price(question, stated(found))
    assert again.step == pytest.approx(found.step)
    assert again.memory == pytest.approx(found.memory)


def stated(found: Plan) -> dict[str, int | str]:
    """A plan's degrees as a layout that a person states."""
    return layout_of(found.degrees)


# ---- nothing fits -----------------------------------------------------------------------------------------------

MISSES = [
    ("llama-3-70b", "h100-sxm:4", "megatron", {}),
    ("llama-3.1-405b", "h100-sxm:8", "torchtitan", {}),
    ("llama-3-8b", "l4:1", "fsdp", {"precision": "fp8", "pins": ("offload=none",)}),
    ("gpt3-175b", "ascend-910b1:16", "mindspore", {}),
    ("llama-3.1-405b", "tpu-v5e:16", "fsdp", {}),
    ("deepseek-v3", "b200-nvl72:8", "megatron", {"precision": "fp8"}),
    ("llama-3-8b", "v100-sxm-16gb:1", "megatron", {"precision": "fp16"}),
    ("llama-3-8b", "ascend-910c:1", "megatron", {"seq_len": 2**20}),
]


@pytest.mark.parametrize(("model", "cluster", "trainer", "facts"), MISSES)
def test_a_miss_shows_its_arithmetic_and_remedies_that_fit(model, cluster, trainer, facts):
    question = Question(model=model, cluster=cluster, trainer=trainer, global_batch=16, **facts)
    found = plan(question)
    assert isinstance(found, NoPlan)
    assert found.closest is not None
    assert found.memory > found.memory_limit
    assert sum(term.value for term in found.terms) == pytest.approx(found.memory)
    assert found.explanation
    for remedy in found.remedies:
        assert remedy.memory <= remedy.limit
    if found.remedies and found.remedies[0].change.endswith("chips"):
        count = found.remedies[0].change.split()[0].replace(",", "")
        if count.isdigit():
            chip = cluster.split(":")[0]
            larger = plan(replace(question, cluster=f"{chip}:{count}"))
            assert isinstance(larger, Plan)
            assert larger.memory <= found.remedies[0].limit


def test_a_search_without_time_does_not_say_that_nothing_fits():
    found = plan(Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=64, time_limit=0))
    assert isinstance(found, Plan) or found.stopped


# ---- any model, any trainer -------------------------------------------------------------------------------------

CLUSTERS = ("h100-sxm:8", "a100-sxm-80gb:12", "ascend-910b1:16", "b200-nvl72:72", "tpu-v5p:4")


@pytest.mark.parametrize("index", range(len(MODELS)))
def test_every_model_of_the_catalogue_plans_or_explains(index):
    """One trainer and cluster a model, all of them with MORE_EXAMPLES."""
    assert len(MODELS) > 80
    everything = [
        (trainer.name, cluster)
        for trainer in TRAINERS
        for cluster in CLUSTERS
        if trainer.runs_on(read_cluster(cluster).chip, "bf16")
        and (trainer.encoders or not read_model(MODELS[index]).num_encoder_layers)
    ]
    for trainer, cluster in everything if MORE > 1 else [everything[index % len(everything)]]:
        question = Question(
            model=MODELS[index],
            cluster=cluster,
            trainer=trainer,
            seq_len=2048,
            global_batch=192,
            top=2,
        )
        found = plan(question)
        if isinstance(found, Plan):
            check_sums(found)
        else:
            assert found.removed or found.memory > found.memory_limit


# ---- files and repetition ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "cluster", "trainer", "layout"), SUMS[:4])
def test_a_plan_survives_its_file(tmp_path, model, cluster, trainer, layout):
    chips = read_cluster(cluster).num_chips
    question = Question(
        model=model, cluster=cluster, trainer=trainer, global_batch=8 * chips, seq_len=4096
    )
    for found in (price(question, layout), plan(question)):
        assert isinstance(found, Plan)
        path = tmp_path / "plan.json"
        path.write_text(write_plan(found))
        assert read_plan(path) == found
        assert write_plan(read_plan(path)) == write_plan(found)


REPEATED = (
    Question(model="qwen3-30b-a3b", cluster="h100-sxm:12", global_batch=60),
    Question(model="llama-3-70b", cluster="h100-sxm:4", trainer="torchtitan", global_batch=16),
)
PROGRAM = """
import tests.test_api as t, sys
for question in t.REPEATED:
    sys.stdout.write(t.write_plan(t.plan(question)))
"""


def test_the_same_question_gives_the_same_bytes_in_any_process():
    here = "".join(write_plan(plan(question)) for question in REPEATED)
    assert here == "".join(write_plan(plan(question)) for question in REPEATED)
    for seed in ("1", "4242") if MORE > 1 else ("4242",):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout == here
    assert json.loads(here.split("\n}\n")[0] + "}")


# ---- breaking it ------------------------------------------------------------------------------------------------


def answered(question: Question) -> Plan | NoPlan | None:
    """A plan that holds together, a miss, or a fault of the question; anything else is raised."""
    try:
        found = plan(question)
    except PlannerError as error:
        assert error.faults
        assert all(fault.code and fault.what for fault in error.faults)
        return None
    if isinstance(found, Plan):
        check_sums(found)
    return found


@pytest.mark.parametrize("trainer", NAMES)
@pytest.mark.parametrize("chips", [1, 3, 5, 6, 7, 12, 61, 100])
def test_odd_numbers_of_chips(chips, trainer):
    question = Question(
        model="llama-3.2-1b",
        cluster=chips_for(trainer, chips),
        trainer=trainer,
        seq_len=2048,
        top=1,
    )
    found = [answered(replace(question, global_batch=batch)) for batch in (97, 1, 60 * chips)]
    assert isinstance(found[-1], Plan) or trainer == "mindspore"  # whole servers only


ODD = [
    {"model": "deepseek-v3", "cluster": "h100-sxm:61", "seq_len": 4096},
    {"model": "deepseek-v3", "cluster": "h100-sxm:976", "pins": ("pp=61",), "global_batch": 976},
    {"model": "qwen3-235b-a22b", "cluster": "h100-sxm:376", "pins": ("pp=94",), "global_batch": 752},
    {"model": "gpt2", "cluster": "a100-sxm-40gb:12", "pins": ("pp=12",), "global_batch": 24},
    {"model": "gpt2", "cluster": "a100-sxm-40gb:13", "pins": ("pp=13",)},
    {"model": "gpt2", "cluster": "a100-sxm-40gb:64", "global_batch": 1},
    {"model": "gpt2", "cluster": "a100-sxm-40gb:64", "global_batch": 7919},
    {"model": "gpt2", "cluster": "t4:1", "seq_len": 1, "global_batch": 1, "precision": "fp16"},
    {"model": "llama-3-8b", "cluster": "h100-sxm:8", "seq_len": 2**27, "global_batch": 1},
    {"model": "llama-3-8b", "cluster": "h100-sxm:8", "seq_len": 8191, "global_batch": 8},
    {"model": "gpt3-175b", "cluster": "t4:8", "precision": "fp16"},
    {"model": "gpt2", "cluster": "h100-sxm:8", "memory_limit": "0.001%"},
    {"model": "gpt2", "cluster": "h100-sxm:8", "memory_limit": "1e-300"},
    {"model": "gpt2", "cluster": "h100-sxm:8", "memory_limit": "nan"},
    {"model": "gpt2", "cluster": "h100-sxm:8", "memory_limit": "inf"},
    {"model": "gpt2", "cluster": "h100-sxm:8", "global_batch": "9" * 400 + "tok"},
    {"model": "gpt2", "cluster": "h100-sxm:8", "global_batch": "9" * 5000},
    {"model": "gpt2", "cluster": "h100-sxm:8", "global_batch": -5},
    {"model": "gpt2", "cluster": "h100-sxm:8", "global_batch": 10**9, "top": 1},
    {"model": "gpt2", "cluster": "h100-sxm:8", "seq_len": 0},
    {"model": "gpt2", "cluster": "h100-sxm:8", "seq_len": -1},
    {"model": "gpt2", "cluster": "h100-sxm:8", "precision": "fp4"},
    {"model": "gpt2", "cluster": "a100-sxm-80gb:8", "precision": "fp8"},
    {"model": "gpt2", "cluster": "h100-sxm:8", "pins": ("tp>=4", "tp<=2")},
    {"model": "gpt2", "cluster": "h100-sxm:8", "pins": ("tp=536870912",)},
    {"model": "gpt2", "cluster": "h100-sxm:8", "pins": ("ep=2",)},
    {"model": "gpt2", "cluster": "h100-sxm:8", "pins": ("vpp=7",)},
    {"model": "gpt2", "cluster": "h100-sxm:8", "pins": ("micro-batch=1000000000",)},
    {"model": "gpt2", "cluster": "h100-sxm:8", "pins": ("schedule=gpipe",), "trainer": "torchtitan"},
    {"model": "gpt2", "cluster": "h100-sxm:8", "pins": ("shard-group=3",), "trainer": "fsdp"},
    {"model": "gpt2", "cluster": "h100-sxm:4", "pins": ("pp=4",), "trainer": "torchtitan",
     "global_batch": 5},
    {"model": "llama-3-8b", "cluster": "h100-sxm:4", "pins": ("pp=4",), "trainer": "mindspore",
     "global_batch": 11},
    {"model": "llama-3-8b", "cluster": "h100-sxm:4", "pins": ("pp=4", "vpp=2"),
     "trainer": "torchtitan", "global_batch": 2},
    {"model": "kimi-k2", "cluster": "rtx-3090:2"},
    {"model": "llama-3.1-405b", "cluster": "ascend-910c:384", "global_batch": 1},
]  # fmt: skip


@pytest.mark.parametrize("facts", ODD, ids=lambda facts: " ".join(map(str, facts.values()))[:60])
def test_odd_questions(facts):
    answered(Question(**facts))


@pytest.mark.parametrize("batch", [0, -1, 10**9 + 1, 10**18])
def test_a_batch_out_of_range_is_told_the_range(batch):
    with pytest.raises(PlannerError, match=r"It is 1 to 1,000,000,000\."):
        plan(Question(model="gpt2", cluster="h100-sxm:8", global_batch=batch))


@pytest.mark.parametrize(
    ("batch", "near"), [("10tok", "1."), ("3Ktok", "1 or 2."), ("5Ktok", "2 or 3.")]
)
def test_tokens_that_are_no_whole_sequences_name_the_nearest_batches(batch, near):
    question = Question(model="gpt2", cluster="h100-sxm:8", seq_len=2000, global_batch=batch)
    with pytest.raises(PlannerError) as refused:
        plan(question)
    assert refused.value.faults[0].fix == (f"Nearest, in sequences: {near}",)


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2**29, "pp": 2**29, "cp": 2**29},
        {"tp": 10**9, "dp": 10**9, "pp": 10**9, "cp": 10**9},
        {"ep": 10**9},
        {"micro_batch": 10**9},
        {"shard_group": 10**9},
        {"vpp": 10**9, "pp": 2},
        {"tp": 3},
        {"etp": 2},
        {"pp": 8, "vpp": 3},
        {"zero": 3},
        {"order": "tp-cp-pp-dp", "cp": 2, "pp": 2},
        {"recompute": "some"},
        {"pp": "<4"},
        {"": 1},
    ],
    ids=str,
)
def test_impossible_layouts_are_refused(layout):
    question = Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=16)
    with pytest.raises(PlannerError) as caught:
        price(question, layout)
    assert all(fault.code and fault.what for fault in caught.value.faults)


SOME_MODELS = [m for m in MODELS if m.startswith(("gpt2", "qwen2.5-0.5", "llama-3.2", "gemma-2b"))]
SOME_MODELS += ["deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b"]
SOME_CHIPS = ["h100-sxm", "a100-sxm-40gb", "t4", "rtx-4090", "ascend-910b4", "mi300x", "tpu-v6e"]
PINS = ["tp=2", "pp=2", "cp=2", "dp=1", "dp>=2", "ep=4", "recompute=full", "zero=3", "sp=on",
        "vpp=2", "micro-batch=2", "schedule=interleaved", "kv-heads=copy", "tp<=4"]  # fmt: skip


@given(
    st.builds(
        Question,
        model=st.sampled_from(SOME_MODELS),
        cluster=st.builds("{}:{}".format, st.sampled_from(SOME_CHIPS), st.integers(1, 24)),
        trainer=st.sampled_from(NAMES),
        global_batch=st.one_of(st.none(), st.integers(1, 100)),
        seq_len=st.one_of(st.none(), st.integers(1, 9000)),
        precision=st.sampled_from([None, "bf16", "fp16", "fp8", "fp32"]),
        optimizer=st.sampled_from([None, "sgd", "adamw-8bit"]),
        memory_limit=st.sampled_from([None, "50%", "10"]),
        pins=st.lists(st.sampled_from(PINS), max_size=3, unique=True).map(tuple),
        top=st.integers(1, 4),
    )
)
@examples(24)
def test_any_question_has_an_answer(question):
    answered(question)
