"""FLOPs by counters that know nothing of graphs: products by hand, scores query by query."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.graph.architecture import Architecture, Attention, Experts, LatentAttention, Layer, Mlp
from planner.graph.attention import attended
from planner.graph.blocks import build_model
from tests.search.problems import examples

many = examples(150)
small = st.integers(1, 12)
windows = st.one_of(st.none(), st.integers(1, 200))


def pairs(s, window=None):
    """Query and key pairs that a causal mask with a window leaves, one query after the other."""
    return sum(min(query + 1, window or s) for query in range(s))


def product(s, *sizes):
    """2 FLOPs for every token and weight of a matrix."""
    count = 2 * s
    for size in sizes:
        count *= size
    return count


def flops(attention, mlp, s, *, hidden, vocab=97, layers=1, fused=True, **facts):
    kind = Layer(name="only", attention=attention, mlp=mlp)
    arch = Architecture(
        name="x",
        hidden=hidden,
        vocab=vocab,
        max_seq=s,
        kinds=(kind,),
        layers=(0,) * layers,
        **facts,
    )
    model = build_model(arch, s, fused=fused)
    return model.flops(), model


@given(small, small, small, st.integers(1, 64), st.integers(1, 300), small, windows, st.booleans())
@many
def test_grouped_query_attention_and_a_feed_forward_layer(g, each, h, f, s, layers, window, gated):
    a, d, vocab = g * each, 8, 97
    attention = Attention(heads=a, kv_heads=g, head_dim=d, window=window)
    layer = product(s, h, a, d) * 2 + product(s, h, g, d) * 2  # q and out, k and v
    layer += product(s, h, f) * (3 if gated else 2)
    layer += 2 * 2 * pairs(s, window) * a * d  # scores and context
    found, _ = flops(attention, Mlp(width=f, gated=gated), s, hidden=h, layers=layers)
    assert found == pytest.approx(layers * layer + product(s, h, vocab))


@given(small, small, st.integers(1, 64), st.integers(1, 200))
@many
def test_unfused_attention_computes_what_the_mask_drops_too(a, h, f, s):
    attention = Attention(heads=a, kv_heads=a, head_dim=8)
    whole, _ = flops(attention, Mlp(width=f), s, hidden=h, fused=False)
    fused, _ = flops(attention, Mlp(width=f), s, hidden=h)
    assert whole - fused == pytest.approx(4 * a * 8 * (s * s - pairs(s)))


@given(
    st.integers(1, 8),
    small,
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
    st.integers(1, 64),
)
@many
def test_a_mixture_computes_its_chosen_experts_only(count, h, f, shared, gated, s):
    top_k = min(count, 2)
    mlp = Experts(count=count, top_k=top_k, width=f, shared_width=shared, gated=gated)
    found, _ = flops(Attention(heads=2, kv_heads=2, head_dim=4), mlp, s, hidden=h)
    attention = product(s, h, 8) * 4 + 4 * pairs(s) * 8
    matrices = 3 if gated else 2
    mixture = product(s, h, count) + matrices * (top_k * product(s, h, f) + product(s, h, shared))
    assert found == pytest.approx(attention + mixture + product(s, h, 97))


@given(
    st.integers(1, 8),
    st.one_of(st.none(), small),
    small,
    small,
    small,
    small,
    st.integers(1, 200),
    st.booleans(),
)
@many
def test_latent_attention(a, q, kv, nope, rope, value, s, fused):
    h, f = 24, 32
    latent = LatentAttention(
        heads=a, q_latent=q, kv_latent=kv, nope_dim=nope, rope_dim=rope, value_dim=value
    )
    queries = product(s, h, a, nope + rope)
    if q is not None:
        queries = product(s, h, q) + product(s, q, a, nope + rope)
    keys = product(s, h, kv + rope) + product(s, kv, a, nope + value)
    scores = 2 * (pairs(s) if fused else s * s) * a * (nope + rope + value)
    expected = queries + keys + scores + product(s, a, value, h) + 3 * product(s, h, f)
    found, _ = flops(latent, Mlp(width=f), s, hidden=h, fused=fused)
    assert found == pytest.approx(expected + product(s, h, 97))


@given(st.integers(1, 400), windows)
@many
def test_the_share_of_scores_is_counted_pair_by_pair(s, window):
    assert attended(s, window) == pytest.approx(pairs(s, window) / s**2)


@given(small, small, st.integers(1, 64), st.integers(1, 200), small, st.sampled_from([0, 4, 6]))
@many
def test_two_flops_a_parameter_and_token_beside_attention(a, h, f, s, layers, experts):
    """2 N tokens with N without embedding, norms and idle experts, the rule of thumb of Kaplan et al. 2020."""
    mlp = Experts(count=experts, top_k=2, width=f) if experts else Mlp(width=f)
    attention = Attention(heads=a, kv_heads=a, head_dim=8)
    found, model = flops(attention, mlp, s, hidden=h, layers=layers, norm="none")
    weights = model.num_active_params - model.embedding.num_params
    if experts:  # a token meets the whole router
        weights += layers * h * (experts - 2)
    assert found == pytest.approx(2 * s * weights + layers * 4 * pairs(s) * a * 8)


def test_multi_token_prediction_adds_a_layer_a_projection_and_a_head():
    attention, mlp = Attention(heads=2, kv_heads=2, head_dim=8), Mlp(width=32)
    plain, _ = flops(attention, mlp, 64, hidden=16)
    two_layers, _ = flops(attention, mlp, 64, hidden=16, layers=2)
    more, _ = flops(attention, mlp, 64, hidden=16, mtp=1)
    layer = two_layers - plain
    assert more - plain == pytest.approx(layer + product(64, 2 * 16, 16) + product(64, 16, 97))


def test_published_forward_flops_of_a_gpt_layer():
    """24 b s h² + 4 b s² h a layer (Narayanan et al. 2021, appendix), attention without a mask."""
    h, s, a = 1024, 2048, 16
    attention = Attention(heads=a, kv_heads=a, head_dim=h // a)
    found, _ = flops(attention, Mlp(width=4 * h, gated=False), s, hidden=h, fused=False)
    assert found == pytest.approx(24 * s * h * h + 4 * s * s * h + product(s, h, 97))


@given(small, small, st.integers(1, 64), st.integers(1, 200), st.integers(1, 64))
@many
def test_tokens_that_products_bring_to_experts(top_k, extra, h, s, group):
    """GShard's two einsums: each token meets every place of its group, ``top_k`` for each of the group's tokens."""
    attention = Attention(heads=1, kv_heads=1, head_dim=8)
    plain = Experts(count=top_k + extra, top_k=top_k, width=16)
    found = [
        flops(attention, replace(plain, one_hot=tokens), s, hidden=h)[0] for tokens in (0, group)
    ]
    assert found[1] - found[0] == pytest.approx(2 * product(s, top_k * group, h))
