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
    text = (
        commented(header(view, RELEASE)) + 'base_config: "base.yml"\n' + yaml_text(settings(view))
    )
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
        "logical_axis_rules": rules(view, data_axis, tensor),
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


def rules(view: View, data: str, tensor: str) -> list[list[Json]]:
    """Logical axes of activations and weights to mesh axes, as the plan's operators are cut."""
    by_tensor = {"heads", "kv_heads", "ffn", "vocab"}
    cut = {op.split["tp"] for op in view.operators() if "tp" in op.split}
    head = view.block("head")
    cut |= {op.split["tp"] for op in (head.operators if head else ()) if "tp" in op.split}
    names = {"heads": "heads", "kv_heads": "kv_heads", "ffn": "mlp", "vocab": "vocab"}
    rows: list[list[Json]] = [
        ["activation_batch", [data, "expert"]],
        ["activation_length", ["context"]],
        ["embed", [data] if data == "fsdp" else []],
        ["exp", ["expert"]],
        ["layers", ["pipeline"]],
    ]
    rows += [[names[dim], [tensor]] for dim in sorted(cut & by_tensor)]
    rows += [[f"activation_{names[dim]}", [tensor]] for dim in sorted(cut & by_tensor)]
    if tensor == "tensor_sequence":
        rows.append(["activation_norm_length", [tensor, "context"]])
    return rows


MEASURED = Remeasured(
    framework="MaxText",
    command=(
        "python3 -m maxtext.trainers.pre_train.train maxtext.yml run_name=remeasure "
        "dataset_type=synthetic steps=20 enable_checkpointing=false"
    ),
    seconds=r"completed step: [0-9]+, seconds: ([0-9.]+)",
)
