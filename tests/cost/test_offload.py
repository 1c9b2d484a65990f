"""Offload to host memory: what leaves the chip and what it costs, by hand and as properties."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.candidates import OFFLOAD, RECOMPUTE, concatenate, single
from planner.cost.memory import TERMS
from planner.cost.offload import HOST_EFFICIENCY, activation_copies, offloaded
from planner.cost.optimizers import orthogonal_seconds
from planner.cost.prices import block_seconds, prices, step_bound
from planner.cost.setting import axis_members
from planner.cost.states import state_cost
from planner.cost.step import exact, memory_of_stages, stage_times
from planner.graph.architecture import Attention, Mlp
from planner.trainers.registry import TRAINERS
from planner.trainers.rules import allowed
from tests.cost.blocks import cluster_of, gpt, model_of, task_of
from tests.search.problems import examples, space_of, tasks

FULL = RECOMPUTE.index("full")
NONE, OPTIMIZER, STATES, ACTIVATIONS = range(4)


def simple(trainer, chips=8, **facts):
    model = model_of(Attention(heads=8, kv_heads=8, head_dim=8), Mlp(width=64), 64)
    task = task_of(model, trainer, chips)
    return replace(task, cluster=cluster_of(chips, chips_per_host=8, **facts))


def states(task, row):
    return offloaded(task, row, state_cost(task, row, axis_members(task, row)))


@pytest.mark.parametrize(
    ("trainer", "sharding", "offload", "chip", "host"),
    [
        # DeepSpeed's estimate_zero2_model_states_mem_needs: 2 P on the GPU, 16 P / n on the CPU
        ("deepspeed", 2, OPTIMIZER, 2.0, 16 / 8),
        # estimate_zero3_model_states_mem_needs: 2 P / n and 16 P / n, or nothing but layers and 18 P / n
        ("deepspeed", 3, OPTIMIZER, 2 / 8, 16 / 8),
        ("deepspeed", 3, STATES, 0.0, 18 / 8),
        # FSDP2's CPUOffloadPolicy: fp32 weights, gradients and two moments
        ("torchtitan", 3, STATES, 0.0, 16 / 8),
        # Megatron keeps its gradient buffer: 6 bytes a parameter stay (verl #3019)
        ("megatron", 1, OPTIMIZER, 6.0, 16 / 8),
    ],
)
def test_bytes_a_parameter_on_chip_and_host(trainer, sharding, offload, chip, host):
    found = states(simple(trainer), single(dp=8, sharding=sharding, offload=offload))
    kept = found.weights + found.gradients + found.optimizer + found.gathered
    assert kept[0, 0] == pytest.approx(chip)
    assert found.host[0, 0] == pytest.approx(host)


def test_what_is_not_moved_costs_what_it_did():
    task = simple("deepspeed")
    row = single(dp=8, sharding=3)
    plain = state_cost(task, row, axis_members(task, row))
    assert offloaded(task, row, plain) is plain
    both = concatenate([row, single(dp=8, sharding=3, offload=STATES)])
    mixed = states(task, both)
    for name in ("weights", "optimizer", "each_forward", "each_backward", "update"):
        assert getattr(mixed, name)[:, 0].tolist() == getattr(plain, name)[:, 0].tolist()


@pytest.mark.parametrize(("billions", "seconds"), [(1, 0.22), (2, 0.51), (4, 1.03), (10, 2.57)])
def test_the_update_of_cpu_adam_on_two_xeons(billions, seconds):
    """ZeRO-Offload (arXiv 2101.06840), table 4: two Xeon 8168, 256 GB/s."""
    task = simple("deepspeed", 1, host_memory_bandwidth=256e9 / 8)
    update = states(task, single(sharding=2, offload=OPTIMIZER)).update[0, 0]
    assert billions * 1e9 * update == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize(
    ("share", "measured", "within"),
    [("-25%", 0.875, 0.17), ("-50%", 1.488, 0.03), ("-75%", 2.191, 0.03), ("", 2.881, 0.03)],
)
def test_the_update_of_megatron_on_hosts_of_eight(share, measured, within):
    """Megatron-Bridge's card of cpu-offloading: Qwen3-30B-A3B on 16 H100, beyond 996 ms on the chips alone."""
    task = simple("megatron", host_bandwidth=51e9, host_memory_bandwidth=76.8e9)
    kind = OFFLOAD.index(f"optimizer{share}")
    update = states(task, single(dp=8, sharding=1, offload=kind)).update[0, 0]
    assert 30.5e9 / 2 * update == pytest.approx(measured, rel=within)


