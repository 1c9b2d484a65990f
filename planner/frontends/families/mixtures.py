"""Mixtures of experts: Mixtral, Qwen, DeepSeek and its kin, gpt-oss, Llama 4, OLMoE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.frontends.families.common import (
    Family,
    Shape,
    architecture,
    attention,
    fit,
    layer_types,
    mixture,
    shape,
    windowed,
)
from planner.frontends.families.config import Config
from planner.frontends.families.llama_like import qwen_windows
from planner.graph.architecture import (
    Architecture,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mlp,
)

TOP_K = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
GROUPING = ("n_group", "topk_group", "topk_method", "scoring_func", "routed_scaling_factor")
"""How experts are chosen among groups; no weights but the router's bias hang on it."""


def _layers(
    cores: Sequence[Attention | LatentAttention], sparse: Sequence[bool], dense: Mlp, moe: Experts
) -> list[Layer]:
    pairs = zip(cores, sparse, strict=True)
    return [Layer(name="", attention=a, mlp=moe if here else dense) for a, here in pairs]


def mixtral(c: Config) -> Architecture:
    """Mixtral: experts in every layer."""
    base = shape(c, default_seq=131072)
    core = attention(c, base.hidden, default_kv=8, window=c.maybe("sliding_window", most=10**9))
    moe = mixture(c, ("num_local_experts",), TOP_K, c.size("intermediate_size"))
    return architecture(c, base, [Layer(name="", attention=core, mlp=moe)] * base.layers)


def qwen2_moe(c: Config) -> Architecture:
    """Qwen 1.5 and 2 MoE: a gated shared expert beside the routed ones."""
    base = shape(c, default_seq=32768)
    core = attention(c, base.hidden, qkv_bias=c.flag("qkv_bias", default=True))
    shared = c.size("shared_expert_intermediate_size", default=0, least=0)
    return _qwen(c, base, core, shared)


def qwen3_moe(c: Config) -> Architecture:
    """Qwen 3 MoE: normed queries and keys, no shared expert."""
    base = shape(c, default_seq=32768)
    bias = c.flag("attention_bias")
    c.only("use_qk_norm", True, "attention without norms of queries and keys")
    c.only("qkv_bias", False, "a bias of queries, keys and values")
    c.only("shared_expert_intermediate_size", 0, "a shared expert")
    core = attention(
        c, base.hidden, default_head_dim=None, qk_norm="head", qkv_bias=bias, out_bias=bias
    )
    return _qwen(c, base, core, 0)


def _qwen(c: Config, base: Shape, core: Attention, shared: int) -> Architecture:
    step = c.size("decoder_sparse_step", default=1)
    only = set(c.items("mlp_only_layers", int) or ())
    moe = mixture(
        c,
        ("num_experts", "num_local_experts"),
        TOP_K,
        c.size("moe_intermediate_size"),
        shared_width=shared,
        shared_gate=shared > 0,
    )
    sparse = [index not in only and (index + 1) % step == 0 for index in range(base.layers)]
    width = moe.width if all(sparse) else c.size("intermediate_size")
    c.known("intermediate_size")
    return architecture(
        c, base, _layers(qwen_windows(c, base, core), sparse, Mlp(width=width), moe)
    )


def olmoe(c: Config) -> Architecture:
    """OLMoE: one norm over all queries and one over all keys."""
    base = shape(c, default_seq=4096)
    bias = c.flag("attention_bias")
    c.known("clip_qkv")
    core = attention(c, base.hidden, qk_norm="all", qkv_bias=bias, out_bias=bias)
    moe = mixture(c, ("num_experts",), TOP_K, c.size("intermediate_size"))
    return architecture(c, base, [Layer(name="", attention=core, mlp=moe)] * base.layers)


def gpt_oss(c: Config) -> Architecture:
    """gpt-oss: biases everywhere, sinks, every other layer windowed, experts in all."""
    base = shape(c, default_seq=131072)
    bias = c.flag("attention_bias", default=True)
    core = attention(
        c, base.hidden, default_kv=8, default_head_dim=64, qkv_bias=bias, out_bias=bias, sinks=True
    )
    reach = c.size("sliding_window", default=128)
    where = layer_types(c, base.layers, lambda index: index % 2 == 0)
    moe = mixture(
        c, ("num_local_experts",), TOP_K, c.size("intermediate_size"), bias=True, router_bias=True
    )
    cores = windowed(core, reach, where)
    return architecture(c, base, [Layer(name="", attention=a, mlp=moe) for a in cores])


def deepseek_v2(c: Config) -> Architecture:
    """DeepSeek-V2: latent attention, fine-grained experts, shared ones, the first layers dense."""
    return _deepseek(c, _latent(c), router_bias=False)


def deepseek_v3(c: Config) -> Architecture:
    """DeepSeek-V3, Kimi K2, TeleChat 3: also a bias in the router and multi-token prediction."""
    method = c.word("topk_method", default="noaux_tc")
    return _deepseek(c, _latent(c), router_bias=method == "noaux_tc")


def deepseek_v1(c: Config) -> Architecture:
    """DeepSeekMoE: the same experts behind plain attention."""
    base = c.size("hidden_size")
    bias = c.flag("attention_bias")
    core = attention(c, base, qkv_bias=bias, out_bias=bias)
    return _deepseek(c, core, router_bias=False)


