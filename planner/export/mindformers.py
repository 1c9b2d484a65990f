"""MindFormers: the sections of a YAML file that decide the layout, and the model's.

Sections ``parallel_config``, ``recompute_config``, ``moe_config`` and ``runner_config`` are strict; ``parallel`` is
not, and three faults pass silently: fewer micro-batches than stages, experts that ep does not divide, ``vocab_emb_dp``
with stages. Release: MindFormers 1.9.0 on MindSpore 2.9.
"""

from __future__ import annotations

from planner.export.files import File
from planner.export.refusal import Limits, any_level, equal_layers, offloads, pinned, schedules
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import Shape, shape_of
from planner.export.view import View, commented, header
from planner.export.yaml_text import yaml_text
from planner.units import GIB, Json

RELEASE = "MindFormers 1.9.0"
SELECTED = {
    "mlp.act": [r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu"],
    "moe.act": [r"feed_forward\.ffn\.mul", r"feed_forward\.ffn\.w1\.activation\.silu"],
    "shared.act": [r"shared_experts\.mul", r"shared_experts\.w1\.activation\.silu"],
    "norm1": [r"attention_norm\."],
    "norm2": [r"ffn_norm\."],
}
"""Operators to patterns of ``select_recompute``."""
SCHEDULERS = {"1f1b": "1f1b", "interleaved": "1f1b", "gpipe": "gpipe", "zbv": "zero_bubble_v"}
SMALL_NORMS = frozenset({"attn.q_norm", "attn.k_norm", "attn.kv_norm"})


def write(view: View) -> list[File]:
    """``mindformers.yaml`` and the script that measures.

    Raises:
        PlannerError: what MindFormers cannot hold, or would take although it is wrong (W01).
    """
    shape = shape_of(view)
    _check(view, shape)
    head = header(view, RELEASE)
    if shape.odd:
        head.append(f"not in model_config, add your own keys for: {', '.join(shape.odd)}")
    text = commented(head) + yaml_text(settings(view, shape))
    return [File("mindformers.yaml", text), remeasure(view, MEASURED)]


def _check(view: View, shape: Shape) -> None:
    d, limits = view.degrees, Limits(RELEASE)
    offloads(limits, view)
    equal_layers(limits, view)
    schedules(limits, view, "1f1b", "gpipe", "interleaved", "zbv")
    any_level(limits, view, (0, 1))
    limits.refuse(
        d.pp > 1 and d.num_micro_batches < d.pp,
        f"{d.num_micro_batches} micro-batches in {d.pp} stages",
        pinned(f"pp<={d.num_micro_batches}"),
    )
    limits.refuse(
        shape.experts > 0 and d.etp != d.tp,
        f"etp {d.etp} with tp {d.tp}: model_parallel splits experts too",
        pinned(f"etp={d.tp}"),
    )
    limits.refuse(d.dp % d.ep > 0, f"ep {d.ep} that is no part of dp {d.dp}", pinned("ep=1"))
    limits.refuse(
        d.order.index("pp") < d.order.index("dp") and d.pp > 1,
        "stages inside data parallelism",
        pinned("order=tp-cp-dp-pp"),
    )
    strange = (
        sorted(view.recomputed - {*SELECTED, *SMALL_NORMS})
        if d.recompute in ("selective", "mixed")
        else []
    )
    limits.refuse(bool(strange), f"recompute of {', '.join(strange)}", pinned("recompute=full"))
    limits.refuse(
        shape.gated is False or shape.norm != "rms",
        f"the model {view.plan.model.name}: no Llama-like one",
        "--to dtensor, which describes no model",
    )
    limits.done()


def settings(view: View, shape: Shape) -> dict[str, Json]:
    """The sections, in the order of MindFormers' own files."""
    d = view.degrees
    data: dict[str, Json] = {
        "seed": 1,
        "run_mode": "train",
        "use_parallel": True,
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": view.plan.model.name},
        "runner_config": {
            "epochs": 1,
            "batch_size": d.micro_batch,
            "sink_mode": True,
            "sink_size": 1,
            "gradient_accumulation_steps": 1 if d.pp > 1 else d.num_micro_batches,
        },
        "parallel": parallel(view),
        "parallel_config": parallel_config(view),
        "micro_batch_interleave_num": 1,
        "recompute_config": recompute_config(view),
        "context": {
            "mode": 0,
            "device_target": "Ascend",
            "max_device_memory": f"{int(view.plan.memory_limit / GIB)}GB",
        },
        "model": {"model_config": model_config(view, shape), "arch": {"type": _arch(shape)}},
    }  # fmt: skip
    if shape.experts:
        data["moe_config"] = {
            "expert_num": shape.experts,
            "routing_policy": "TopkRouterV2",
            "num_experts_chosen": shape.top_k,
            "shared_expert_num": shape.shared_ffn // shape.expert_ffn,
            "moe_intermediate_size": shape.expert_ffn,
            "balance_via_topk_bias": shape.router_bias,
            "first_k_dense_replace": sum(shape.dense),
        }
    return data


def parallel(view: View) -> dict[str, Json]:
    """Settings that go to MindSpore itself; 1 is semi-auto."""
    d = view.degrees
    data: dict[str, Json] = {
        "parallel_mode": 1,
        "gradients_mean": False,
        "full_batch": False,
        "dataset_strategy": [[d.dp, 1]],
        "enable_alltoall": d.ep > 1,
        "enable_parallel_optimizer": view.level == 1,
        "parallel_optimizer_config": {
            "gradient_accumulation_shard": False,
            "parallel_optimizer_threshold": 64,
        },
        "pipeline_config": {
            "pipeline_interleave": d.vpp > 1,
            "pipeline_scheduler": SCHEDULERS[d.schedule],
        },
    }
    if view.level == 1 and d.shard_group < d.dp * d.cp:
        data["parallel_optimizer_config"]["optimizer_weight_shard_size"] = d.shard_group
    return data


def parallel_config(view: View) -> dict[str, Json]:
    """Degrees. The embedding is split by the vocabulary, as the plan has it."""
    d = view.degrees
    return {
        "data_parallel": d.dp,
        "model_parallel": d.tp,
        "context_parallel": d.cp,
        "context_parallel_algo": "colossalai_cp",
        "expert_parallel": d.ep,
        "pipeline_stage": d.pp,
        "micro_batch_num": d.num_micro_batches if d.pp > 1 else 1,
        "use_seq_parallel": d.sequence_parallel and d.tp > 1,
        "vocab_emb_dp": False,
        "gradient_aggregation_group": 4,
    }


def recompute_config(view: View) -> dict[str, Json]:
    """Which operators are computed again: of all layers, or of so many of every stage.

    Where layers differ, numbers are spread over the chunks of a stage in turn, and a layer that is in both lists is
    computed again as a whole (MindFormers, ``LayerSetting``).
    """
    mode = view.degrees.recompute
    chosen = [
        pattern for name in sorted(view.recomputed & SELECTED.keys()) for pattern in SELECTED[name]
    ]
    again: Json = mode == "full"
    select: Json = chosen if mode == "selective" else False
    if mode == "mixed":
        counts = [stage.recompute for stage in view.plan.stages]
        again = [count.get("full", 0) for count in counts]
        reach = [count.get("full", 0) + count.get("selective", 0) for count in counts]
        select = dict.fromkeys(chosen, reach) if reach != again else False
    return {
        "recompute": again,
        "select_recompute": select,
        "parallel_optimizer_comm_recompute": False,
        "mp_comm_recompute": mode in ("full", "mixed"),
        "recompute_slice_activation": False,
    }


def offsets(view: View) -> Json:
    """Layers of every stage (and chunk) beyond the equal share; 0 where all are equal."""
    if view.even:
        return 0
    share = view.plan.model.num_layers // len(view.visits)
    rest = [len(visit) - share for visit in view.visits]
    pp = view.degrees.pp
    rows = [rest[start : start + pp] for start in range(0, len(rest), pp)]
    return rows[0] if len(rows) == 1 else rows


def model_config(view: View, shape: Shape) -> dict[str, Json]:
    """The model and how its layers are given to stages."""
    recipe = view.plan.recipe
    narrow = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "bfloat16"}
    data: dict[str, Json] = {
        "type": "DeepseekV3Config" if shape.latent else "LlamaConfig",
        "batch_size": view.degrees.micro_batch,
        "seq_length": recipe.seq,
        "hidden_size": shape.hidden,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "n_kv_heads": shape.kv_heads,
        "intermediate_size": shape.ffn or shape.expert_ffn,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "use_flash_attention": True,
        "compute_dtype": narrow[recipe.precision],
        "param_init_type": "float32",
        "offset": offsets(view),
        "pp_interleave_num": view.degrees.vpp,
    }
    if shape.latent:
        data |= {
            "q_lora_rank": shape.q_latent or None,
            "kv_lora_rank": shape.kv_latent,
            "qk_rope_head_dim": shape.rope_dim,
            "qk_nope_head_dim": shape.nope_dim,
            "v_head_dim": shape.value_dim,
            "mtp_depth": shape.mtp,
        }
    elif shape.head_dim * shape.heads != shape.hidden:
        data["head_dim"] = shape.head_dim
    if shape.qk_norm:
        data["qk_layernorm"] = True
    return data


def _arch(shape: Shape) -> str:
    return "DeepseekV3ForCausalLM" if shape.latent else "LlamaForCausalLM"


MEASURED = Remeasured(
    framework=RELEASE,
    command=(
        'bash "${MINDFORMERS:?the folder of MindFormers}/scripts/msrun_launcher.sh" '
        '"run_mindformer.py --config $PWD/mindformers.yaml --runner_config.stop_step 20" '
        "$((NODES * PER_NODE)) $PER_NODE ${MASTER_ADDR:-127.0.0.1} ${MASTER_PORT:-8118} ${NODE_RANK:-0}"
    ),
    seconds=r"per_step_time: *([0-9.]+) *ms",
    seconds_unit=1e-3,
    memory=r"Actual peak memory usage[^0-9]*([0-9.]+) *M",
    memory_gib=1 / 1024,
)
