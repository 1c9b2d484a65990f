"""MaxText: YAML over its base.yml, degrees by mesh axis and rules from logical axes to mesh axes.

MaxText's own parser reads it, on a CPU. It derives batches and stages, and takes without a word a mesh that has not as
many ranks as there are chips. Release: MaxText 0.2.5.
"""

from __future__ import annotations

from planner.export.files import File
from planner.export.refusal import (
    Limits,
    any_level,
    equal_layers,
    even_stages,
    no_axis,
    offloads,
    pinned,
    schedules,
    whole_states,
)
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import Shape, shape_of
from planner.export.view import View, commented, header
from planner.export.yaml_text import yaml_text
from planner.units import Json

RELEASE = "MaxText 0.2.5"
BATCH = (
    "activation_batch", "activation_batch_attn", "activation_batch_moe", "activation_kv_batch", "segment_ids_batch",
)  # fmt: skip
LENGTH = (
    "activation_length", "activation_length_attn", "activation_length_moe", "activation_q_length",
)  # fmt: skip
STREAM = ("activation_norm_length", "activation_norm_length_moe", "activation_input_length_attn")
STATES = ("embed", "embed_attn", "embed_vocab", "q_lora", "kv_lora")
EXPERT_STATES = ("embed_moe", "embed_router")
SPLIT = {
    "heads": ("heads", "q_heads", "activation_heads"),
    "kv_heads": ("kv_heads", "activation_kv_heads"),
    "ffn": ("mlp", "activation_mlp"),
    "vocab": ("vocab", "activation_vocab"),
}
"""Logical axes of 0.2.5: batches and lengths of activations, the stream between layers, dims of weights along which
states are sharded, and what tensor parallelism cuts, by our dims."""
REMAT = {"none": "none", "selective": "minimal_with_context", "full": "full"}


def write(view: View) -> list[File]:
    """``maxtext.yml``, to be given as the configuration file.

    Raises:
        PlannerError: what MaxText cannot hold (W01).
    """
    d, limits = view.degrees, Limits("MaxText")
    offloads(limits, view, "optimizer")
    equal_layers(limits, view)
    even_stages(limits, view)
    any_level(limits, view, (0, 3))
    whole_states(limits, view)
    schedules(limits, view, "gpipe")
    no_axis(limits, view, "etp")
    limits.refuse(
        d.ep > 1 and d.dp % d.ep > 0,
        f"ep {d.ep} that is no part of dp {d.dp}: its axis divides the data",
        pinned("ep=1"),
    )
    inside = "tp-cp-pp-dp" if view.level == 0 else "tp-cp-dp-pp"
    limits.refuse(
        d.pp > 1 and d.dp > 1 and d.order != tuple(inside.split("-")),
        f"the order {'-'.join(d.order)} of its axes: {'data' if view.level == 0 else 'stage'} is the slowest there",
        pinned(f"order={inside}"),
    )
    limits.refuse(
        d.ep > 1 and d.tp > 1,
        f"ep {d.ep} beside tp {d.tp}: neighbours share experts there, and tensors here",
        f"{pinned('tp=1')} or ep=1",
    )
    limits.refuse(
        view.plan.recipe.precision not in ("bf16", "fp32"),
        view.plan.recipe.precision,
        "shardwright plan … --precision bf16",
    )
    shape = shape_of(view)
    limits.refuse(
        shape.norm != "rms" or shape.biased or not shape.gated,
        f"the layers of {view.plan.model.name}: those of Llama, Mixtral, Qwen3 and DeepSeek are known by name",
        "your own decoder_block beside --to dtensor",
    )
    limits.done()
    head = header(view, RELEASE)
    if d.pp > 1:
        head.append("every stage has embedding and head there, and the plan the first and the last")
    text = commented(head) + 'base_config: "base.yml"\n' + yaml_text(settings(view))
    return [File("maxtext.yml", text), remeasure(view, MEASURED)]


