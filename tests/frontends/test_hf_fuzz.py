"""Whatever a configuration holds, reading it ends in an architecture or in a PlannerError."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.frontends.hf_config import read_config
from planner.graph.blocks import build_model

PLAIN = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}
SPARSE = {**PLAIN, "num_experts_per_tok": 2}
MIXED = {**SPARSE, "moe_intermediate_size": 24}
LATENT = {
    **MIXED,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
CONFIGS = [
    {"model_type": "llama", **PLAIN},
    {"model_type": "mistral", "sliding_window": 16, **PLAIN},
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, **PLAIN},
    {"model_type": "qwen3", "head_dim": 8, **PLAIN},
    {"model_type": "gemma3_text", "head_dim": 8, "layer_types": ["full_attention"] * 4, **PLAIN},
    {"model_type": "qwen3_moe", "num_experts": 4, "mlp_only_layers": [1], **MIXED},
    {"model_type": "mixtral", "num_local_experts": 4, **SPARSE},
    {"model_type": "gpt_oss", "num_local_experts": 4, **SPARSE},
    {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1, **LATENT},
    {"model_type": "deepseek_v2", **LATENT},
    {
        "model_type": "llama4_text",
        "num_local_experts": 4,
        "intermediate_size_mlp": 96,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 16,
        "no_rope_layers": [1, 1, 0, 1],
        **SPARSE,
    },
    {"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 50},
    {"model_type": "bloom", "hidden_size": 48, "n_layer": 2, "n_head": 4, "vocab_size": 50},
    {
        "model_type": "opt",
        "ffn_dim": 96,
        "word_embed_proj_dim": 48,
        **PLAIN,
        "intermediate_size": 0,
        "num_key_value_heads": 4,
    },
    {
        "model_type": "falcon",
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        **{
            key: PLAIN[key]
            for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        },
    },
    {
        "model_type": "chatglm",
        "num_layers": 2,
        "padded_vocab_size": 50,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "ffn_hidden_size": 96,
        "hidden_size": 48,
        "num_attention_heads": 4,
    },
    {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", **PLAIN},
        "vision_config": {},
    },
]
EXTRA = [
    "model_type",
    "architectures",
    "text_config",
    "vision_config",
    "layer_types",
    "mlp_only_layers",
    "moe_layers",
    "no_rope_layers",
    "head_dim",
    "sliding_window",
    "decoder_sparse_step",
    "moe_layer_freq",
    "tie_word_embeddings",
    "attention_bias",
    "attention_dropout",
    "_name_or_path",
    "n_inner",
    "x_lora_rank",
]
numbers = st.one_of(
    st.integers(-3, 300),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([10**30, 10**400, 2**63, 0, 1, -1]),
)
values = st.recursive(
    st.one_of(numbers, st.none(), st.booleans(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def mutated(draw):
    data = json.loads(json.dumps(draw(st.sampled_from(CONFIGS))))
    for _ in range(draw(st.integers(1, 4))):
        key = draw(st.sampled_from([*data, *EXTRA]))
        if draw(st.booleans()) and key in data:
            del data[key]
        else:
            data[key] = draw(values)
    return data


@pytest.mark.parametrize("data", CONFIGS[:-1], ids=lambda data: data["model_type"])
def test_the_originals_are_read(data):
    assert build_model(read_config(data), 16).num_params > 0


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated(), st.sampled_from([None, {"part": "text"}, {"model_type": "llama"}]))
def test_a_mutated_configuration_is_read_or_refused(data, overrides):
    try:
        arch = read_config(data, overrides=overrides)
    except PlannerError as error:
        assert error.faults
        assert all(fault.code in ("M02", "M03", "M04") for fault in error.faults)
        assert len(str(error)) < 6000
        return
    assert len(arch.layers) >= 1
    assert build_model(arch, 4).num_params > 0


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.binary(max_size=60), values.map(lambda v: json.dumps(v).encode())))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "config.json"
    path.write_bytes(content)
    with pytest.raises(PlannerError):
        read_config(path)
