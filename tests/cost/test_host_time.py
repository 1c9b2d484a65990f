"""The host's time counts operators and collectives; losses move what their code moves; messages grow with the ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.candidates import Candidates, single
from planner.cost import kernels
from planner.cost.block import APART, SORTED, WAITING, BlockCost, block_cost, block_structure
from planner.cost.setting import axis_members, setting
from planner.cost.states import state_cost
from planner.graph.architecture import Attention, Mlp
from planner.question import Question, understand
from planner.trainers.trainer import Task
from tests.cost.blocks import model_of

HOST = 0.01
"""Seconds an operator: far more than any of them runs."""


def task(*, engine: bool = False, **overhead: float | str) -> Task:
    found = understand(
        Question(model="llama-3-8b", cluster="h100-sxm:16", trainer="megatron", global_batch=16)
    ).task
    changed = replace(found.trainer.overhead, engine=engine, **overhead)
    return replace(found, trainer=replace(found.trainer, overhead=changed))


def layer(question: Task, rows: Candidates) -> BlockCost:
    return block_cost(setting(question, rows), question.model.blocks[0], sp=False)


def test_a_block_takes_no_less_than_its_launches() -> None:
    rows = single(dp=16, shard_group=16)
    slow, fast = layer(task(operator=HOST), rows), layer(task(operator=0.0), rows)
    count = len(task().model.blocks[0].operators)
    assert slow.forward[0] == pytest.approx(HOST * count)
    assert slow.backward[0] == pytest.approx(2 * HOST * count)
    assert slow.recompute["full"][0] == pytest.approx(HOST * count)
    assert slow.recompute["none"][0] == 0
    assert 0 < fast.forward[0] < slow.forward[0]
    assert fast.recompute["full"][0] == pytest.approx(fast.forward[0])


def test_transformer_engine_launches_norms_with_products_and_keys_with_queries() -> None:
    rows = single(dp=16, shard_group=16)
    apart, joined = (layer(task(operator=HOST, engine=engine), rows) for engine in (False, True))
    assert apart.forward[0] - joined.forward[0] == pytest.approx(
        3 * HOST
    )  # two norms, keys and values
    assert apart.backward[0] - joined.backward[0] == pytest.approx(2 * 3 * HOST)


@pytest.mark.parametrize("fused", [False, True])
def test_routers_and_exchanges_of_tokens_launch_several_kernels_unless_one_does_it_all(
    fused: bool,
) -> None:
    question = understand(
        Question(model="mixtral-8x7b", cluster="h100-sxm:16", trainer="megatron", global_batch=16)
    ).task
    overhead = replace(question.trainer.overhead, operator=HOST, engine=False)
    trainer = replace(question.trainer, overhead=overhead, sends_once=fused)
    found = layer(replace(question, trainer=trainer), single(dp=16, shard_group=16))
    operators = question.model.blocks[0].operators
    sorting = {"moe.top_k", "moe.dispatch", "moe.combine"}
    assert sorting < {op.name for op in operators}
    launches = len(operators) + (0 if fused else (SORTED - 1) * len(sorting))
    assert found.forward[0] == pytest.approx(HOST * launches)
    assert found.backward[0] == pytest.approx(2 * HOST * launches)


def test_launches_add_to_compute_where_the_host_waits_for_every_kernel() -> None:
    rows = single(dp=8, tp=2, shard_group=8)
    host = 1e-5
    each = WAITING["kernels"] * host
    free, beside, waiting = (
        layer(task(operator=seconds, waits_for=what), rows)
        for seconds, what in ((0.0, "nothing"), (host, "nothing"), (host, "kernels"))
    )
    form = block_structure(setting(task(), rows), task().model.blocks[0], sp=False)
    count = len(task().model.blocks[0].operators)
    forward = count + sum(move.phase == "forward" and move.axis == "tp" for move in form.moves)
    backward = count + sum(move.phase == "backward" and move.axis == "tp" for move in form.moves)
    assert beside.forward == pytest.approx(free.forward)
    assert waiting.forward[0] - free.forward[0] == pytest.approx(each * forward)
    assert waiting.backward[0] - free.backward[0] == pytest.approx(2 * each * backward)
    again = waiting.recompute["full"][0] - free.recompute["full"][0]
    assert again == pytest.approx(each * forward)
    assert waiting.recompute["none"][0] == 0


def test_launches_add_to_compute_between_collectives_that_the_host_waits_for() -> None:
    host = 1e-5
    for rows, adds in ((single(dp=8, tp=2, shard_group=8), True), (single(dp=16), False)):
        free, waiting = (
            layer(task(operator=seconds, waits_for="collectives"), rows) for seconds in (0.0, host)
        )
        operators = len(task().model.blocks[0].operators)
        launched = host * (operators + 2) if adds else 0.0
        assert waiting.forward[0] - free.forward[0] == pytest.approx(launched)
        assert waiting.backward[0] - free.backward[0] == pytest.approx(2 * launched)


@pytest.mark.parametrize(("tp", "times"), [(4, 1.0), (8, 1.25)])
def test_the_slowest_of_eight_processes_launches(tp: int, times: float) -> None:
    rows = single(dp=16 // tp, tp=tp, shard_group=16 // tp)
    alike, apart = (layer(task(operator=HOST, slowest=factor), rows) for factor in (1.0, 1.25))
    waited = alike.traffic["tp"].exposed_forward[0]
    assert apart.forward[0] + waited == pytest.approx(times * (alike.forward[0] + waited))


@pytest.mark.parametrize(
    ("softmax", "tp", "micro", "apart"),
    [
        ("always", 8, 1, False),
        ("by four", 8, 1, True),
        ("by four", 8, 2, False),
        ("by four", 4, 1, False),
        ("never", 4, 1, True),
    ],
)
def test_scores_of_a_rank_that_no_fused_softmax_takes(
    softmax: str, tp: int, micro: int, apart: bool
) -> None:
    """16 heads: 2 matrices of scores a sequence with tp 8, 4 with tp 4."""
    model = model_of(Attention(heads=16, kv_heads=16, head_dim=64), Mlp(width=64), 64, fused=False)
    rows = single(dp=16 // tp, tp=tp, micro_batch=micro)
    plain, found = (
        layer(replace(task(operator=HOST, softmax=how), model=model), rows)
        for how in ("always", softmax)
    )
    more = APART * HOST if apart else 0.0
    assert found.forward[0] - plain.forward[0] == pytest.approx(more)
    assert found.backward[0] - plain.backward[0] == pytest.approx(more)


def test_collectives_are_launched_where_their_axis_is_split() -> None:
    question = task(operator=HOST)
    rows = single(dp=8, tp=2, shard_group=8)
    form = block_structure(setting(question, rows), question.model.blocks[0], sp=False)
    moves = sum(move.phase == "forward" and move.axis == "tp" for move in form.moves)
    assert moves == 2
    split, whole = layer(question, rows), layer(question, single(dp=16, shard_group=16))
    waited = split.traffic["tp"].exposed_forward[0]
    assert split.forward[0] + waited == pytest.approx(whole.forward[0] + moves * HOST)


def test_losses_move_what_their_code_moves() -> None:
    rows = single(dp=16, shard_group=16)
    seconds = {}
    for loss in kernels.LOSS:
        question = task(operator=0.0)
        question = replace(question, trainer=replace(question.trainer, loss=loss))
        seconds[loss] = block_cost(setting(question, rows), question.model.head, sp=False).forward[
            0
        ]
    logits = 8192 * 128256
    chip = task().cluster.chip
    more = (38.0 - 8.0) * logits / (chip.memory_bandwidth * chip.memory_efficiency)
    assert seconds["megatron"] - seconds["fused"] == pytest.approx(more)
    assert seconds["fused"] < seconds["torch"] < seconds["megatron"]


def test_gathered_logits_cost_every_tp_rank_the_whole_loss() -> None:
    rows = single(dp=2, tp=8, shard_group=2)
    split = task(operator=0.0)
    memory = replace(split.trainer.memory, logit_whole_bytes=20.0)
    whole = replace(split, trainer=replace(split.trainer, memory=memory))
    heads = [block_cost(setting(q, rows), q.model.head, sp=False) for q in (split, whole)]
    assert heads[1].forward[0] > heads[0].forward[0]
    assert heads[1].backward[0] > heads[0].backward[0]


def test_larger_messages_make_a_reduction_no_slower() -> None:
    rows = single(dp=16, sharding=1, shard_group=16)
    grown = task()
    fixed = replace(grown, trainer=replace(grown.trainer, bucket_per_rank=0.0))
    bigger = replace(grown, trainer=replace(grown.trainer, bucket_per_rank=1e9))
    once = [state_cost(q, rows, axis_members(q, rows)).once[0, 0] for q in (fixed, grown, bigger)]
    assert once[2] < once[0]
    assert np.all(np.diff(once) <= 0)