def test_copies_and_update_by_hand():
    """Down 2 bytes behind every backward pass, up 2 beside the update (DeepSpeed); 30 bytes a parameter on the host."""
    task = simple("deepspeed", host_memory_bandwidth=4e10, host_sharers=2)
    rate = 2.5e10
    before = states(task, single(dp=8, sharding=2))
    found = states(task, single(dp=8, sharding=2, offload=OPTIMIZER))
    assert found.update[0, 0] == pytest.approx(30 / 8 / (HOST_EFFICIENCY * 4e10))
    down = found.each_backward[0, 0] - before.each_backward[0, 0]
    assert down == pytest.approx(2 / 8 / rate)
    weights = states(task, single(dp=8, sharding=3, offload=STATES))
    there = states(task, single(dp=8, sharding=3))
    assert weights.each_forward[0, 0] - there.each_forward[0, 0] == pytest.approx(2 / 8 / rate)
    slow = replace(task, cluster=replace(task.cluster, host_bandwidth=1e6))
    assert states(slow, single(dp=8, sharding=2, offload=OPTIMIZER)).update[0, 0] == pytest.approx(
        2 / 8 / 5e5
    )


@pytest.mark.parametrize("percent", [25, 50, 75])
def test_a_share_of_the_optimizer_moves_that_share(percent):
    """Chip and host update their parts at the same time; the share's states and gradients are on the host."""
    share, part = percent / 100, OFFLOAD.index(f"optimizer-{percent}%")
    task = simple("megatron", host_bandwidth=1e10)
    none, some, whole = (
        states(task, single(dp=8, sharding=1, offload=kind)) for kind in (0, part, OPTIMIZER)
    )
    assert some.optimizer == pytest.approx((1 - share) * none.optimizer)
    assert some.host == pytest.approx(share * whole.host)
    assert some.temporary == pytest.approx((1 - share) * none.temporary + share * whole.temporary)
    assert some.update == pytest.approx(np.maximum(share * whole.update, (1 - share) * none.update))
    assert (some.gradients == none.gradients).all()


def test_a_share_leaves_the_chip_where_the_trainer_can():
    """DeepSpeed's ratio needs ZeRO-3; torchtitan and MindFormers have none."""
    kind = OFFLOAD.index("optimizer-50%")
    for trainer, sharding, can in (
        ("megatron", 1, True), ("megatron", 0, False), ("fsdp", 3, True), ("fsdp", 2, False),
        ("torchtitan", 3, False), ("mindspore", 1, False),
    ):  # fmt: skip
        task = simple(trainer)
        row = single(dp=8, sharding=sharding, offload=kind)
        rules = [rule for rule in task.trainer.rules if rule.name.startswith("offload")]
        assert all(rule.keeps(task, row)[0] for rule in rules) == can, trainer


@pytest.mark.parametrize("percent", [25, 50, 75, 100])
def test_muons_products_stay_on_the_chip(percent):
    """A host has a thousandth of the chip's FLOP/s; the same layout is never faster with its states there."""
    task = simple("megatron", host_bandwidth=1e10)
    task = replace(task, recipe=replace(task.recipe, optimizer="muon"))
    kind = OFFLOAD.index("optimizer" if percent == 100 else f"optimizer-{percent}%")
    none, some = (states(task, single(dp=8, sharding=1, offload=k)) for k in (0, kind))
    products = orthogonal_seconds(task)[0, 0] / 8
    assert some.update[0, 0] > products > 0
    assert (some.update >= none.update * (1 - 1e-9)).all()


def test_gradients_of_megatron_go_down_once_a_step():
    task = simple("megatron", host_bandwidth=1e8)
    found = states(task, single(dp=8, sharding=1, offload=OPTIMIZER))
    assert found.update[0, 0] == pytest.approx(4 / 8 / 1e8)
    assert (found.each_backward == 0).all()


def test_a_job_smaller_than_its_host_has_all_of_it():
    """A V100 of a DGX-2 alone copies at 12 GB/s, 16 at 3 each (ZeRO-Infinity, section 4)."""
    facts = {"host_bandwidth": 12e9, "host_sharers": 4, "host_memory": 96e9, "chips_per_host": 16}
    one, all_of_them = cluster_of(1, **facts).host, cluster_of(16, **facts).host
    assert (one.rate, all_of_them.rate) == (12e9, 3e9)
    assert (one.memory, all_of_them.memory) == (16 * 96e9, 96e9)
    assert cluster_of(16).host.memory == np.inf


