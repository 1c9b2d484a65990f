"""Dense decoders after Llama's pattern: pre-norms, rotary grouped-query attention, a gated MLP."""

from __future__ import annotations

from dataclasses import replace

from planner.frontends.families.common import (
    Family,
    Shape,
    architecture,
    attention,
    layer_types,
    shape,
    windowed,
)
from planner.frontends.families.config import Config
from planner.graph.architecture import Architecture, Attention, Layer, Mlp, NormKind
from planner.units import Json


def dense(
    c: Config,
    base: Shape,
    per_layer: list[Attention],
    *,
    width: int | None = None,
    gated: bool = True,
    mlp_bias: bool = False,
    norm: NormKind = "rms",
    **layer: Json,
) -> Architecture:
    """A decoder whose layers differ at most in their attention."""
    size = c.size("intermediate_size") if width is None else width
    mlp = Mlp(width=size, gated=gated, bias=mlp_bias)
    layers = [Layer(name="", attention=a, mlp=mlp, **layer) for a in per_layer]
    return architecture(c, base, layers, norm=norm)


def llama(c: Config) -> Architecture:
    """Llama 1 to 3, Code Llama, Yi: optional biases in attention (all four) and MLP."""
    base = shape(c)
    bias = c.flag("attention_bias")
    core = attention(c, base.hidden, qkv_bias=bias, out_bias=bias)
    return dense(c, base, [core] * base.layers, mlp_bias=c.flag("mlp_bias"))


def mistral(c: Config) -> Architecture:
    """Mistral: every layer windowed unless ``sliding_window`` is null (missing means 4096)."""
    base = shape(c, default_seq=131072)
    core = attention(c, base.hidden, default_kv=8)
    reach = c.maybe("sliding_window")
    if "sliding_window" not in c.data:
        reach = 4096
    return dense(c, base, [replace(core, window=reach)] * base.layers)


def qwen_windows(c: Config, base: Shape, core: Attention) -> list[Attention]:
    """Qwen: layers from ``max_window_layers`` on are windowed where ``use_sliding_window`` says so."""
    reach = c.maybe("sliding_window", most=10**9)
    first = c.size("max_window_layers", default=28, least=0)
    on = c.flag("use_sliding_window")
    where = layer_types(c, base.layers, lambda index: on and index >= first)
    return windowed(core, reach if on else None, where)


def qwen2(c: Config) -> Architecture:
    """Qwen 1.5 to 2.5: biases on queries, keys and values."""
    base = shape(c, default_seq=32768)
    core = attention(c, base.hidden, qkv_bias=True)
    return dense(c, base, qwen_windows(c, base, core))


def qwen3(c: Config) -> Architecture:
    """Qwen 3: normed queries and keys, heads of 128 unless stated."""
    base = shape(c, default_seq=32768)
    bias = c.flag("attention_bias")
    core = attention(
        c, base.hidden, default_head_dim=128, qk_norm="head", qkv_bias=bias, out_bias=bias
    )
    return dense(c, base, qwen_windows(c, base, core))


def gemma(c: Config) -> Architecture:
    """Gemma 1: heads of 256, tied embeddings."""
    base = shape(c, tied=True, default_seq=8192)
    bias = c.flag("attention_bias")
    c.only("use_bidirectional_attention", False, "attention to later tokens")
    core = attention(c, base.hidden, default_head_dim=256, qkv_bias=bias, out_bias=bias)
    return dense(c, base, [core] * base.layers)


def gemma2(c: Config) -> Architecture:
    """Gemma 2: four norms a layer, every other layer windowed."""
    return _gemma_windowed(c, shape(c, tied=True, default_seq=8192), 4096, 2)


def gemma3(c: Config) -> Architecture:
    """Gemma 3: also normed queries and keys; five windowed layers to one full."""
    base = shape(c, tied=True, default_seq=131072, default_vocab=262208)
    every = c.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _gemma_windowed(c, base, 1024, every, qk_norm="head", default_heads=8)


def _gemma_windowed(c: Config, base: Shape, reach: int, every: int, **facts: Json) -> Architecture:
    bias = c.flag("attention_bias")
    c.only("use_bidirectional_attention", False, "attention to later tokens")
    core = attention(
        c,
        base.hidden,
        default_kv=4,
        default_head_dim=256,
        qkv_bias=bias,
        out_bias=bias,
        **facts,
    )
    reach = c.size("sliding_window", default=reach)
    where = layer_types(c, base.layers, lambda index: bool((index + 1) % every))
    return dense(c, base, windowed(core, reach, where), post_norms=True)


def phi3(c: Config) -> Architecture:
    """Phi-3 and Phi-4: as Llama, with an optional window over every layer."""
    base = shape(c, default_seq=4096)
    c.only("attention_bias", False, "a bias in attention")
    core = attention(c, base.hidden, window=c.maybe("sliding_window", most=10**9))
    return dense(c, base, [core] * base.layers)


def glm(c: Config) -> Architecture:
    """GLM-4 9B in the key style of transformers: biases on queries, keys and values only."""
    return _glm(c, post_norms=False)


def glm4(c: Config) -> Architecture:
    """GLM-4-0414: four norms a layer."""
    return _glm(c, post_norms=True)


def _glm(c: Config, *, post_norms: bool) -> Architecture:
    base = shape(c, default_seq=131072)
    bias = c.flag("attention_bias", default=not post_norms)
    core = attention(c, base.hidden, default_kv=2, default_head_dim=128, qkv_bias=bias)
    return dense(c, base, [core] * base.layers, post_norms=post_norms)


