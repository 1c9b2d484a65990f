"""The older decoders: GPT-2 and its kin, OPT, BLOOM, Falcon, GPT-NeoX, Phi-2, ChatGLM."""

from __future__ import annotations

from planner.frontends.families.common import Family, Shape, architecture, attention, shape
from planner.frontends.families.config import Config
from planner.graph.architecture import Architecture, Attention, Layer, Mlp, NormKind
from planner.units import Json

GPT2_KEYS: dict[str, Json] = {
    "hidden": ("n_embd", "hidden_size"),
    "layers": ("n_layer", "num_hidden_layers"),
    "seq": ("n_positions", "max_position_embeddings", "n_ctx"),
}
GPT2_HEADS = ("n_head", "num_attention_heads")


def _stack(
    c: Config,
    base: Shape,
    core: Attention,
    mlp: Mlp,
    *,
    norm: NormKind = "layer",
    parallel: int = 0,
    **facts: Json,
) -> Architecture:
    """Equal layers; ``parallel`` counts the norms before a parallel pair, 0 where the two follow each other."""
    layer = Layer(
        name="",
        attention=core,
        mlp=mlp,
        parallel=parallel > 0,
        parallel_norms=max(parallel, 1),
    )
    return architecture(c, base, [layer] * base.layers, norm=norm, **facts)


def gpt2(c: Config) -> Architecture:
    """GPT-2: learned positions, biases everywhere, tied."""
    base = shape(c, **GPT2_KEYS, tied=True, default_seq=1024)
    c.only("add_cross_attention", False, "cross-attention")
    core = attention(
        c, base.hidden, heads=GPT2_HEADS, kv=(), qkv_bias=True, out_bias=True, rotary=False
    )
    width = c.size("n_inner", default=4 * base.hidden)
    mlp = Mlp(width=width, gated=False, bias=True)
    return _stack(c, base, core, mlp, positions=base.max_seq)


def gpt_bigcode(c: Config) -> Architecture:
    """StarCoder 1: GPT-2 whose queries may share one key/value head."""
    base = shape(c, **GPT2_KEYS, tied=True, default_seq=1024)
    c.only("add_cross_attention", False, "cross-attention")
    shared = c.flag("multi_query", default=True)
    core = attention(
        c,
        base.hidden,
        heads=GPT2_HEADS,
        kv=(),
        default_kv=1 if shared else None,
        qkv_bias=True,
        out_bias=True,
        rotary=False,
    )
    width = c.size("n_inner", default=4 * base.hidden)
    return _stack(c, base, core, Mlp(width=width, gated=False, bias=True), positions=base.max_seq)


def gptj(c: Config) -> Architecture:
    """GPT-J: rotary, attention without biases, attention and MLP behind one norm, an output bias."""
    base = shape(c, **GPT2_KEYS)
    core = attention(c, base.hidden, heads=GPT2_HEADS, kv=())
    width = c.size("n_inner", default=4 * base.hidden)
    mlp = Mlp(width=width, gated=False, bias=True)
    return _stack(c, base, core, mlp, parallel=1, head_bias=True)


def gpt_neox(c: Config) -> Architecture:
    """GPT-NeoX and Pythia: two norms before attention and MLP side by side."""
    base = shape(c)
    bias = c.flag("attention_bias", default=True)
    core = attention(c, base.hidden, kv=(), qkv_bias=bias, out_bias=bias)
    width = c.size("intermediate_size")
    side = 2 if c.flag("use_parallel_residual", default=True) else 0
    return _stack(c, base, core, Mlp(width=width, gated=False, bias=True), parallel=side)


def opt(c: Config) -> Architecture:
    """OPT: learned positions with two rows more than the longest sequence."""
    base = shape(c, tied=True)
    c.only("do_layer_norm_before", True, "a norm after the residual addition (OPT-350M)")
    c.only("_remove_final_layer_norm", False, "a decoder without final norm")
    c.only("word_embed_proj_dim", base.hidden, "an embedding narrower than the model (OPT-350M)")
    affine = c.flag("layer_norm_elementwise_affine", default=True)
    c.known("layerdrop")
    bias = c.flag("enable_bias", default=True)
    core = attention(c, base.hidden, kv=(), qkv_bias=bias, out_bias=bias, rotary=False)
    mlp = Mlp(width=c.size("ffn_dim"), gated=False, bias=bias)
    norm: NormKind = "layer" if affine else "none"
    return _stack(c, base, core, mlp, norm=norm, positions=base.max_seq + 2)


