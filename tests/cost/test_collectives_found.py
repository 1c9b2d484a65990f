"""Collectives that follow from the layouts, against what the schemes are published to send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.graph.architecture import Attention, Experts, LatentAttention, Mlp
from tests.cost.blocks import model_of, priced
from tests.search.problems import examples

many = examples(60)
sizes = st.integers(1, 6)


@st.composite
def dense(draw):
    """(s, b, h, a, g, f, t): sizes of a dense block that t ranks can split."""
    t = draw(st.sampled_from([2, 4, 8]))
    g = t * draw(sizes)
    a = g * draw(sizes)
    s, h = 2 * t * draw(st.integers(1, 64)), 8 * draw(st.integers(1, 64))
    return s, draw(sizes), h, a, g, t * draw(sizes), t


def dense_block(shape, **row):
    s, b, h, a, g, f, _ = shape
    model = model_of(Attention(heads=a, kv_heads=g, head_dim=8), Mlp(width=f), s, hidden=h)
    return priced(model, model.blocks[0], micro_batch=b, **row)


def count(moves):
    found: dict[tuple[str, str], list[float]] = {}
    for (phase, kind, _, _), size in moves.items():
        found.setdefault((phase, kind), []).append(size)
    return found


def on(moves, axis):
    return count({key: size for key, size in moves.items() if key[3] == axis})


@given(dense())
@many
def test_megatron_two_all_reduces_of_the_stream_each_way(shape):
    s, b, h, *_, t = shape
    stream = 2 * s * b * h
    moves = dense_block(shape, tp=t).moves()
    assert count(moves) == {
        ("forward", "all-reduce"): [stream, stream],
        ("backward", "all-reduce"): [stream, stream],
    }
    assert dense_block(shape, tp=t).moves(again=True) == {}


@given(dense())
@many
def test_sequence_parallelism_two_gathers_and_two_scatters_each_way(shape):
    s, b, h, *_, t = shape
    stream = 2 * s * b * h
    block = dense_block(shape, tp=t, sp=1)
    assert count(block.moves()) == {
        (phase, kind): [stream, stream]
        for phase in ("forward", "backward")
        for kind in ("all-gather", "reduce-scatter")
    }
    assert count(block.moves(again=True)) == {("backward", "all-gather"): [stream, stream]}


@given(dense())
@many
def test_without_an_axis_nothing_moves(shape):
    assert dense_block(shape).moves() == {}
    assert dense_block(shape, dp=4).moves() == {}


@given(dense(), st.sampled_from([2, 4]))
@many
def test_context_parallelism_gathers_keys_and_values(shape, cp):
    s, b, h, a, g, f, t = shape
    shape = (s * cp, b, h, a, g, f, t)
    keys = 2 * 2 * (s * cp) * b * g * 8
    block = dense_block(shape, cp=cp)
    assert on(block.moves(), "cp") == {
        ("forward", "all-gather"): pytest.approx([keys]),
        ("backward", "reduce-scatter"): pytest.approx([keys]),
    }
    assert on(block.moves(again=True), "cp") == {("backward", "all-gather"): pytest.approx([keys])}
    with_tp = dense_block(shape, cp=cp, tp=t, sp=1)
    assert on(with_tp.moves(), "cp") == {
        ("forward", "all-gather"): pytest.approx([keys / t]),
        ("backward", "reduce-scatter"): pytest.approx([keys / t]),
    }


@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from([(4, 2), (8, 4), (8, 8)]), sizes)
@many
def test_experts_dispatch_and_combine_each_way(tokens, b, experts, width):
    """Every rank sends the rows of its own tokens, top-k times: tokens · top-k · hidden · 2 bytes."""
    count_, ep = experts
    s, h, top_k = 64 * tokens, 48, 2
    mlp = Experts(count=count_, top_k=top_k, width=width)
    model = model_of(Attention(heads=8, kv_heads=8, head_dim=6), mlp, s, hidden=h)
    rows = 2 * s * b * top_k * h
    dispatch_and_combine = {
        (phase, "all-to-all", tensor, "ep"): rows
        for phase in ("forward", "backward")
        for tensor in ("routed", "moe_down")
    }
    found = priced(model, model.blocks[0], dp=ep, ep=ep, micro_batch=b)
    assert found.moves() == pytest.approx(dispatch_and_combine)
    # with tp 2 and sequence parallelism a rank has half the tokens, and sends half the rows
    split = priced(model, model.blocks[0], dp=ep, ep=ep, tp=2, sp=1, micro_batch=b)
    exchange = {key: size for key, size in split.moves().items() if key[1] == "all-to-all"}
    assert exchange == pytest.approx({k: size / 2 for k, size in dispatch_and_combine.items()})
    # experts inside a data-parallel group of their own: more replicas change nothing for a rank
    wide = priced(model, model.blocks[0], dp=4 * ep, ep=ep, micro_batch=b)
    assert wide.moves() == pytest.approx(dispatch_and_combine)


def test_experts_split_by_tensor_parallelism_gather_rows_and_scatter_results():
    mlp = Experts(count=8, top_k=2, width=32)
    model = model_of(Attention(heads=8, kv_heads=8, head_dim=8), mlp, 128)
    split = priced(model, model.blocks[0], dp=4, tp=2, ep=4, etp=2, sp=1)
    moves = split.moves()
    rows = 2 * 128 * 2 * 64  # of the two ranks together
    assert moves["forward", "all-gather", "routed", "etp"] == rows
    assert moves["forward", "reduce-scatter", "moe_down", "etp"] == rows
    assert moves["backward", "reduce-scatter", "routed", "etp"] == rows
    assert moves["backward", "all-gather", "moe_down", "etp"] == rows
    assert moves["forward", "all-to-all", "routed", "ep"] == rows / 2


@given(sizes, sizes, st.sampled_from([2, 4, 8]), st.booleans())
@many
def test_a_split_vocabulary_sends_three_numbers_a_token(tokens, b, t, sp):
    """Largest logit, sum of exponentials and the target's logit, 4 bytes each; never the logits."""
    s, h = 16 * tokens, 64
    model = model_of(Attention(heads=8, kv_heads=8, head_dim=8), Mlp(width=64), s, hidden=h)
    row = {"tp": t, "micro_batch": b, "sp": int(sp)}
    stream = 2 * s * b * h
    head = priced(model, model.head, **row).moves()
    assert head.pop(("forward", "all-reduce", "loss", "tp")) == 3 * 4 * s * b
    table = priced(model, model.embedding, **row).moves()
    if sp:
        assert head == {
            ("forward", "all-gather", "x_normed", "tp"): stream,
            ("backward", "reduce-scatter", "x_normed", "tp"): stream,
        }
        assert table == {
            ("forward", "reduce-scatter", "x", "tp"): stream,
            ("backward", "all-gather", "x", "tp"): stream,
        }
    else:
        assert head == {("backward", "all-reduce", "x_normed", "tp"): stream}
        assert table == {("forward", "all-reduce", "x", "tp"): stream}