def internlm2(c: Config) -> Architecture:
    """InternLM 2: one flag for all biases of attention."""
    return _internlm(c, default=False)


def internlm(c: Config) -> Architecture:
    """InternLM 1: biases in attention unless switched off."""
    return _internlm(c, default=True)


def _internlm(c: Config, *, default: bool) -> Architecture:
    base = shape(c)
    bias = c.flag("bias", default=default)
    core = attention(c, base.hidden, qkv_bias=bias, out_bias=bias)
    return dense(c, base, [core] * base.layers)


def baichuan(c: Config) -> Architecture:
    """Baichuan 1 and 2: rotary (7B) or, where only ``model_max_length`` is stated, ALiBi (13B)."""
    base = shape(c, default_seq=4096)
    core = attention(c, base.hidden, rotary="max_position_embeddings" in c.data)
    return dense(c, base, [core] * base.layers)


def seed_oss(c: Config) -> Architecture:
    """Seed-OSS: biases of queries, keys and values apart from the output's."""
    base = shape(c, default_seq=524288)
    core = attention(
        c,
        base.hidden,
        default_head_dim=128,
        qkv_bias=c.flag("attention_bias", default=True),
        out_bias=c.flag("attention_out_bias"),
    )
    return dense(c, base, [core] * base.layers, mlp_bias=c.flag("mlp_bias"))


def granite(c: Config) -> Architecture:
    """Granite 3: Llama with scalar multipliers, which have no weights."""
    c.known("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    return llama(c)


def olmo(c: Config) -> Architecture:
    """OLMo 1: norms without weights."""
    base = shape(c)
    bias = c.flag("attention_bias")
    c.known("clip_qkv")
    core = attention(c, base.hidden, qkv_bias=bias, out_bias=bias)
    return dense(c, base, [core] * base.layers, norm="none")


def cohere(c: Config) -> Architecture:
    """Command R: attention and MLP side by side behind one norm without bias; tied."""
    base = shape(c, tied=True, default_seq=8192)
    bias = c.flag("attention_bias")
    c.only("use_qk_norm", False, "a norm of queries and keys by head")
    core = attention(c, base.hidden, qkv_bias=bias, out_bias=bias)
    return dense(c, base, [core] * base.layers, norm="layer-no-bias", parallel=True)


def starcoder2(c: Config) -> Architecture:
    """StarCoder 2: layer norms, biases everywhere, a plain MLP."""
    base = shape(c, tied=True, default_seq=4096)
    bias = c.flag("use_bias", default=True)
    core = attention(
        c,
        base.hidden,
        default_kv=2,
        qkv_bias=bias,
        out_bias=bias,
        window=c.maybe("sliding_window", most=10**9),
    )
    return dense(c, base, [core] * base.layers, gated=False, mlp_bias=bias, norm="layer")


def stablelm(c: Config) -> Architecture:
    """StableLM: layer norms, optional biases of queries, keys and values."""
    base = shape(c, default_seq=4096)
    c.only("qk_layernorm", False, "a norm of queries and keys for every head apart")
    core = attention(c, base.hidden, qkv_bias=c.flag("use_qkv_bias"))
    side = c.flag("use_parallel_residual")
    return dense(c, base, [core] * base.layers, norm="layer", parallel=side)


def nemotron(c: Config) -> Architecture:
    """Nemotron-4: layer norms, a plain squared-ReLU MLP."""
    base = shape(c, default_seq=4096)
    bias = c.flag("attention_bias")
    core = attention(c, base.hidden, qkv_bias=bias, out_bias=bias)
    plain = c.flag("mlp_bias")
    return dense(c, base, [core] * base.layers, gated=False, mlp_bias=plain, norm="layer")


FAMILIES: dict[str, tuple[Family, tuple[str, ...]]] = {
    "llama": (llama, ("LlamaForCausalLM",)),
    "yi": (llama, ("YiForCausalLM",)),
    "mistral": (mistral, ("MistralForCausalLM",)),
    "qwen2": (qwen2, ("Qwen2ForCausalLM",)),
    "qwen3": (qwen3, ("Qwen3ForCausalLM",)),
    "gemma": (gemma, ("GemmaForCausalLM",)),
    "gemma2": (gemma2, ("Gemma2ForCausalLM",)),
    "gemma3_text": (gemma3, ("Gemma3ForCausalLM",)),
    "phi3": (phi3, ("Phi3ForCausalLM",)),
    "glm": (glm, ("GlmForCausalLM",)),
    "glm4": (glm4, ("Glm4ForCausalLM",)),
    "internlm": (internlm, ("InternLMForCausalLM",)),
    "internlm2": (internlm2, ("InternLM2ForCausalLM",)),
    "baichuan": (baichuan, ("BaichuanForCausalLM",)),
    "seed_oss": (seed_oss, ("SeedOssForCausalLM",)),
    "granite": (granite, ("GraniteForCausalLM",)),
    "olmo": (olmo, ("OlmoForCausalLM",)),
    "cohere": (cohere, ("CohereForCausalLM",)),
    "starcoder2": (starcoder2, ("Starcoder2ForCausalLM",)),
    "stablelm": (stablelm, ("StableLmForCausalLM", "StableLMEpochForCausalLM")),
    "nemotron": (nemotron, ("NemotronForCausalLM",)),
}
"""Family by model_type, with the architecture names that mean the same."""
