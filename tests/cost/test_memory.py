"""Memory of a rank: its parts, what makes it less, and bounds that hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.candidates import RECOMPUTE, SCHEDULES, single
from planner.cost.memory import TERMS
from planner.cost.prices import prices
from planner.cost.step import exact, memory_of_stages, stage_times
from planner.graph.architecture import Attention, Mlp
from planner.trainers.rules import allowed
from tests.cost.blocks import gpt, model_of, task_of
from tests.search.problems import Drawn, examples, space_of, tasks

some = examples(30)
SLACK = 1 + 1e-12


@st.composite
def layouts(draw):
    """A task and one allowed row of its space."""
    task, rows = draw(spaces())
    return task, rows.take(np.array([draw(st.integers(0, len(rows) - 1))]))


@st.composite
def spaces(draw):
    """A task and its allowed rows."""
    task = draw(tasks(most_chips=8))
    rows = space_of(task)
    assume(len(rows))
    return task, rows


def memory(task, rows) -> np.ndarray:
    return exact(prices(task, rows)).memory


def changed(rows, **columns):
    wide = {name: np.broadcast_to(value, len(rows)) for name, value in columns.items()}
    return replace(rows, **wide)


@given(spaces())
@some
def test_more_sharding_never_takes_more_memory(case):
    task, rows = case
    cast = task.trainer.memory.cast_weights and task.recipe.precision != "fp32"
    whole = not cast  # then gathered weights are a second copy of what is stored
    levels = [level for level in task.trainer.shardings if level < 3 or not whole]
    found = [memory(task, changed(rows, sharding=level)) for level in levels]
    assert all((after <= before * SLACK).all() for before, after in pairwise(found))


@given(spaces())
@some
def test_a_larger_shard_group_never_takes_more_memory(case):
    task, rows = case
    data = rows.dp * rows.cp
    for factor in (2, 3, 8):
        some_rows = data % factor == 0
        part = rows.take(some_rows)
        if not len(part):
            continue
        smaller = changed(part, shard_group=data[some_rows] // factor)
        larger = changed(part, shard_group=data[some_rows])
        assert (memory(task, larger) <= memory(task, smaller) * SLACK).all()


@given(spaces(), st.sampled_from([2, 3]))
@some
def test_more_tensor_parallelism_never_takes_more_memory(case, factor):
    task, rows = case
    cluster = replace(task.cluster, num_chips=task.cluster.num_chips * factor)
    sp = rows.sp | (False not in task.trainer.sequence_parallel)
    wide = changed(rows, tp=rows.tp * factor, sp=sp)
    larger = replace(task, cluster=cluster)
    possible = allowed(larger, wide)
    if not possible.any():
        return
    before = memory(task, rows.take(possible))
    assert (memory(larger, wide.take(possible)) <= before * SLACK).all()


@given(spaces())
@some
def test_recomputing_never_takes_more_memory(case):
    task, rows = case
    modes = [RECOMPUTE.index(mode) for mode in RECOMPUTE if mode in task.trainer.recompute]
    found = [memory(task, changed(rows, recompute=mode)) for mode in modes]
    assert all((after <= before * SLACK).all() for before, after in pairwise(found))


@given(spaces())
@some
def test_a_larger_micro_batch_never_takes_less_memory(case):
    task, rows = case
    m = rows.num_micro_batches(task.recipe.global_batch)
    least = 1 if task.trainer.memory.gradient_buffer else 2  # a single one needs no buffer
    rows = rows.take((m % 2 == 0) & (m // 2 >= np.maximum(rows.pp, least)))
    if len(rows):
        larger = changed(rows, micro_batch=2 * rows.micro_batch)
        assert (memory(task, larger) * SLACK >= memory(task, rows)).all()


@given(layouts())
@some
def test_parts_are_not_negative_and_name_what_they_are(case):
    task, row = case
    priced = prices(task, row)
    found = memory_of_stages(priced, stage_times(priced).blocks)
    assert found.parts.shape == (1, int(row.pp[0]), len(TERMS))
    assert (found.parts >= 0).all()
    assert found.total.max() == pytest.approx(exact(priced).memory[0])
    working, logits = (found.parts[0, :, TERMS.index(name)] for name in ("working", "logits"))
    assert (logits[:-1] == 0).all()
    assert (working * logits == 0).all()  # logits are gone when a layer runs backwards


def test_a_whole_gpt_by_hand():
    """One chip, fp32 gradients: 18 bytes a parameter, what the layers keep, and the head."""
    s, h, a, layers = 64, 256, 4, 6
    model = gpt(s, h, a)
    model = replace(model, layers=(0,) * layers)
    task = task_of(model, chips=1, global_batch=4, fused_attention=False)
    priced = prices(task, single(micro_batch=2, sharding=0))
    found = memory_of_stages(priced, stage_times(priced).blocks)
    part = dict(zip(TERMS, found.parts[0, 0], strict=True))
    vocab = 1024  # a multiple of 128 already
    layer = 12 * h * h + 13 * h
    params = layers * layer + 2 * vocab * h + 2 * h
    assert part["weights"] == 2 * params
    assert part["gradients"] == 4 * params
    assert part["optimizer"] == 12 * params
    tokens = 2 * s
    ends = (
        tokens * h + tokens * 8 + 2 * tokens * h * 2
    )  # dropout, token ids, last norm's in and out
    body = layers * tokens * h * (34 + 5 * a * s / h)
    assert part["activations"] == pytest.approx(body + ends)
    memory = task.trainer.memory
    assert part["working"] == 0
    assert (
        part["logits"] == memory.logit_bytes * tokens * vocab + 2 * tokens * h
    )  # the input's gradient
    standing = memory.standing_bytes * (12 * h * h + vocab * h) + memory.workspace_bytes
    moving = part["activations"] + part["logits"] + standing
    assert part["buffers"] == pytest.approx(standing + (memory.fragmentation - 1) * moving)
    assert part["runtime"] == memory.runtime_bytes
    # down: gradients of the activation, the result and the stream; the mask of the dropout behind it is gone
    assert priced.table.working[0, 0, 1] == tokens * h * (8 + 2 + 2 - 1)


@pytest.mark.parametrize(("vocab", "worst"), [(512, "working"), (65536, "logits")])
def test_the_peak_is_at_the_loss_or_in_a_layer(vocab, worst):
    """The larger of the two moments, not their sum: logits are gone when the last layer runs backwards."""
    model = model_of(Attention(heads=4, kv_heads=4, head_dim=64), Mlp(width=1024), 64, vocab=vocab)
    task = task_of(model, chips=1, global_batch=4)
    priced = prices(task, single(micro_batch=2, sharding=0))
    found = memory_of_stages(priced, stage_times(priced).blocks)
    part = dict(zip(TERMS, found.parts[0, 0], strict=True))
    other = {"working": "logits", "logits": "working"}[worst]
    assert part[worst] > 0
    assert part[other] == 0
    if worst == "logits":
        assert part["logits"] == (task.trainer.memory.logit_bytes * vocab + 2 * 64) * 2 * 64


@given(layouts())
@some
def test_the_first_stage_of_1f1b_holds_a_micro_batch_for_every_stage(case):
    task, row = case
    assume(row.schedule[0] == 1)
    priced = prices(task, row)
    found = memory_of_stages(priced, stage_times(priced).blocks)
    pp, m = int(row.pp[0]), int(priced.micro_batches[0])
    assert found.in_flight[0].tolist() == [min(pp - stage, m) for stage in range(pp)]


def test_a_task_shows_itself_in_a_few_lines():
    task = task_of(gpt(64, 64, 4))
    shown = Drawn(**{name: getattr(task, name) for name in type(task).__dataclass_fields__})
    assert "megatron" in repr(shown)


@pytest.mark.parametrize("level", [2, 3])
def test_an_optimizer_that_steps_in_parts_needs_temporaries_for_one(level):
    """DeepSpeed steps on 1e9 parameters at a time under ZeRO-3, on all of its shard under ZeRO-2."""
    task = task_of(gpt(64, 256, 4), "fsdp", chips=1, global_batch=1)
    each, at_once = 1e6, 1000.0  # so large that the optimizer is the worst moment
    memory_of = replace(
        task.trainer.memory, optimizer_bytes=each, step_params=at_once, fragmentation=1.0
    )
    task = replace(task, trainer=replace(task.trainer, memory=memory_of))
    priced = prices(task, single(sharding=level))
    found = memory_of_stages(priced, stage_times(priced).blocks)
    params = task.model.num_params
    expected = each * (at_once if level == 3 else params)
    assert found.parts[0, 0, TERMS.index("buffers")] == pytest.approx(expected)


@pytest.mark.parametrize(("pp", "vpp"), [(4, 1), (2, 2)])
def test_stages_that_leave_weights_gathered_hold_them_when_one_micro_batch_is_gone(pp, vpp):
    """torch's stages under ZeRO-3: all weights of a stage and the activations of one micro-batch of a chunk less."""
    task = task_of(gpt(16, 256, 4), "torchtitan", chips=2 * pp, global_batch=16)
    task = replace(
        task,
        model=model_of(Attention(heads=4, kv_heads=4, head_dim=64), Mlp(width=1024), 16, layers=16),
        trainer=replace(task.trainer, memory=replace(task.trainer.memory, fragmentation=1.0)),
    )
    schedule = SCHEDULES.index("interleaved" if vpp > 1 else "1f1b")
    row = single(dp=2, pp=pp, vpp=vpp, sharding=3, shard_group=2, schedule=schedule)
    priced = prices(task, row)
    times = stage_times(priced)
    found = memory_of_stages(priced, times.blocks)
    held = times.blocks[0].sum(axis=0)
    kept, weights = priced.table.saved[0, priced.key[0]] @ held, priced.dense[0] @ held
    assert found.parts[0, 0, TERMS.index("buffers")] == pytest.approx(2.0 * weights - kept / vpp)
