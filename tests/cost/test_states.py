"""Weights, gradients and optimizer states: bytes by sharding, who holds what, and what keeps them in step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.candidates import SHARDING, Candidates, concatenate, single
from planner.cost.block import weight_elements
from planner.cost.collectives import collective
from planner.cost.setting import axis_members
from planner.cost.states import BUCKET, StateCost, state_bytes, state_cost
from planner.graph.architecture import Attention, Experts, LatentAttention, Mlp
from planner.recipe import MOMENT_BYTES
from planner.trainers.registry import TRAINERS, get_trainer
from tests.cost.blocks import Priced, cluster_of, level_of, model_of, priced, task_of
from tests.search.problems import examples

many = examples(60)
NONE, ZERO_1, ZERO_2, ZERO_3 = range(4)


def simple(trainer="megatron", chips=8, **recipe):
    model = model_of(Attention(heads=8, kv_heads=8, head_dim=8), Mlp(width=64), 64)
    return task_of(model, trainer, chips, **recipe)


def cost(task, rows: Candidates) -> StateCost:
    return state_cost(task, rows, axis_members(task, rows))


def kept(found: StateCost) -> float:
    return float((found.weights + found.gradients + found.optimizer + found.gathered)[0, 0])


@pytest.mark.parametrize(
    ("trainer", "level", "expected"),
    [
        ("megatron", NONE, 2 + 4 + 12),
        ("megatron", ZERO_1, 6 + 12 / 8),
        ("mindspore", ZERO_1, 6 + 12 / 8),
        ("fsdp", ZERO_1, 2 + 4 + 12 / 8),
        ("torchtitan", ZERO_2, 2 + 16 / 8),
        ("torchtitan", ZERO_3, 16 / 8),
        ("fsdp", ZERO_3, 16 / 8),
    ],
)
def test_bytes_a_parameter_on_eight_data_ranks(trainer, level, expected):
    """bf16 weights 2, fp32 gradients 4, fp32 master and two moments 12 (ZeRO, 1910.02054, section 3)."""
    task = simple(trainer)
    assert kept(cost(task, single(dp=8, sharding=level))) == pytest.approx(expected)


MOMENTS = {
    "adamw": 2 * 4,
    "adamw-bf16": 2 * 2,
    "adamw-8bit": 2 * 1,
    "sgd": 4,
    "lion": 4,
    "muon": 4,
    "adafactor": 0,
}
"""Two moments in 32, 16 or 8 bits; one; those of rows and columns alone."""


@pytest.mark.parametrize("optimizer", list(MOMENT_BYTES))
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8", "fp32"])
def test_bytes_by_precision_and_optimizer(optimizer, precision):
    sizes = state_bytes(simple(optimizer=optimizer, precision=precision))
    full = precision == "fp32"
    assert sizes.weights == (4 if full else 2)
    assert sizes.gradients == 4
    assert sizes.optimizer == MOMENTS[optimizer] + (0 if full else 4)


@pytest.mark.parametrize("trainer", [t.name for t in TRAINERS])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_sharding_more_and_over_more_ranks_never_keeps_more(trainer, precision):
    task = simple(trainer, chips=16, precision=precision)
    before = np.inf
    for level in get_trainer(trainer).shardings:
        rows = [single(dp=16, sharding=level, shard_group=g) for g in (1, 2, 4, 8, 16)]
        found = cost(task, concatenate(rows))
        total = (found.weights + found.gradients + found.optimizer)[0]
        assert (np.diff(total) <= 0).all()
        assert total[-1] + found.gathered[0, -1] <= before
        before = total[-1] + found.gathered[0, -1]


def test_gradients_without_a_buffer_are_sharded_unless_micro_batches_accumulate():
    task = simple("mindspore", global_batch=16)
    once, twice = single(dp=8, sharding=ZERO_1, micro_batch=2), single(dp=8, sharding=ZERO_1)
    assert kept(cost(task, once)) == pytest.approx(2 + (4 + 12) / 8)
    assert kept(cost(task, twice)) == pytest.approx(6 + 12 / 8)
    assert kept(cost(task, replace(twice, sharding=once.sharding * 0))) == 18


def test_gradients_stay_whole_between_stages_under_torch():
    """torch.distributed.pipelining reduces FSDP's gradients with the last micro-batch."""
    task = simple("torchtitan", chips=16)
    alone, staged = single(dp=8, sharding=ZERO_3), single(dp=8, pp=2, sharding=ZERO_3)
    assert cost(task, alone).gradients[0, 0] == 4 / 8
    assert cost(task, staged).gradients[0, 0] == 4


