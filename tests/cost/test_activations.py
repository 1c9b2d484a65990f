"""Saved activations, read off the graph, against published closed forms (Korthikanti et al. 2205.05198, table 2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.saved import KEEPS_OUTPUT, repeated
from planner.graph.architecture import Attention, Mlp
from planner.recipe import Recipe
from planner.trainers.generations import generation
from tests.cost.blocks import gpt, model_of, priced
from tests.search.problems import examples

many = examples(120)


@st.composite
def shapes(draw):
    """(s, b, h, a, t): t divides the heads, and the sequence where it is split."""
    t = draw(st.sampled_from([1, 2, 4, 8]))
    a = t * draw(st.integers(1, 8))
    h = a * draw(st.sampled_from([4, 16, 64, 96]))
    return t * draw(st.integers(1, 300)), draw(st.integers(1, 8)), h, a, t


def saved(shape, tags, *, sp):
    s, b, h, a, t = shape
    model = gpt(s, h, a)
    found = priced(model, model.blocks[0], tp=t, micro_batch=b, sp=int(sp and t > 1))
    return found.saved(*tags) / (s * b * h)


@given(shapes())
@many
def test_nothing_recomputed(shape):
    s, _, h, a, t = shape
    scores = 5 * a * s / h
    assert saved(shape, (), sp=False) == pytest.approx(10 + 24 / t + scores / t)
    assert saved(shape, (), sp=True) == pytest.approx((34 + scores) / t)


@given(shapes())
@many
def test_attention_core_recomputed(shape):
    t = shape[-1]
    assert saved(shape, ("core",), sp=False) == pytest.approx(10 + 24 / t)
    assert saved(shape, ("core",), sp=True) == pytest.approx(34 / t)


@given(shapes())
@many
def test_everything_recomputed(shape):
    t = shape[-1]
    assert saved(shape, ("*",), sp=False) == pytest.approx(2)
    assert saved(shape, ("*",), sp=True) == pytest.approx(2 / t)


def test_one_chip_of_gpt_3():
    """s 2048, b 1, h 12288, a 96: 34 + 80 = 114 s b h, 2.7 GiB a layer."""
    assert saved((2048, 1, 12288, 96, 1), (), sp=False) == pytest.approx(114)


@given(shapes())
@many
def test_the_trainer_s_selective_mode_of_unfused_attention_drops_at_least_the_scores(shape):
    s, b, h, a, t = shape
    model = gpt(s, h, a)
    found = priced(model, model.blocks[0], tp=t, micro_batch=b)
    tags = found.setting.task.trainer.recomputed("selective", fused=False)
    assert "core" in tags
    assert found.saved(*tags) <= found.saved("core")


def fused_llama(s, h, a, g, f):
    return model_of(Attention(heads=a, kv_heads=g, head_dim=h // a), Mlp(width=f), s, hidden=h)


@given(
    st.integers(1, 64),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 200),
)
@many
def test_a_llama_block_with_fused_attention(tokens, b, t, groups, each, width):
    """2 norms in, q, k, v after rotation, out, one fp32 statistic a head; gate and up, and their product.

    Fused attention keeps q, k, v and its output (FlashAttention, section 3.1).
    """
    s, g, d = t * tokens, t * groups, 16
    a = g * each
    h, f = a * d, t * width
    model = fused_llama(s, h, a, g, f)
    found = priced(model, model.blocks[0], tp=t, micro_batch=b, sp=int(t > 1))
    stream = 2 * h * 4  # input, first norm, middle, second norm
    attention = 2 * (2 * a * d + 2 * g * d) + 4 * a
    mlp = 2 * (2 * f + f)
    assert found.saved() == pytest.approx(s * b * (stream + attention + mlp) / t)


@given(shapes())
@many
def test_every_second_product_of_a_llama_block(shape):
    """torchtitan's list: of q, k, v, out, gate, up, down it makes k, out and up again; attention's output stays."""
    s, b, h, a, _ = shape
    model = fused_llama(s, h, a, a, 4 * h)
    found = priced(model, model.blocks[0], trainer="torchtitan", micro_batch=b)
    tags = found.setting.task.trainer.recomputed("selective", fused=True)
    stays = 2 * (h + h + h + h + 4 * h + h) + 4 * a  # input, q, v, attention's output, gate, down
    assert found.saved(*tags) == pytest.approx(s * b * stays)


@given(shapes())
@many
def test_eager_code_keeps_more(shape):
    """Aleph's: a norm keeps 6 bytes an element more, a gate 2, rotary tables 4 for queries and for keys each."""
    s, b, h, a, _ = shape
    model = fused_llama(s, h, a, a, 4 * h)
    plain = priced(model, model.blocks[0], micro_batch=b)
    eager = generation("aleph-plain-norm")
    setting = replace(plain.setting, task=replace(plain.setting.task, trainer=eager), memo={})
    more = 2 * 6 * h + 2 * 4 * h + (4 + 4) * h
    assert replace(plain, setting=setting).saved() - plain.saved() == pytest.approx(s * b * more)
    gone = replace(plain, setting=setting).saved("*")
    assert gone == plain.saved("*")


