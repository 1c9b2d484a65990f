"""When host memory is looked at, what limits it, and reported cases with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.api import Plan, PlannerError, Question, plan, price
from planner.candidates import RECOMPUTE, single
from planner.cost.prices import prices
from planner.cost.step import exact
from planner.frontends.cluster_file import read_cluster
from planner.graph.architecture import Architecture, Attention, Layer, Mlp
from planner.graph.blocks import build_model
from planner.hardware.cluster import Cluster
from planner.plan.schema import NoPlan
from planner.question import understand
from planner.recipe import Recipe
from planner.search.space import build_space
from planner.search.trust import noise
from planner.trainers.fsdp import FSDP
from planner.trainers.trainer import Task
from planner.units import GIB, show_seconds

TIGHT = Question(
    model="llama-3-8b", cluster="rtx-4090:2", trainer="fsdp", global_batch=16, seq_len=2048
)


def test_host_memory_is_used_where_nothing_fits_without():
    found = plan(TIGHT)
    assert isinstance(found, Plan)
    assert found.degrees.offload != "none"
    assert 0 < found.host_memory <= found.host_limit
    assert any("Nothing fits on the chips alone" in text for text in found.warnings)
    assert all(row.degrees.offload != "none" for row in found.alternatives)
    assert found.proof.optimal


def test_host_memory_is_left_out_where_something_fits():
    question = replace(TIGHT, cluster="h100-sxm:8")
    found, opened = plan(question), plan(replace(question, pins=("offload=any",)))
    assert found.degrees.offload == "none"
    assert found.host_memory == 0
    assert found.proof.searched < opened.proof.searched
    assert opened.step <= found.step


WIDE = Question(
    model="llama-3-70b", cluster="h100-sxm:32", trainer="deepspeed", global_batch=256, seq_len=8192
)
"""Without recompute it fits only with weights and states in host memory."""


def test_host_memory_is_used_where_a_layout_is_faster_that_does_not_fit_without():
    found, alone = plan(WIDE), plan(replace(WIDE, pins=("offload=none",)))
    assert found.degrees.offload == "activations"
    assert found.step < 0.99 * alone.step
    told = f"on the chips alone the step takes {show_seconds(alone.step)}"
    near = ", the same within what predictions scatter; --pin offload=none stays there."
    assert alone.step < found.step * (1 + noise(understand(WIDE).task))
    assert f"Host memory is used: {told}{near}" in found.warnings
    stated = {"dp": 8, "cp": 4, "zero": 3, "recompute": "none", "mbs": 1, "offload": "none"}
    assert not price(WIDE, stated).fits


@pytest.mark.parametrize(
    "question",
    [
        WIDE,
        replace(WIDE, cluster="a100-sxm-40gb:32", seq_len=4096),
        replace(TIGHT, cluster="h100-sxm:2"),
        replace(TIGHT, cluster="a100-sxm-40gb:4", trainer="megatron"),
        replace(TIGHT, model="llama-3-70b", cluster="h100-sxm:32", trainer="megatron"),
        replace(TIGHT, model="qwen3-30b-a3b", cluster="h100-sxm:16", trainer="megatron"),
    ],
)
def test_what_is_left_out_would_not_be_faster(question):
    found, whole = plan(question), plan(replace(question, pins=("offload=any",)))
    assert found.step == pytest.approx(whole.step, rel=1e-9)
    assert found.degrees == whole.degrees
    assert found.proof.optimal


@pytest.mark.parametrize("trainer", ["deepspeed", "megatron"])
@pytest.mark.parametrize("cluster", ["h100-sxm:16", "gb200-nvl72:72", "rtx-4090:8"])
def test_no_layout_is_faster_for_what_it_keeps_in_host_memory(cluster, trainer):
    question = Question(
        model="qwen3-30b-a3b", cluster=cluster, trainer=trainer, global_batch=144, seq_len=4096,
        pins=("offload=any",),
    )  # fmt: skip
    known = understand(question)
    rows = build_space(known.task, known.pins).candidates
    moved = np.flatnonzero(rows.offload)
    assert len(moved) > 100
    some = np.random.default_rng(1).choice(moved, min(400, len(moved)), replace=False)
    with_host = rows.take(some)
    without = replace(with_host, offload=0 * with_host.offload)
    slow, fast = (exact(prices(known.task, each)).step for each in (with_host, without))
    assert (slow >= fast * (1 - 1e-12)).all()
    assert (slow > fast).any()


def test_a_pin_keeps_everything_on_the_chips():
    found = plan(replace(TIGHT, pins=("offload=none",)))
    assert isinstance(found, NoPlan)
    assert found.closest.offload == "none"
    remedies = {remedy.change: remedy for remedy in found.remedies}
    assert remedies["--pin offload=any"].memory < found.memory
    assert remedies["lora: {rank: 16} in a recipe file"].note == "trains adapters only"


def test_sixteen_chips_are_told_what_would_fit_70b():
    """Case A03: 32 chips, host memory or adapters."""
    asked = Question(
        model="llama-3-70b",
        cluster="a100-sxm-80gb:16",
        trainer="deepspeed",
        global_batch=64,
        seq_len=8192,
        memory_limit="70",
        pins=("offload=none", "zero=3", "cp=1"),
    )
    found = plan(asked)
    assert isinstance(found, NoPlan)
    changes = [remedy.change for remedy in found.remedies]
    assert changes[0] == "32 chips"
    assert {"lora: {rank: 16} in a recipe file", "--pin offload=any"} <= set(changes)


def test_a_host_without_room_holds_nothing(tmp_path):
    small = tmp_path / "small.yaml"
    small.write_text(
        "name: small\nchip: rtx-4090\nnum_chips: 2\nchips_per_host: 2\nhost_memory_gib: 40\n"
        "levels: [{name: node, link: pcie4}]\n"
    )
    found = plan(replace(TIGHT, cluster=str(small)))
    assert isinstance(found, NoPlan)
    large = tmp_path / "large.yaml"
    large.write_text(small.read_text().replace("gib: 40", "gib: 100"))
    assert plan(replace(TIGHT, cluster=str(large))).fits


def layout(**given: str | int) -> dict[str, str | int]:
    return {"zero": 3, "recompute": "full", "mbs": 1} | given


def test_eight_consumer_cards_train_8b_with_weights_in_host_memory():
    """Case A02: LlamaFactory #5977, which shows 13 GB a card with what the allocator caches."""
    asked = Question(
        model="llama-3-8b",
        cluster="rtx-3090:8",
        trainer="deepspeed",
        precision="fp16",
        global_batch=16,
        seq_len=1024,
    )
    found = price(asked, layout(offload="states"))
    assert found.fits
    assert found.memory < 13e9
    assert price(asked, layout()).memory > found.memory + 15 * 8.03e9 / 8