def settings(view: View) -> dict[str, Json]:
    """Model, mesh, rules and batch."""
    d, recipe, shape = view.degrees, view.plan.recipe, shape_of(view)
    data_axis = "fsdp" if view.level == 3 else "data"
    tensor = "tensor_sequence" if d.sequence_parallel and d.tp > 1 else "tensor"
    degrees = {
        "data": 1,
        "fsdp": 1,
        "context": d.cp,
        "tensor": 1,
        "tensor_sequence": 1,
        "pipeline": d.pp,
        "expert": d.ep,
    }
    degrees[data_axis] = d.dp // d.ep
    degrees[tensor] = d.tp
    chunk = shape.layers // (d.pp * d.vpp)
    keys: dict[str, Json] = {
        "base_num_decoder_layers": shape.layers,
        "base_emb_dim": shape.hidden,
        "base_num_query_heads": shape.heads,
        "base_num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "base_mlp_dim": shape.ffn or shape.expert_ffn,
        "vocab_size": shape.vocab,
        "max_target_length": recipe.seq,
        **{f"ici_{axis}_parallelism": degree for axis, degree in degrees.items()},
        "dcn_data_parallelism": 1,
        "per_device_batch_size": d.micro_batch * d.dp * (d.num_micro_batches if d.pp > 1 else 1) / view.world,
        "gradient_accumulation_steps": 1 if d.pp > 1 else d.num_micro_batches,
        "optimizer_memory_host_offload": d.offload == "optimizer",
        "remat_policy": REMAT[d.recompute],
        "dtype": "float32" if recipe.precision == "fp32" else "bfloat16",
        "logical_axis_rules": rules(view, tensor),
    }  # fmt: skip
    keys |= _layers(shape)
    if d.pp > 1:
        keys |= {
            "num_layers_per_pipeline_stage": chunk,
            "num_pipeline_repeats": d.vpp,
            "num_pipeline_microbatches": d.num_micro_batches,
        }
    return keys


def _layers(shape: Shape) -> dict[str, Json]:
    """Which of MaxText's layers, and the sizes that only some have."""
    kind = "qwen3" if shape.qk_norm else "llama2"
    keys: dict[str, Json] = {"logits_via_embedding": shape.tied}
    if shape.qk_norm:
        keys["use_qk_norm"] = True
    if shape.experts:
        kind = "deepseek" if shape.latent else "qwen3_moe" if shape.qk_norm else "mixtral"
        keys |= {
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.top_k,
            "base_moe_mlp_dim": shape.expert_ffn,
        }
    if shape.experts and shape.latent:
        keys |= {
            "first_num_dense_layers": sum(shape.dense),
            "shared_experts": shape.shared_ffn // shape.expert_ffn,
            "routed_bias": shape.router_bias,
        }
    if shape.latent:
        keys |= {
            "attention_type": "mla",
            "q_lora_rank": shape.q_latent,
            "kv_lora_rank": shape.kv_latent,
            "qk_nope_head_dim": shape.nope_dim,
            "qk_rope_head_dim": shape.rope_dim,
            "v_head_dim": shape.value_dim,
        }
    return {"decoder_block": kind} | keys


def rules(view: View, tensor: str) -> list[list[Json]]:
    """Logical axes of activations and weights to mesh axes, as the plan's operators are cut.

    All of them, since a file's rules stand in place of base.yml's; an axis without a rule is whole. Norms are: their
    weights are the only ones that no data rank has a part of.
    """
    operators = [op for block in view.plan.blocks for op in block.operators]
    cut = {op.split["tp"] for op in operators if "tp" in op.split}
    whole = view.level == 3
    batch = ["data", "fsdp", "expert"]
    stream = ["context", *([tensor] if tensor == "tensor_sequence" else [])]
    table: dict[str, list[str]] = {
        **dict.fromkeys(BATCH, batch),
        **{name: ["context"] for name in LENGTH},
        **dict.fromkeys(STREAM, stream),
        **{name: [tensor] if dim in cut else [] for dim, names in SPLIT.items() for name in names},
        **{name: ["fsdp", "context", "expert"] if whole else [] for name in STATES},
        **{name: ["fsdp", "context"] if whole else [] for name in EXPERT_STATES},
        **{name: ["expert"] for name in ("exp", "activation_exp")},
        **{name: ["stage"] for name in ("layers", "activation_stage")},
        "activation_embed_and_logits_batch": [*batch, "stage"],
        "activation_embed_and_logits_batch_sequence": [*batch, "stage", "context"],
    }
    return [[name, list(axes)] for name, axes in table.items() if axes]


MEASURED = Remeasured(
    framework="MaxText",
    command=(
        "python3 -m maxtext.trainers.pre_train.train maxtext.yml run_name=remeasure "
        "dataset_type=synthetic steps=20 enable_checkpointing=false"
    ),
    seconds=r"completed step: [0-9]+, seconds: ([0-9.]+)",
)