def test_stages_under_torch_reduce_once_and_gather_what_a_forward_pass_finds_sharded():
    """torch 2.13 pipelining: m + 1 gathers of ZeRO-3 for m micro-batches, one of ZeRO-2, one reduction of either."""
    task = simple("torchtitan", chips=16, global_batch=64)

    def traffic(level, pp):
        found = cost(task, single(dp=8, pp=pp, sharding=level))
        return [float(each[0, 0]) for each in (found.once, found.each_forward, found.each_backward)]

    _, gather, back = traffic(ZERO_3, 1)
    scatter = back - gather
    assert traffic(ZERO_3, 2) == pytest.approx([gather + scatter, gather, 0.0])
    assert traffic(ZERO_2, 2) == pytest.approx([gather + scatter, 0.0, 0.0])
    assert traffic(ZERO_2, 1) == pytest.approx([0.0, gather, scatter])


def test_gradients_reduced_once_a_step_are_whole_until_then():
    """Alpa's ZeRO-2 plans: what the reduce-scatter frees was there when the backward pass ended."""
    task = simple("torchtitan")
    once = replace(task, trainer=replace(task.trainer, reduces_each=False))
    rows = single(dp=8, sharding=ZERO_2)
    less = task.trainer.memory.gradient_bytes * (1 - 1 / 8)
    assert cost(once, rows).temporary[0, 0] - cost(task, rows).temporary[0, 0] == less
    rows = single(dp=8, sharding=ZERO_3)
    assert cost(once, rows).temporary[0, 0] == cost(task, rows).temporary[0, 0]


LEVELS = (level_of(4, name="node", bandwidth=4e11, latency=1e-6), level_of(name="network"))


@given(st.sampled_from([2, 4, 8, 16]), st.sampled_from([1, 2, 4]), st.sampled_from(TRAINERS))
@many
def test_traffic_of_data_parallelism(dp, tp, trainer):
    """Gradients as the trainer keeps them and 2-byte weights, over the levels that the data ranks cross."""
    task = simple(trainer.name)
    task = replace(task, cluster=cluster_of(dp * tp, *LEVELS))
    where = axis_members(task, single(dp=dp, tp=tp))["dp"]
    seconds = {
        kind: float(collective(kind, BUCKET, where, task.cluster)[0]) / BUCKET
        for kind in ("all-reduce", "reduce-scatter", "all-gather")
    }
    grad = trainer.memory.gradient_bytes
    gather, scatter = 2 * seconds["all-gather"], grad * seconds["reduce-scatter"]
    found = [cost(task, single(dp=dp, tp=tp, sharding=level)) for level in range(4)]
    assert found[NONE].once[0, 0] == pytest.approx(grad * seconds["all-reduce"])
    assert found[ZERO_1].once[0, 0] == pytest.approx(scatter + gather)
    for level in (NONE, ZERO_1):
        assert found[level].each_forward[0, 0] == found[level].each_backward[0, 0] == 0
    assert found[ZERO_3].each_forward[0, 0] == pytest.approx(gather)
    assert found[ZERO_3].each_backward[0, 0] == pytest.approx(gather + scatter)
    assert found[ZERO_3].once[0, 0] == pytest.approx(0)
    two = found[ZERO_2]
    whole = two.once + two.each_forward + two.each_backward
    assert whole[0, 0] == pytest.approx(gather + scatter)


@pytest.mark.parametrize("level", range(4))
def test_alone_there_is_no_traffic(level):
    found = cost(simple("torchtitan", chips=8), single(tp=8, etp=8, sharding=level))
    assert found.once.sum() == found.each_forward.sum() == found.each_backward.sum() == 0


def test_copies_of_a_shard_group_reduce_only_their_shard():
    task = replace(simple("torchtitan"), cluster=cluster_of(16, *LEVELS))
    found = cost(task, single(dp=16, sharding=ZERO_3, shard_group=4))
    inside, between = np.array([[4], [1]]), np.array([[1], [4]])
    across = float(collective("all-reduce", BUCKET, between, task.cluster)[0]) / BUCKET
    gather = float(collective("all-gather", BUCKET, inside, task.cluster)[0]) / BUCKET
    assert found.once[0, 0] == pytest.approx(4 * across / 4)
    assert found.each_forward[0, 0] == pytest.approx(2 * gather)


