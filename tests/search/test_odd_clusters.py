"""Clusters and models whose numbers divide by little: every answer is valid, proven, and uses what divides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.errors import PlannerError
from planner.frontends.cluster_file import read_cluster
from planner.plan.layout import layout_of
from planner.plan.schema import Plan
from planner.planning import plan
from planner.pricing import price
from planner.question import Question, understand
from planner.search.engine import search
from planner.search.idle import divides_badly, fewer
from planner.search.stages.winners import best_cuts
from planner.units import show_seconds

ODD = [
    ("h100-sxm:3", 24, "llama-3-8b"),
    ("h100-sxm:5", 20, "llama-3-8b"),
    ("h100-sxm:6", 24, "llama-3-8b"),
    ("h100-sxm:7", 28, "llama-3-8b"),
    ("h100-sxm:12", 48, "llama-3-8b"),
    ("h100-sxm:3x4", 48, "llama-3-8b"),
    ("h100-sxm:2x6", 48, "llama-3-8b"),
    ("h100-sxm:2x10", 40, "llama-3-8b"),
    ("a100-sxm-80gb:2x16", 64, "llama-3-8b"),
]


@pytest.mark.parametrize(("cluster", "batch", "model"), ODD)
def test_clusters_of_odd_sizes_are_planned(cluster, batch, model):
    found = plan(Question(model=model, cluster=cluster, global_batch=batch, seq_len=2048))
    assert isinstance(found, Plan)
    d = found.degrees
    assert d.dp * d.tp * d.pp * d.cp == d.chips_used == found.cluster.num_chips
    assert found.proof.optimal
    assert batch % (d.dp * d.micro_batch) == 0
    assert 32 % d.tp == 0
    assert sum(_sizes(found)) == 32


IDLE = ["h100-sxm:13", "h100-sxm:3x10", "h100-sxm:61"]


@pytest.mark.parametrize("cluster", IDLE)
def test_chips_stay_idle_where_fewer_are_faster_or_all_cannot_be_used(cluster):
    question = Question(model="llama-3-8b", cluster=cluster, global_batch=256, seq_len=4096)
    found = plan(question)
    assert isinstance(found, Plan)
    chips, used = found.cluster.num_chips, found.degrees.chips_used
    assert chips / 2 < used < chips
    (told,) = (warning for warning in found.warnings if "idle" in warning)
    assert told.startswith(f"{chips - used} of {chips} chips")
    whole = fastest_of_all(question)
    if whole is None:
        assert told.endswith(f"no layout of all {chips} is allowed by the rules.")
    else:
        assert found.step < whole
        assert told.endswith(f"all {chips} would take {show_seconds(whole)} a step.")
    price = understand(question).task.cluster.chip.price
    assert found.price_per_million_tokens == pytest.approx(
        price * chips * found.step / 3600 / (256 * 4096) * 1e6
    )


@pytest.mark.parametrize("cluster", ["h100-sxm:13", "h100-sxm:3x10"])
def test_a_plan_that_leaves_chips_idle_is_priced_as_it_was_planned(cluster):
    question = Question(model="llama-3-8b", cluster=cluster, global_batch=256, seq_len=4096)
    found = plan(question)
    assert isinstance(found, Plan)
    again = price(question, layout_of(found.degrees))
    assert again.degrees == found.degrees
    assert (again.step, again.memory, again.mfu) == (found.step, found.memory, found.mfu)
    assert again.price_per_million_tokens == found.price_per_million_tokens
    assert any("idle: the layout uses no more" in warning for warning in again.warnings)
    own = plan(replace(question, warm_start=layout_of(found.degrees)))
    assert isinstance(own, Plan)
    assert own.alternatives[0].own


@pytest.mark.parametrize("layout", [{"dp": 6}, {"tp": 4, "pp": 3}])
def test_half_of_the_chips_or_more_are_not_left_idle_nor_any_unless_dp_is_stated(layout):
    question = Question(model="llama-3-8b", cluster="h100-sxm:13", global_batch=48, seq_len=4096)
    with pytest.raises(PlannerError) as caught:
        price(question, layout)
    assert {fault.code for fault in caught.value.faults} == {"D01"}


def test_layouts_that_leave_chips_idle_are_priced_where_none_of_all_chips_is_allowed():
    """MindSpore takes no 36 chips, which divide well: a plan leaves four idle, and so may a layout of some degrees."""
    question = Question(model="llama-3-8b", cluster="ascend-910b:36", trainer="mindspore")
    found = price(question, {"dp": 4, "pp": 8})
    assert found.degrees.chips_used == 32
    assert any("4 of 36 chips are idle" in warning for warning in found.warnings)
    assert found.step >= plan(question).step
    with pytest.raises(PlannerError, match="= 32, but the cluster has 36 chips"):
        price(replace(question, trainer="megatron"), {"dp": 4, "pp": 8})


def test_chips_are_not_left_idle_for_nothing():
    question = Question(model="llama-3-8b", cluster="h100-sxm:5", global_batch=20, seq_len=4096)
    found = plan(question)
    assert isinstance(found, Plan)
    assert found.degrees.chips_used == 5
    assert not any("idle" in warning for warning in found.warnings)
    pinned = plan(replace(question, cluster="h100-sxm:7", global_batch=256, pins=("pp=3",)))
    assert isinstance(pinned, Plan)
    assert pinned.degrees.chips_used == 6


def test_what_a_batch_cannot_use_of_chips_that_divide_well():
    """256 sequences and 96 chips: dp has to be a power of two, unless stages or heads take the three."""
    question = Question(
        model="llama-3-8b",
        cluster="h100-sxm:6",
        trainer="fsdp",
        global_batch=256,
        seq_len=4096,
    )
    found = plan(question)
    assert isinstance(found, Plan)
    assert found.degrees.chips_used == 4
    (told,) = (warning for warning in found.warnings if "idle" in warning)
    assert told == "2 of 6 chips are idle: no layout of all 6 is allowed by the rules."
    assert price(question, layout_of(found.degrees)).degrees == found.degrees
    stated = price(question, {"dp": 4})
    assert (stated.degrees.chips_used, stated.degrees.dp) == (4, 4)
    assert stated.step >= found.step
    with pytest.raises(PlannerError, match="dp 4 = 4, but the cluster has 6 chips"):
        price(replace(question, global_batch=252), {"dp": 4})


def test_numbers_of_chips_to_try():
    assert [count for count in range(2, 20) if divides_badly(count)] == [
        5,
        7,
        10,
        11,
        13,
        14,
        15,
        17,
        19,
    ]
    assert fewer(read_cluster("h100-sxm:7")) == (4, 5, 6)
    assert fewer(read_cluster("h100-sxm:1000")) == (729, 768, 864, 972)


def fastest_of_all(question):
    """The step of the fastest plan that uses all chips; None where there is none."""
    known = understand(question)
    outcome = best_cuts(search(known.task, known.pins), known.pins, math.inf)
    return float(outcome.step[0]) if len(outcome.step) else None


@pytest.mark.parametrize(("layers", "pp"), [(61, 4), (94, 8)])
@pytest.mark.parametrize("trainer", ["megatron", "mindspore"])
def test_layers_that_divide_by_nothing_stand_on_stages_of_unlike_length(layers, pp, trainer):
    question = Question(
        model="llama-3-8b",
        cluster="h100-sxm:32",
        trainer=trainer,
        global_batch=64,
        seq_len=2048,
        pins=(f"pp={pp}", "vpp=1"),
        overrides={"layers": str(layers)},
    )
    found = plan(question)
    assert isinstance(found, Plan)
    sizes = _sizes(found)
    assert sum(sizes) == layers
    assert len(sizes) == pp
    assert max(sizes) - min(sizes) <= 3
    layout = {
        "pp": pp,
        "tp": found.degrees.tp,
        "cp": found.degrees.cp,
        "mbs": found.degrees.micro_batch,
    }
    layout |= {"zero": found.degrees.sharding, "recompute": "none"}
    layout |= {"sp": "on" if found.degrees.sequence_parallel else "off"}
    even = price(question, layout | {"order": "-".join(found.degrees.order)})
    assert not even.fits or found.step <= even.step * (1 + 1e-9)


def test_tensor_parallelism_may_span_hosts_inside_one_nvlink_domain():
    """NVIDIA-NeMo/RL#2612: four chips a host, 72 in a domain; groups must not cross domains."""
    found = plan(
        Question(model="llama-3-70b", cluster="gb200-nvl72:144", global_batch=144, seq_len=4096)
    )
    assert isinstance(found, Plan)
    sizes = [level.size for level in found.cluster.levels]
    assert 72 in sizes
    assert 72 % found.degrees.tp == 0


def test_levels_follow_the_network_and_not_the_host():
    """alpa#906: where one switch joins all chips, 16 of them share a tensor nearly as well as 8."""
    grows = {}
    for cluster in ("gb200-nvl72:64", "h100-sxm:64"):
        question = Question(model="gpt3-175b", cluster=cluster, global_batch=64, seq_len=2048)
        seconds = []
        for tp in (8, 16):
            layout = {"tp": tp, "dp": 4, "pp": 16 // tp, "recompute": "full", "sp": "on", "mbs": 1}
            plan_of = price(question, layout | {"zero": 1})
            moves = [c for b in plan_of.blocks for op in b.operators for c in op.collectives]
            seconds.append(sum(c.seconds for c in moves if c.axis == "tp"))
        grows[cluster] = seconds[1] / seconds[0]
    assert grows["gb200-nvl72:64"] < 1.15
    assert grows["h100-sxm:64"] > 1.2


def _sizes(found: Plan) -> list[int]:
    """Layers of every stage."""
    return [sum(_count(chunk) for chunk in stage.layers) for stage in found.stages]


def _count(runs: str) -> int:
    ends = [part.split("-") for part in runs.split(", ") if part]
    return sum(int(each[-1]) - int(each[0]) + 1 for each in ends)