def test_activations_leave_and_come_back_behind_a_layer():
    """A layer of the classic block keeps s b h (34 + 5 a s / h) bytes; two layers stay on the chip."""
    s, h, a, layers = 64, 256, 4, 6
    model = replace(gpt(s, h, a), layers=(0,) * layers)
    task = task_of(model, chips=1, global_batch=4, fused_attention=False)
    rows = concatenate([single(sharding=0), single(sharding=0, offload=ACTIVATIONS)])
    p = prices(task, rows)
    layer = s * h * (34 + 5 * a * s / h)
    found = memory_of_stages(p, stage_times(p).blocks)
    kept = found.parts[:, 0, TERMS.index("activations")]
    embedding = s * h + s * 8
    assert kept[0] - kept[1] == pytest.approx((layers - 2) * layer + embedding)
    assert found.host[:, 0].tolist() == pytest.approx([0.0, layers * layer + embedding])
    forward, backward = block_seconds(p)
    share, copy = task.trainer.offload.exposed, layer / task.cluster.host.rate
    for seconds in (forward, backward):
        exposed = max(share * copy, copy - seconds[0, 1])
        assert seconds[1, 1] - seconds[0, 1] == pytest.approx(exposed)


@given(st.floats(0, 1e9), st.floats(0, 1), st.floats(0, 1))
@examples(50)
def test_copies_are_exposed_by_a_share_or_by_what_a_layer_is_too_short_for(size, forward, backward):
    task = simple("megatron")
    there, back, copy = activation_copies(
        task, np.array([[size]]), np.array([[forward]]), np.array([[backward]])
    )
    assert copy == pytest.approx(size / task.cluster.host.rate)
    assert there == pytest.approx(max(0.1 * copy, copy - forward))
    assert back == pytest.approx(max(0.1 * copy, copy - backward))


@st.composite
def pairs(draw):
    """A task, and the rows that keep something in host memory beside the same without."""
    task = draw(tasks(most_chips=4))
    rows = space_of(task)
    assume(len(rows))
    chosen = np.random.default_rng(draw(st.integers(0, 1000))).integers(0, len(rows), 40)
    plain = rows.take(chosen)
    moved = replace(plain, offload=1 + chosen % (len(OFFLOAD) - 1))
    possible = allowed(task, moved)
    assume(possible.any())
    return task, moved.take(possible), plain.take(possible)


@given(pairs())
@examples(20)
def test_host_memory_never_fills_the_chip_nor_makes_it_faster_than_its_own_optimizer(case):
    """Less on the chip, more on the host; a step is faster only by the pass over states that the host does."""
    task, rows, plain = case
    before, after = prices(task, plain), prices(task, rows)
    there, here = exact(before), exact(after)
    assert (here.memory <= there.memory * (1 + 1e-12)).all()
    assert (here.host > 0).all()
    assert (there.host == 0).all()
    saved = [float(stage_times(before.take(np.array([i]))).update.max()) for i in range(len(plain))]
    assert (here.step >= there.step - np.array(saved) - 1e-12).all()
    assert (step_bound(after) <= here.step * (1 + 1e-9)).all()


@given(pairs(), st.sampled_from([2, 10, 1000]))
@examples(12)
def test_a_slower_host_is_never_faster_and_holds_as_much(case, factor):
    task, rows, _ = case
    c = task.cluster
    slow = replace(c, host_bandwidth=c.host_bandwidth / factor)
    slower = replace(slow, host_memory_bandwidth=c.host_memory_bandwidth / factor)
    found = [exact(prices(replace(task, cluster=x), rows)) for x in (c, slow, slower)]
    for before, after in pairwise(found):
        assert (after.step >= before.step * (1 - 1e-12)).all()
        assert after.host.tolist() == before.host.tolist()
        assert after.memory.tolist() == before.memory.tolist()


def test_every_trainer_can_move_what_it_says():
    for trainer in TRAINERS:
        assert trainer.offload.kinds[0] == 0
        assert (len(trainer.offload.kinds) > 1) == (trainer.name != "mindspeed")
        assert trainer.offload.source
        task = simple(trainer.name)
        sharding = max(trainer.shardings)
        for kind in trainer.offload.kinds:
            mode = FULL if trainer.offload.checkpoints else 0
            row = single(dp=8, sharding=sharding, offload=kind, recompute=mode)
            assert all(rule.keeps(task, row)[0] for rule in trainer.rules if "offload" in rule.name)
            p = prices(task, row)
            found = memory_of_stages(p, stage_times(p).blocks)
            assert (found.host > 0).all() == (kind > 0)


def test_names_say_what_is_in_host_memory():
    rows = concatenate([single(offload=index) for index in range(len(OFFLOAD))])
    assert rows.in_host("optimizer").tolist() == [False, True, True, False, True, True, *[True] * 3]
    assert rows.optimizer_in_host.tolist() == [0, 1, 1, 0, 1, 1, 0.25, 0.5, 0.75]
    assert rows.in_host("states").tolist() == [False, False, True, False, False, True, *[False] * 3]
    assert rows.in_host("activations").tolist() == [
        False,
        False,
        False,
        True,
        True,
        True,
        *[False] * 3,
    ]