def test_latent_attention_gathers_only_what_is_narrow():
    """Only latents and the shared rotary key cross tp before attention, not heads (DeepSeek-V2, section 2.1)."""
    latent = LatentAttention(
        heads=8, q_latent=24, kv_latent=16, nope_dim=8, rope_dim=4, value_dim=8
    )
    s = 128
    model = model_of(latent, Mlp(width=256), s)
    moves = priced(model, model.blocks[0], tp=2).moves()
    backward = {
        tensor: size for (phase, _, tensor, _), size in moves.items() if phase == "backward"
    }
    assert backward == {
        "q_latent_normed": 2 * s * 24,
        "kv_latent_normed": 2 * s * 16,
        "k_rope": 2 * s * 4,
        "normed2": 2 * s * 64,
    }
    ring = priced(model, model.blocks[0], cp=2).moves()
    assert ring == {
        ("forward", "all-gather", "k", "cp"): 2 * s * 8 * 12,
        ("forward", "all-gather", "v", "cp"): 2 * s * 8 * 8,
        ("backward", "reduce-scatter", "k", "cp"): 2 * s * 8 * 12,
        ("backward", "reduce-scatter", "v", "cp"): 2 * s * 8 * 8,
    }


@pytest.mark.parametrize("trainer", ["torchtitan", "megatron", "mindspore"])
def test_schemes_do_not_depend_on_who_runs_them(trainer):
    model = model_of(Attention(heads=8, kv_heads=4, head_dim=8), Mlp(width=256), 128)
    found = priced(model, model.blocks[0], trainer, tp=4, sp=1).moves()
    assert count(found) == {
        (phase, kind): [2 * 128 * 64] * 2
        for phase in ("forward", "backward")
        for kind in ("all-gather", "reduce-scatter")
    }