@pytest.mark.parametrize(("order", "inside"), [(0, 4), (1, 1)])
def test_a_shard_group_crosses_nodes_where_stages_lie_inside_data_parallelism(order, inside):
    """tp 2, pp 4 on nodes of eight: with stages inside, every data rank stands on a node of its own."""
    node = (level_of(8, name="node", bandwidth=4e11, latency=1e-6), level_of(name="network"))
    task = replace(simple("megatron"), cluster=cluster_of(64, *node))
    row = single(dp=8, tp=2, pp=4, sharding=ZERO_1, shard_group=4, order=order)
    where = np.array([[inside], [4 // inside]])
    found = cost(task, row).once[0, 0]
    seconds = [
        float(collective(kind, BUCKET, where, task.cluster)[0]) / BUCKET
        for kind in ("reduce-scatter", "all-gather")
    ]
    copies = np.array([[1], [2]])
    between = float(collective("all-reduce", BUCKET, copies, task.cluster)[0]) / BUCKET
    assert found == pytest.approx(4 * seconds[0] + 2 * seconds[1] + 4 * between / 4)


def test_experts_are_kept_in_step_by_their_replicas_only():
    model = model_of(
        Attention(heads=8, kv_heads=8, head_dim=8), Experts(count=8, top_k=2, width=8), 64
    )
    task = replace(task_of(model), cluster=cluster_of(16, *LEVELS))
    all_different = cost(task, single(dp=8, ep=8, sharding=ZERO_1))
    assert all_different.once[1, 0] == 0
    assert all_different.optimizer[1, 0] == 12
    two = cost(task, single(dp=16, ep=8, sharding=ZERO_1))
    assert two.once[1, 0] > 0
    assert two.optimizer[:, 0].tolist() == [12 / 16, 12 / 2]


def elements(found: Priced) -> dict[str, float]:
    """Elements of every weight on a rank."""
    sizes = weight_elements(found.setting, found.form)
    return {name: float(size.ravel()[0]) for name, size in sizes.items()}


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([1, 2, 4, 8]))
@many
def test_ranks_beyond_the_key_heads_hold_copies(tp, groups):
    h, d = 64, 8
    model = model_of(Attention(heads=32, kv_heads=groups, head_dim=d), Mlp(width=32), 64, hidden=h)
    found = priced(model, model.blocks[0], tp=tp)
    sizes = elements(found)
    assert sizes["layer.attn.kv.weight"] == h * 2 * max(1, groups / tp) * d
    assert sizes["layer.attn.q.weight"] == h * 32 / tp * d


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
@many
def test_experts_lie_on_ep_and_etp_the_rest_on_tp(tp, ep, etp):
    h = 64
    mlp = Experts(count=8, top_k=2, width=32, shared_width=16)
    model = model_of(Attention(heads=8, kv_heads=8, head_dim=8), mlp, 64, hidden=h)
    found = priced(model, model.blocks[0], dp=8, tp=tp, ep=ep, etp=etp, sp=int(tp > 1))
    sizes = elements(found)
    assert sizes["layer.moe.up.weight"] == 8 * h * 2 * 32 / (ep * etp)
    assert sizes["layer.moe.down.weight"] == 8 * h * 32 / (ep * etp)
    assert sizes["layer.moe.router.weight"] == h * 8
    assert sizes["layer.shared.up.weight"] == h * 2 * 16 / tp
    assert sizes["layer.norm1.weight"] == h


def test_latent_projections_are_whole_on_every_rank_and_heads_are_split():
    latent = LatentAttention(
        heads=8, q_latent=24, kv_latent=16, nope_dim=8, rope_dim=4, value_dim=6
    )
    model = model_of(latent, Mlp(width=32), 64)
    found = priced(model, model.blocks[0], tp=4)
    sizes = elements(found)
    assert sizes["layer.attn.q_down.weight"] == 64 * 24
    assert sizes["layer.attn.kv_down.weight"] == 64 * 20
    assert sizes["layer.attn.q_up.weight"] == 24 * 2 * 12
    assert sizes["layer.attn.kv_up.weight"] == 16 * 2 * 14
    assert sizes["layer.attn.out.weight"] == 2 * 6 * 64


@pytest.mark.parametrize(
    ("trainer", "vocab", "tp", "rows"),
    [
        ("megatron", 50257, 1, 50304),
        ("megatron", 50257, 8, 51200 / 8),
        ("torchtitan", 50257, 8, 50264 / 8),
        ("mindspore", 50264, 8, 50264 / 8),
    ],
)
def test_the_fullest_rank_of_a_split_vocabulary(trainer, vocab, tp, rows):
    model = model_of(Attention(heads=8, kv_heads=8, head_dim=8), Mlp(width=32), 64, vocab=vocab)
    found = priced(model, model.embedding, trainer, tp=tp)
    assert elements(found)["embedding.table"] == rows * 64


def test_names_of_sharding_are_the_levels_used_here():
    assert SHARDING == ("none", "ZeRO-1", "ZeRO-2", "ZeRO-3")


def test_gradients_that_wait_for_the_last_micro_batch_are_whole_and_reduced_once():
    """fp32 gradients of every weight on each of eight ranks (set_requires_gradient_sync); one reduction, not four."""
    task = simple("torchtitan", global_batch=32)
    memory = replace(task.trainer.memory, accumulates_whole=True)
    waits = replace(task, trainer=replace(task.trainer, memory=memory))
    rows = single(dp=8, sharding=ZERO_3)
    each, once = cost(task, rows), cost(waits, rows)
    assert once.gradients[0, 0] == 4.0 == 8 * each.gradients[0, 0]
    assert once.weights[0, 0] == each.weights[0, 0]
    moved = each.each_backward[0, 0] - once.each_backward[0, 0]
    assert once.once[0, 0] - each.once[0, 0] == pytest.approx(moved)
    assert moved > 0
    alone = replace(waits, recipe=replace(waits.recipe, global_batch=8))
    assert cost(alone, rows).gradients[0, 0] == each.gradients[0, 0]
