"""Encoders before decoders: T5 and its kin, BART."""

from __future__ import annotations

from dataclasses import replace

from planner.frontends.families.common import Family, architecture, shape
from planner.frontends.families.config import MAX_LAYERS, Config
from planner.graph.architecture import Architecture, Attention, Layer, Mlp


def t5(c: Config) -> Architecture:
    """T5, mT5, Flan-T5: heads of their own size, no biases, one table of relative positions in each stack.

    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1; transformers, modeling_t5.
    """
    base = shape(
        c,
        hidden=("d_model",),
        layers=("num_layers",),
        seq=("n_positions",),
        tied=True,
        default_seq=512,
        default_vocab=32128,
    )
    heads = c.size("num_heads")
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=c.size("d_kv", default=64), rotary=False
    )
    feed = c.word("feed_forward_proj", default="relu")
    gated = c.flag("is_gated_act", default=feed.startswith("gated"))
    c.known("dense_act_fn", "relative_attention_max_distance", "initializer_factor")
    c.known("scale_decoder_outputs", "classifier_dropout")
    mlp = Mlp(width=c.size("d_ff"), gated=gated)
    encoder = Layer(name="", attention=replace(attention, causal=False), mlp=mlp, encodes=True)
    decoder = Layer(name="", attention=attention, mlp=mlp, cross=True)
    decoders = c.size("num_decoder_layers", default=base.layers, most=MAX_LAYERS)
    buckets = c.size("relative_attention_num_buckets", default=32)
    layers = [encoder] * base.layers + [decoder] * decoders
    return architecture(c, base, layers, buckets=buckets)


def bart(c: Config) -> Architecture:
    """BART: learned positions with two rows more than the longest sequence, norms behind the additions, biases.

    Source: Lewis et al. 2019 (arXiv 1910.13461), section 2; transformers, modeling_bart.
    """
    c.agree("encoder_layers", "num_hidden_layers")
    base = shape(
        c,
        hidden=("d_model",),
        layers=("encoder_layers", "num_hidden_layers"),
        tied=True,
        default_seq=1024,
    )
    c.only("normalize_before", False, "a norm before attention (mBART)")
    c.only("add_final_layer_norm", False, "a norm behind the last layer (mBART)")
    c.known(
        "scale_embedding", "encoder_layerdrop", "decoder_layerdrop", "static_position_embeddings"
    )
    c.known("classifier_dropout", "classif_dropout", "normalize_embedding", "num_labels")

    def stack(side: str) -> tuple[Attention, Mlp]:
        heads = c.size(f"{side}_attention_heads")
        if not c.faults and base.hidden % heads:
            c.impossible(f"has a width of {base.hidden} that {heads} heads do not divide.")
        core = Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=max(base.hidden // heads, 1),
            qkv_bias=True,
            out_bias=True,
            rotary=False,
            causal=side == "decoder",
        )
        return core, Mlp(width=c.size(f"{side}_ffn_dim"), gated=False, bias=True)

    (own, feed), (core, mlp) = stack("encoder"), stack("decoder")
    encoder = Layer(name="", attention=own, mlp=feed, encodes=True)
    decoder = Layer(name="", attention=core, mlp=mlp, cross=True)
    decoders = c.size("decoder_layers", default=base.layers, most=MAX_LAYERS)
    layers = [encoder] * base.layers + [decoder] * decoders
    return architecture(
        c, base, layers, "layer",
        positions=base.max_seq + 2, embedding_norm=True, final_norm=False,
    )  # fmt: skip


FAMILIES: dict[str, tuple[Family, tuple[str, ...]]] = {
    "t5": (t5, ("T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel")),
    "mt5": (t5, ("MT5ForConditionalGeneration",)),
    "bart": (bart, ("BartForConditionalGeneration", "BartModel")),
}
"""By model_type: how it is read, and the classes that are it."""