def test_sixteen_chips_hold_70b_only_with_host_memory():
    """Case A03: xtuner #842; offload is one of the repairs that its maintainers name."""
    asked = Question(
        model="llama-3-70b",
        cluster="a100-sxm-80gb:16",
        trainer="deepspeed",
        global_batch=16,
        seq_len=4096,
    )
    assert not price(asked, layout()).fits
    assert price(asked, layout(offload="optimizer")).fits


def test_states_of_a_16b_actor_go_to_host_memory():
    """Case A54: OpenRLHF #392; 58.5 GiB of states a GPU, which Adam in host memory takes away."""
    asked = Question(
        model="deepseek-v2-lite",
        cluster="a100-sxm-80gb:4",
        trainer="deepspeed",
        global_batch=16,
        seq_len=2048,
    )
    full, moved = price(asked, layout(mbs=4)), price(asked, layout(mbs=4, offload="optimizer"))
    assert moved.host_memory == pytest.approx(58.5 * GIB, rel=0.01)
    assert moved.memory < full.memory - 50 * GIB
    assert moved.fits


def test_fewest_chips_of_deepseek_v3_with_optimizer_states_in_host_memory():
    """Case A34: verl #3019 trains on 96 chips of 80 GB: 6 bytes a parameter on the chips, 39.1 GiB each."""
    asked = Question(
        model="deepseek-v3",
        cluster="h100-sxm:96",
        global_batch=96,
        seq_len=4096,
        pins=("offload=optimizer",),
    )
    found = plan(asked)
    assert found.fits
    stage = found.stages[found.memory_stage]
    states = sum(t.value for t in stage.memory if t.name in ("memory.weights", "memory.gradients"))
    assert states > 39.1 * GIB
    assert isinstance(plan(replace(asked, pins=("offload=none",))), NoPlan)


def test_13b_on_one_v100():
    """ZeRO-Offload trains 13 G parameters on one V100 of 32 GB in a DGX-2 (arXiv 2101.06840, table 2 and figure 7)."""
    chip = read_cluster("v100-sxm-32gb:1")
    host = replace(chip, host_memory=96 * GIB, chips_per_host=16, host_memory_bandwidth=16e9)
    task = gpt_13b(host)
    rows = single(sharding=2, recompute=RECOMPUTE.index("full"), offload=1)
    found = exact(prices(task, rows))
    assert found.memory[0] < 32 * GIB
    assert 13e9 * 16 < found.host[0] < 0.9 * host.host.memory
    assert exact(prices(task, replace(rows, offload=rows.offload * 0))).memory[0] > 6 * 32 * GIB


def gpt_13b(cluster: Cluster):
    attention = Attention(
        heads=32, kv_heads=32, head_dim=128, qkv_bias=True, out_bias=True, rotary=False
    )
    kind = Layer(name="layer", attention=attention, mlp=Mlp(width=4 * 4096, gated=False, bias=True))
    arch = Architecture(
        name="gpt-13b",
        hidden=4096,
        vocab=50257,
        max_seq=1024,
        kinds=(kind,),
        layers=(0,) * 64,
        norm="layer",
        tied=True,
        positions=1024,
    )
    recipe = Recipe(global_batch=8, seq=1024, precision="fp16", fused_attention=False)
    model = build_model(arch, 1024, fused=False)
    return Task(model=model, cluster=cluster, recipe=recipe, trainer=FSDP, memory_limit=31.7 * GIB)


@pytest.mark.parametrize("trainer", ["torchtitan", "mindspore"])
def test_what_a_trainer_cannot_move_is_said(trainer):
    asked = Question(model="llama-3-8b", cluster="h100-sxm:8", trainer=trainer, global_batch=16)
    with pytest.raises(PlannerError, match=f"{trainer} cannot run offload optimizer"):
        plan(replace(asked, pins=("offload=optimizer",)))