def test_eager_transformers_keep_more_of_rms_norms_and_gates():
    s, h, a = 64, 256, 4
    model = fused_llama(s, h, a, a, 4 * h)
    eager, fused = (
        priced(model, model.blocks[0], trainer=trainer).saved()
        for trainer in ("fsdp", "torchtitan")
    )
    assert eager - fused == pytest.approx(s * (2 * 6 * h + 2 * 4 * h))
    plain = gpt(s, h, a)
    same = [priced(plain, plain.blocks[0], trainer=t).saved() for t in ("fsdp", "torchtitan")]
    assert same[0] == same[1]


def test_what_sequence_parallelism_gathers_may_be_kept_whole():
    """Aleph's and torch's products keep the gathered norms; Megatron gathers them again."""
    s, h, a, t = 64, 256, 8, 4
    model = fused_llama(s, h, a, a, 4 * h)
    found = priced(model, model.blocks[0], tp=t, sp=1)
    trainer = found.setting.task.trainer
    whole = replace(trainer, memory=replace(trainer.memory, keeps_gathered=True))
    setting = replace(found.setting, task=replace(found.setting.task, trainer=whole), memo={})
    more = replace(found, setting=setting).saved() - found.saved()
    assert more == pytest.approx(2 * 2 * s * h * (1 - 1 / t))


@given(shapes(), st.sampled_from([(), ("core",), ("norm", "activation"), ("*",)]))
@many
def test_context_parallelism_divides_everything_that_fused_attention_keeps(shape, tags):
    s, b, h, a, t = shape
    cp = 2
    model = fused_llama(4 * s * t, h, a, a, 4 * h)
    row = {"tp": t, "micro_batch": b, "sp": int(t > 1)}
    one = priced(model, model.blocks[0], **row).saved(*tags)
    assert priced(model, model.blocks[0], cp=cp, **row).saved(*tags) == pytest.approx(one / cp)


@given(shapes())
@many
def test_what_a_rank_keeps_does_not_depend_on_dp(shape):
    s, b, h, a, t = shape
    model = gpt(s, h, a)
    alone = priced(model, model.blocks[0], tp=t, micro_batch=b).saved()
    assert priced(model, model.blocks[0], tp=t, micro_batch=b, dp=4).saved() == pytest.approx(alone)


@pytest.mark.parametrize(
    ("precision", "share"), [("bf16", 1), ("fp16", 1), ("fp8", 1), ("fp32", 2)]
)
def test_elements_take_the_bytes_of_the_precision(precision, share):
    assert Recipe(global_batch=1, seq=1, precision=precision).activation_bytes == 2 * share


def test_a_recomputed_core_keeps_its_output_for_the_projection():
    model = gpt(64, 64, 4)
    block = model.blocks[0]
    assert frozenset({"core"}) == KEEPS_OUTPUT
    assert [name for name, share in repeated(block, KEEPS_OUTPUT).items() if share] == [
        "attn.scores",
        "attn.softmax",
        "attn.dropout",
        "attn.context",
    ]