def glm4_moe(c: Config) -> Architecture:
    """GLM-4.5: DeepSeek-V3's experts behind grouped-query attention."""
    bias = c.flag("attention_bias")
    norm = "head" if c.flag("use_qk_norm") else "none"
    hidden = c.size("hidden_size")
    core = attention(c, hidden, default_kv=8, default_head_dim=128, qkv_bias=bias, qk_norm=norm)
    return _deepseek(c, core, router_bias=True)


def _latent(c: Config) -> LatentAttention:
    c.only("attention_bias", False, "a bias in latent attention")
    if "q_lora_rank" not in c.data:
        c.missing("q_lora_rank", "null")
    c.known("num_key_value_heads", "head_dim", "qk_head_dim")
    return LatentAttention(
        heads=c.size("num_attention_heads"),
        q_latent=c.maybe("q_lora_rank"),
        kv_latent=c.size("kv_lora_rank"),
        nope_dim=c.size("qk_nope_head_dim"),
        rope_dim=c.size("qk_rope_head_dim"),
        value_dim=c.size("v_head_dim"),
    )


def _deepseek(c: Config, core: Attention | LatentAttention, *, router_bias: bool) -> Architecture:
    base = shape(c, default_seq=4096)
    c.known(*GROUPING, "seq_aux")
    c.only("mlp_bias", False, "a bias in the MLP")
    first = c.size("first_k_dense_replace", default=0, least=0)
    every = c.size("moe_layer_freq", default=1)
    width = c.size("moe_intermediate_size")
    moe = mixture(
        c,
        ("n_routed_experts",),
        TOP_K,
        width,
        shared_width=width * c.size("n_shared_experts", default=0, least=0),
        router_bias=router_bias,
    )
    sparse = [index >= first and index % every == 0 for index in range(base.layers)]
    dense = Mlp(width=width if all(sparse) else c.size("intermediate_size"))
    c.known("intermediate_size")
    modules = c.size("num_nextn_predict_layers", default=0, least=0, most=64)
    return architecture(c, base, _layers([core] * base.layers, sparse, dense, moe), mtp=modules)


def llama4(c: Config) -> Architecture:
    """Llama 4, language part: a shared expert, chunked attention, every fourth layer full and without rotary.

    Norms of queries and keys have no weights and follow the rotation, so only layers with it have them.
    """
    base = shape(c, default_seq=131072)
    bias = c.flag("attention_bias")
    core = attention(
        c, base.hidden, default_kv=8, default_head_dim=128, qkv_bias=bias, out_bias=bias
    )
    c.known("attn_temperature_tuning", "attn_scale", "floor_scale", "for_llm_compressor")
    width = c.size("intermediate_size")
    moe = mixture(c, ("num_local_experts",), TOP_K, width, shared_width=width)
    dense = Mlp(width=c.size("intermediate_size_mlp"))
    step = c.size("interleave_moe_layer_step", default=1)
    chosen = c.items("moe_layers", int)
    mixed = range(step - 1, base.layers, step) if chosen is None else chosen
    sparse = [index in mixed for index in range(base.layers)]
    return architecture(c, base, _layers(_llama4_cores(c, base, core), sparse, dense, moe))


def _llama4_cores(c: Config, base: Shape, core: Attention) -> list[Attention]:
    reach = c.maybe("attention_chunk_size")
    every = c.size("no_rope_layer_interval", default=4)
    given = c.items("no_rope_layers", int)
    if given:
        rotary = [bool(flag) for flag in given]
        if len(rotary) != base.layers and not c.faults:
            c.impossible(f"gives {len(rotary)} no_rope_layers for {base.layers} layers.")
    else:
        rotary = [(index + 1) % every != 0 for index in range(base.layers)]
    rotary = fit(rotary, base.layers)
    where = layer_types(c, base.layers, lambda index: rotary[index])
    normed = replace(core, qk_norm="plain") if c.flag("use_qk_norm", default=True) else core
    narrow = {True: replace(normed, window=reach), False: normed}
    still = replace(core, rotary=False)
    return [
        narrow[here] if turned else replace(still, window=reach if here else None)
        for here, turned in zip(where, rotary, strict=True)
    ]


FAMILIES: dict[str, tuple[Family, tuple[str, ...]]] = {
    "mixtral": (mixtral, ("MixtralForCausalLM",)),
    "qwen2_moe": (qwen2_moe, ("Qwen2MoeForCausalLM",)),
    "qwen3_moe": (qwen3_moe, ("Qwen3MoeForCausalLM",)),
    "olmoe": (olmoe, ("OlmoeForCausalLM",)),
    "gpt_oss": (gpt_oss, ("GptOssForCausalLM",)),
    "deepseek": (deepseek_v1, ("DeepseekForCausalLM",)),
    "deepseek_v2": (deepseek_v2, ("DeepseekV2ForCausalLM",)),
    "deepseek_v3": (deepseek_v3, ("DeepseekV3ForCausalLM",)),
    "kimi_k2": (deepseek_v3, ("DeepseekV3ForCausalLM",)),
    "telechat3_moe": (deepseek_v3, ("TeleChat3MoeForCausalLM",)),
    "glm4_moe": (glm4_moe, ("Glm4MoeForCausalLM",)),
    "llama4_text": (llama4, ("Llama4ForCausalLM",)),
}
"""Family by model_type, with the architecture names that mean the same."""
