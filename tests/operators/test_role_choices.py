"""Strategies of all operators on the meshes of roles: the cheapest; Megatron's where nothing is pinned."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.candidates import concatenate, single
from planner.cost.block import block_cost, exposed_share, move_seconds
from planner.cost.operator_cost import operator_cost
from planner.cost.setting import setting
from planner.cost.strategies import BlockKey, roles_of, structure
from planner.frontends.cluster_file import read_cluster
from planner.frontends.model_file import read_model
from planner.graph.architecture import Attention, Experts, LatentAttention, Mlp
from planner.graph.blocks import build_model
from planner.search.pins import Pins
from planner.search.role_choices import apart, cheapest, options
from planner.search.space import build_space
from planner.trainers.registry import get_trainer
from tests.cost.blocks import cluster_of, model_of, task_of
from tests.search.problems import examples

ATTENTION = {
    "all heads": Attention(heads=8, kv_heads=8, head_dim=16, qk_norm="head"),
    "grouped": Attention(heads=8, kv_heads=4, head_dim=16, output_gate=True),
    "latent": LatentAttention(
        heads=8, q_latent=24, kv_latent=16, nope_dim=8, rope_dim=4, value_dim=8
    ),
}
MLP = {
    "plain": Mlp(width=256),
    "experts": Experts(count=8, top_k=2, width=64, shared_width=128, gated=True),
}
MESHES = [{"tp": 4}, {"dp": 2, "tp": 2, "micro_batch": 2}, {"cp": 2, "tp": 4}]


def asked(model, sp):
    """A task under the trainer that takes a strategy for every operator, and a few meshes of eight chips."""
    rows = concatenate([single(**(mesh | {"sp": int(sp)})) for mesh in MESHES])
    task = replace(task_of(model, "mindspore"), cluster=cluster_of(8))
    overhead = replace(task.trainer.overhead, operator=0.0)
    return setting(replace(task, trainer=replace(task.trainer, overhead=overhead)), rows)


def price(s, block, every, choice, sp):
    """Seconds of a block with these options, from its structure as a whole. Shapes: (meshes,)."""
    chosen = tuple(
        (op.name, tuple(splits[k].items()))
        for op, splits, k in zip(block.operators, every, choice, strict=True)
    )
    form = structure(BlockKey(block), roles_of(s.task.trainer, sp=sp), chosen)
    total = np.zeros(len(s.sequences))
    for op, split in zip(block.operators, form.splits, strict=True):
        cost = operator_cost(s, block, op, split)
        total = total + cost.forward + cost.backward
    for move in form.moves:
        total = total + exposed_share(s, move) * move_seconds(s, form, move)
    return total


@given(st.data())
@examples(25)
def test_nothing_is_cheaper(data):
    attention, mlp = (
        data.draw(st.sampled_from(sorted(ATTENTION))),
        data.draw(st.sampled_from(sorted(MLP))),
    )
    sp = data.draw(st.booleans())
    model = model_of(ATTENTION[attention], MLP[mlp], 128, hidden=128, norm="rms")
    s, block = asked(model, sp), model.blocks[0]
    every = options(s.task.trainer, block, {op.name for op in block.operators}, sp=sp)
    free = data.draw(st.sets(st.sampled_from(range(len(every))), max_size=4))
    fixed = [data.draw(st.sampled_from(range(len(some)))) for some in every]
    allowed = [
        None if n in free else np.tile(np.arange(len(some)) == fixed[n], (len(MESHES), 1))
        for n, some in enumerate(every)
    ]
    found = cheapest(s, block, every, allowed, sp=sp)
    choices = [range(len(some)) if n in free else (fixed[n],) for n, some in enumerate(every)]
    all_prices = np.stack([price(s, block, every, one, sp) for one in product(*choices)])
    assert found.seconds == pytest.approx(all_prices.min(axis=0), rel=1e-12)
    for mesh in range(len(MESHES)):
        own = price(s, block, every, found.chosen[mesh], sp)[mesh]
        assert own == pytest.approx(found.seconds[mesh], rel=1e-12)


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("mlp", MLP)
def test_what_shares_no_tensor_is_decided_apart(mlp, sp):
    model = model_of(ATTENTION["latent"], MLP[mlp], 128, hidden=128, norm="rms")
    s, block = asked(model, sp), model.blocks[0]
    every = options(s.task.trainer, block, sp=sp)
    groups = apart(block, every)
    assert len(groups) > (mlp == "experts")
    assert sorted(chain(*groups)) == [n for n, some in enumerate(every) if len(some) > 1]
    free = [None] * len(every)
    whole = cheapest(s, block, every, free, sp=sp)
    for some in groups:
        found = cheapest(s, block, every, free, some, sp=sp)
        assert (found.chosen == whole.chosen[:, some]).all()


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("attention", ATTENTION)
def test_a_block_costs_what_its_choice_said(attention, sp):
    model = model_of(ATTENTION[attention], MLP["plain"], 128, hidden=128, norm="rms")
    s, block = asked(model, sp), model.blocks[0]
    every = options(s.task.trainer, block, sp=sp)
    found = cheapest(s, block, every, [None] * len(every), sp=sp)
    named = tuple(
        (op.name, tuple(splits[k].items()))
        for op, splits, k in zip(block.operators, every, found.chosen[0].tolist(), strict=True)
    )
    task = replace(s.task, operators=({block.name: named},))
    cost = block_cost(setting(task, s.rows.take(slice(0, 2))), block, sp=sp)
    seconds = cost.exposed_forward + cost.exposed_backward
    assert seconds[0] == pytest.approx(found.seconds[0], rel=1e-12)
    assert (seconds >= found.seconds[:2] * (1 - 1e-12)).all()


@pytest.mark.parametrize(
    ("name", "chips"), [("gpt3-1.3b", "a100-sxm-80gb:8"), ("llama-3-70b", "910b2:256")]
)
def test_the_published_pairs_are_found_on_every_mesh(name, chips):
    model = build_model(read_model(name), 2048)
    task = replace(task_of(model, "mindspore"), cluster=read_cluster(chips))
    rows = build_space(task, Pins()).candidates
    rows = rows.take(
        np.unique(
            np.stack([rows.tp, rows.cp, rows.micro_batch, rows.sp]), axis=1, return_index=True
        )[1]
    )
    assert len(set(rows.tp.tolist())) > 1 or name == "gpt3-1.3b"
    for sp in (False, True):
        some = rows.take(rows.sp == sp)
        for block in (*model.blocks, model.head):
            every = options(task.trainer, block, sp=sp)
            if len(some):
                found = cheapest(setting(task, some), block, every, [None] * len(every), sp=sp)
                assert not found.chosen.any()


def test_trainers_with_roles_have_no_choice():
    model = build_model(read_model("deepseek-v3"), 4096)
    for trainer in map(get_trainer, ("megatron", "torchtitan", "fsdp")):
        for block in model.all_blocks():
            assert all(len(some) == 1 for some in options(trainer, block, sp=True))
