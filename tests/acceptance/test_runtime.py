"""Plans run on processes of one computer: the loss and every gradient are those of one process."""

from __future__ import annotations

import json

import pytest
from plans import stated

from planner.errors import PlannerError
from planner.export.targets import export
from planner.runtime.run import Ran, run
from planner.runtime.shrink import Small, shrink

pytestmark = pytest.mark.filterwarnings("ignore")
PLANS = {
    "data": ("h100-sxm:8", "megatron", "zero=0"),
    "fsdp": ("h100-sxm:8", "torchtitan", "zero=3"),
    "fsdp-kept": ("h100-sxm:8", "torchtitan", "zero=2,recompute=full"),
    "hybrid": ("h100-sxm:16", "torchtitan", "zero=3,shard-group=8"),
    "tensor": ("h100-sxm:2", "megatron", "tp=2,sp=off,zero=0"),
    "sequence": ("h100-sxm:2", "megatron", "tp=2,sp=on,zero=0"),
    "checkpointed": ("h100-sxm:2", "megatron", "tp=2,sp=on,zero=0,recompute=full"),
    "pipeline": ("h100-sxm:4", "megatron", "pp=4,zero=0"),
    "gpipe": ("h100-sxm:4", "torchtitan", "pp=4,schedule=gpipe,zero=2"),
    "uneven": ("h100-sxm:6", "megatron", "pp=6,zero=0"),
    "interleaved": ("h100-sxm:4", "megatron", "pp=4,vpp=2,zero=0"),
    "zero-bubble-v": ("h100-sxm:4", "torchtitan", "pp=4,vpp=2,schedule=zbv,zero=2"),
    "tensor-fsdp": ("h100-sxm:16", "torchtitan", "tp=2,zero=3"),
    "tensor-pipeline": ("h100-sxm:8", "megatron", "tp=2,pp=4,dp=1,sp=off,zero=0"),
    "three": ("h100-sxm:32", "torchtitan", "tp=2,pp=4,zero=2"),
}  # fmt: skip


def small(name: str) -> Small:
    cluster, trainer, layout = PLANS[name]
    plan = stated("llama-3-8b", cluster, trainer, layout)
    return shrink(json.loads(export(plan, "dtensor")[0].text))


@pytest.fixture(scope="module")
def ran() -> dict[str, Ran]:
    return dict(zip(PLANS, run([small(name) for name in PLANS]), strict=True))


@pytest.mark.parametrize("name", PLANS)
def test_loss_and_gradients(name: str, ran: dict[str, Ran]) -> None:
    found = ran[name]
    assert not found.fault, found.fault
    assert found.loss == pytest.approx(found.expected, rel=1e-5)
    assert found.worst < 1e-4, found.worst_name
    assert found.equal


@pytest.mark.parametrize("name", ["tensor", "sequence"])
def test_collectives_are_those_that_the_plan_predicts(name: str, ran: dict[str, Ran]) -> None:
    """Kinds and counts of tensor parallelism, forwards and backwards, embedding and head included."""
    assert small(name).collectives
    assert ran[name].counts == small(name).collectives


@pytest.mark.parametrize(("name", "again"), [("fsdp", True), ("fsdp-kept", False)])
def test_weights_are_gathered_as_the_state_sharding_says(
    name: str, again: bool, ran: dict[str, Ran]
) -> None:
    """ZeRO-3 gathers every group of weights in both passes, ZeRO-2 once; both scatter every gradient."""
    groups = small(name).layers + 1  # the last holds embedding, norm and head
    gathers = {
        p: ran[name].counts.get(f"{p} c10d._allgather_base_", 0) for p in ("forward", "backward")
    }
    assert gathers == {"forward": groups, "backward": groups if again else 0}
    assert ran[name].counts["backward c10d._reduce_scatter_base_"] == groups


def test_the_small_plans_keep_the_structure() -> None:
    assert small("data").ranks == 2
    assert (small("hybrid").replicate, small("hybrid").shard) == (2, 2)
    assert small("three").ranks == 8
    assert len(set(small("uneven").visits)) == 2
    assert len(small("interleaved").visits) == 8
    assert small("checkpointed").recompute
    assert not small("tensor").sequence_parallel


def test_a_wrong_split_is_noticed() -> None:
    """The comparison can fail: a projection cut by rows where the plan says columns."""
    from dataclasses import replace

    plan = small("tensor")
    wrong = replace(plan, cuts=plan.cuts | {"mlp.down": "column"})
    assert not run([wrong])[0].equal


def test_what_is_not_run_yet_is_refused() -> None:
    ring = stated("llama-3-8b", "h100-sxm:4", "megatron", "cp=2")
    with pytest.raises(PlannerError, match="cp 2 is not run yet"):
        shrink(json.loads(export(ring, "dtensor")[0].text))