def bloom(c: Config) -> Architecture:
    """BLOOM: ALiBi, a norm behind the embedding, tied."""
    base = shape(
        c,
        hidden=("hidden_size", "n_embed"),
        layers=("n_layer", "num_hidden_layers"),
        seq=("seq_length",),
        tied=True,
    )
    c.known("n_inner", "apply_residual_connection_post_layernorm")
    core = attention(
        c,
        base.hidden,
        heads=("n_head", "num_attention_heads"),
        kv=(),
        qkv_bias=True,
        out_bias=True,
        rotary=False,
    )
    mlp = Mlp(width=4 * base.hidden, gated=False, bias=True)
    return _stack(c, base, core, mlp, embedding_norm=True)


def falcon(c: Config) -> Architecture:
    """Falcon 7B, 40B and 180B, and Falcon-RW (ALiBi, attention before MLP)."""
    return _falcon(c, new=c.flag("new_decoder_architecture"))


def refined_web(c: Config) -> Architecture:
    """Falcon 40B under its first name, whose file does not say that it is the new decoder."""
    return _falcon(c, new=True)


def _falcon(c: Config, *, new: bool) -> Architecture:
    base = shape(
        c,
        layers=("num_hidden_layers", "n_layer"),
        seq=("max_position_embeddings",),
        tied=True,
    )
    bias, alibi = c.flag("bias"), c.flag("alibi")
    side = c.flag("parallel_attn", default=True)
    norms = c.size("num_ln_in_parallel_attn", default=2 if new else 1, most=2)
    single = c.flag("multi_query", default=True) and not new
    core = attention(
        c,
        base.hidden,
        heads=("num_attention_heads", "n_head"),
        kv=() if single else ("num_kv_heads", "n_head_kv"),
        default_kv=1 if single else None,
        qkv_bias=bias,
        out_bias=bias,
        rotary=not alibi,
    )
    c.known("num_kv_heads", "n_head_kv")
    mlp = Mlp(width=c.size("ffn_hidden_size", default=4 * base.hidden), gated=False, bias=bias)
    return _stack(c, base, core, mlp, parallel=norms if side or new else 0)


def phi(c: Config) -> Architecture:
    """Phi-1 to Phi-2: attention and MLP behind one norm, biases everywhere, the output's too."""
    base = shape(c)
    norm = "head" if c.flag("qk_layernorm") else "none"
    core = attention(c, base.hidden, qkv_bias=True, out_bias=True, qk_norm=norm)
    width = c.size("intermediate_size")
    mlp = Mlp(width=width, gated=False, bias=True)
    return _stack(c, base, core, mlp, parallel=1, head_bias=True)


def chatglm(c: Config) -> Architecture:
    """ChatGLM 2 and 3, GLM-4 9B in its own key style."""
    base = shape(
        c,
        layers=("num_layers", "num_hidden_layers"),
        vocab=("padded_vocab_size", "vocab_size"),
        seq=("seq_length",),
    )
    c.only("post_layer_norm", True, "a decoder without final norm")
    c.only("apply_residual_connection_post_layernorm", False, "a residual taken behind the norm")
    c.known("original_rope", "pre_seq_len", "prefix_projection", "vocab_size")
    bias = c.flag("add_bias_linear")
    grouped = c.flag("multi_query_attention")
    head_dim = c.maybe("kv_channels")
    core = attention(
        c,
        base.hidden,
        kv=("multi_query_group_num",) if grouped else (),
        default_head_dim=head_dim,
        qkv_bias=c.flag("add_qkv_bias") or bias,
        out_bias=bias,
    )
    c.known("multi_query_group_num")
    mlp = Mlp(width=c.size("ffn_hidden_size"), bias=bias)
    norm: NormKind = "rms" if c.flag("rmsnorm", default=True) else "layer"
    return _stack(c, base, core, mlp, norm=norm)


FAMILIES: dict[str, tuple[Family, tuple[str, ...]]] = {
    "gpt2": (gpt2, ("GPT2LMHeadModel",)),
    "gpt_bigcode": (gpt_bigcode, ("GPTBigCodeForCausalLM",)),
    "gptj": (gptj, ("GPTJForCausalLM",)),
    "gpt_neox": (gpt_neox, ("GPTNeoXForCausalLM",)),
    "opt": (opt, ("OPTForCausalLM",)),
    "bloom": (bloom, ("BloomForCausalLM", "BloomModel")),
    "falcon": (falcon, ("FalconForCausalLM",)),
    "RefinedWeb": (refined_web, ("RWForCausalLM",)),
    "RefinedWebModel": (falcon, ()),
    "phi": (phi, ("PhiForCausalLM",)),
    "chatglm": (chatglm, ("ChatGLMModel", "ChatGLMForConditionalGeneration")),
}
"""Family by model_type, with the architecture names that mean the same."""
