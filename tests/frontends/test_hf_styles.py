"""The same models in the key styles that files in the wild have; hyper-parameters from the model cards."""

from __future__ import annotations

import pytest

from planner.errors import PlannerError
from planner.frontends.hf_config import FAMILIES, read_config
from planner.graph.blocks import build_model

STYLES = {
    "bloom, n_embed": (
        176_247_271_424,
        {
            "model_type": "bloom",
            "architectures": ["BloomForCausalLM"],
            "n_embed": 14336,
            "n_layer": 70,
            "num_attention_heads": 112,
            "n_inner": None,
            "vocab_size": 250880,
            "seq_length": 2048,
            "offset_alibi": 100,
            "skip_bias_add": True,
            "masked_softmax_fusion": True,
        },
    ),
    "falcon 7b, old decoder": (
        6_921_720_704,
        {
            "model_type": "falcon",
            "architectures": ["FalconForCausalLM"],
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_kv_heads": 71,
            "multi_query": True,
            "new_decoder_architecture": False,
            "parallel_attn": True,
            "bias": False,
            "vocab_size": 65024,
        },
    ),
    "falcon 40b, first name": (
        41_303_293_952,
        {
            "model_type": "RefinedWeb",
            "architectures": ["RWForCausalLM"],
            "hidden_size": 8192,
            "n_layer": 60,
            "n_head": 128,
            "n_head_kv": 8,
            "parallel_attn": True,
            "alibi": False,
            "vocab_size": 65024,
        },
    ),
    "glm-4 9b, chatglm keys": (
        9_399_951_360,
        {
            "model_type": "chatglm",
            "architectures": ["ChatGLMModel"],
            "add_bias_linear": False,
            "add_qkv_bias": True,
            "ffn_hidden_size": 13696,
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_layers": 40,
            "rope_ratio": 500,
            "padded_vocab_size": 151552,
            "post_layer_norm": True,
            "rmsnorm": True,
            "seq_length": 131072,
        },
    ),
    "gpt-neox 20b": (
        20_554_567_680,
        {
            "architectures": ["GPTNeoXForCausalLM"],
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 64,
            "num_hidden_layers": 44,
            "rotary_pct": 0.25,
            "vocab_size": 50432,
        },
    ),
    "gpt-j 6b": (
        6_050_882_784,
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 28,
            "n_positions": 2048,
            "rotary_dim": 64,
            "tie_word_embeddings": False,
            "vocab_size": 50400,
        },
    ),
    "starcoder": (
        15_517_456_384,
        {
            "model_type": "gpt_bigcode",
            "n_embd": 6144,
            "n_head": 48,
            "n_layer": 40,
            "n_inner": 24576,
            "n_positions": 8192,
            "multi_query": True,
            "vocab_size": 49152,
        },
    ),
    "deepseek-moe 16b": (
        16_375_728_128,
        {
            "model_type": "deepseek",
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_hidden_layers": 28,
            "vocab_size": 102400,
        },
    ),
    "qwen2 57b-a14b": (
        57_408_658_944,
        {
            "model_type": "qwen2_moe",
            "architectures": ["Qwen2MoeForCausalLM"],
            "decoder_sparse_step": 1,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "moe_intermediate_size": 2560,
            "num_attention_heads": 28,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "shared_expert_intermediate_size": 20480,
            "vocab_size": 151936,
        },
    ),
    "olmoe 1b-7b": (
        6_919_161_856,
        {
            "model_type": "olmoe",
            "hidden_size": 2048,
            "intermediate_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 16,
            "vocab_size": 50304,
        },
    ),
    "command r 35b": (
        34_980_831_232,
        {
            "model_type": "cohere",
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "num_hidden_layers": 40,
            "use_qk_norm": False,
            "vocab_size": 256000,
        },
    ),
    "starcoder2 15b": (
        15_957_889_024,
        {
            "model_type": "starcoder2",
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 48,
            "num_key_value_heads": 4,
            "num_hidden_layers": 40,
            "tie_word_embeddings": False,
            "use_bias": True,
            "vocab_size": 49152,
        },
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_style(style):
    expected, data = STYLES[style]
    assert build_model(read_config(data), 64).num_params == expected


def test_two_names_of_one_thing_must_agree():
    data = dict(STYLES["glm-4 9b, chatglm keys"][1], num_layers=28)
    with pytest.raises(PlannerError, match="num_layers = 28 and num_hidden_layers = 40"):
        read_config(data)


def test_opt_350m_is_refused_for_both_its_peculiarities():
    data = {
        "model_type": "opt",
        "hidden_size": 1024,
        "word_embed_proj_dim": 512,
        "do_layer_norm_before": False,
        "ffn_dim": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "vocab_size": 50272,
    }
    with pytest.raises(PlannerError) as caught:
        read_config(data)
    assert [fault.code for fault in caught.value.faults] == ["M03", "M03"]


def test_families_are_many():
    assert len(FAMILIES) >= 40
