"""Parameter counts by closed forms that know nothing of graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.graph.architecture import Architecture, Attention, Experts, LatentAttention, Layer, Mlp
from planner.graph.blocks import build_model

small = st.integers(1, 40)


def decoder(attention, mlp, *, layers=2, hidden=48, vocab=101, **facts):
    kind = Layer(
        name="only",
        attention=attention,
        mlp=mlp,
        **{
            key: facts.pop(key)
            for key in ("post_norms", "parallel", "parallel_norms")
            if key in facts
        },
    )
    return Architecture(
        name="x",
        hidden=hidden,
        vocab=vocab,
        max_seq=64,
        kinds=(kind,),
        layers=(0,) * layers,
        **facts,
    )


def count(arch):
    return build_model(arch, 8).num_params


@settings(deadline=None)
@given(small, small, st.integers(1, 6), st.integers(1, 6), small, small, small, st.booleans())
def test_llama(layers, h, groups, each, d, f, v, tied):
    heads = groups * each
    attention = h * d * heads * 2 + h * d * groups * 2
    expected = (1 if tied else 2) * v * h + h + layers * (attention + 3 * h * f + 2 * h)
    core = Attention(heads=heads, kv_heads=groups, head_dim=d)
    arch = decoder(core, Mlp(width=f), layers=layers, hidden=h, vocab=v, tied=tied)
    assert count(arch) == expected


@settings(deadline=None)
@given(small, st.integers(1, 6), small, small, small)
def test_gpt2(layers, heads, d, v, positions):
    """12 h² + 13 h a layer (GPT-2), embeddings, positions and a last norm."""
    h = heads * d
    core = Attention(
        heads=heads, kv_heads=heads, head_dim=d, qkv_bias=True, out_bias=True, rotary=False
    )
    arch = decoder(
        core,
        Mlp(width=4 * h, gated=False, bias=True),
        layers=layers,
        hidden=h,
        vocab=v,
        norm="layer",
        tied=True,
        positions=positions,
    )
    assert count(arch) == v * h + positions * h + layers * (12 * h * h + 13 * h) + 2 * h


@settings(deadline=None)
@given(
    st.integers(1, 6), small, small, small, small, st.one_of(st.none(), small), st.integers(2, 6)
)
def test_latent_attention_with_experts(heads, kv, nope, rope, value, q, experts):
    h, f, shared, v = 48, 16, 24, 101
    narrow = h * heads * (nope + rope) if q is None else h * q + q + q * heads * (nope + rope)
    attention = narrow + h * (kv + rope) + kv + kv * heads * (nope + value) + heads * value * h
    moe = h * experts + experts + experts * 3 * h * f + 3 * h * shared
    core = LatentAttention(
        heads=heads, q_latent=q, kv_latent=kv, nope_dim=nope, rope_dim=rope, value_dim=value
    )
    mixture = Experts(count=experts, top_k=2, width=f, shared_width=shared, router_bias=True)
    assert count(decoder(core, mixture)) == 2 * v * h + h + 2 * (attention + moe + 2 * h)
    # the router meets every token; whether it counts so is below the tolerance
    active = build_model(decoder(core, mixture), 8).num_active_params
    idle = (experts - 2) / experts * (experts * 3 * h * f)
    assert active == pytest.approx(
        2 * v * h + h + 2 * (attention + moe + 2 * h) - 2 * idle, abs=2 * experts * (h + 1)
    )


BASE = Attention(heads=6, kv_heads=2, head_dim=8)


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"qkv_bias": True}, (6 + 2 + 2) * 8),
        ({"out_bias": True}, 48),
        ({"qk_norm": "head"}, 16),
        ({"qk_norm": "all"}, (6 + 2) * 8),
        ({"qk_norm": "plain"}, 0),
        ({"sinks": True}, 6),
        ({"window": 4}, 0),
        ({"rotary": False}, 0),
        ({"output_gate": True}, 48 * 48),
    ],
)
@pytest.mark.parametrize("fused", [True, False])
def test_what_one_fact_of_attention_adds(change, more, fused):
    plain = build_model(decoder(BASE, Mlp(width=96)), 8, fused=fused).num_params
    changed = decoder(replace(BASE, **change), Mlp(width=96))
    assert build_model(changed, 8, fused=fused).num_params == plain + 2 * more


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"post_norms": True}, 2 * 2 * 48),
        ({"parallel": True}, -2 * 48),
        ({"parallel": True, "parallel_norms": 2}, 0),
        ({"embedding_norm": True}, 48),
        ({"head_bias": True}, 101),
        ({"positions": 10}, 480),
        ({"tied": True}, -48 * 101),
        ({"norm": "layer"}, 5 * 48),
        ({"norm": "layer-no-bias"}, 0),
        ({"norm": "none"}, -5 * 48),
        ({"mtp": 1}, 0),
    ],
)
def test_what_one_fact_of_the_model_adds(change, more):
    plain = count(decoder(BASE, Mlp(width=96)))
    assert count(decoder(BASE, Mlp(width=96), **change)) == plain + more


def test_biases_of_experts():
    plain = Experts(count=4, top_k=2, width=16)
    biased = replace(plain, bias=True)
    assert count(decoder(BASE, biased)) - count(decoder(BASE, plain)) == 2 * 4 * (2 * 16 + 48)
