"""Clusters and models whose numbers divide by little: every answer is valid, proven, and uses what divides."""

from __future__ import annotations

import pytest

from planner.plan.schema import Plan
from planner.planning import plan, price
from planner.question import Question

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
            layout = {"tp": tp, "dp": 4, "pp": 16 // tp, "recompute": "full", "sp": "on"}
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
