"""DeepSpeed's configuration."""

from __future__ import annotations

from collections.abc import Mapping

from planner.errors import listed, nearest
from planner.frontends.launch.found import (
    Reader,
    TrainerFile,
    share_word,
    table_of,
    without_defaults,
)
from planner.units import Json

DEEPSPEED_TOP = frozenset({
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
    "optimizer", "scheduler", "fp16", "bf16", "amp", "gradient_clipping", "prescale_gradients", "steps_per_print",
    "wall_clock_breakdown", "dump_state", "activation_checkpointing", "tensor_parallel", "sequence_parallel_size",
    "communication_data_type", "gradient_predivide_factor", "sparse_gradients", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "flops_profiler", "comms_logger", "tensorboard", "wandb", "csv_monitor",
    "data_types", "checkpoint", "data_efficiency", "curriculum_learning", "elasticity", "autotuning", "aio",
    "pipeline", "compile", "torch_autocast", "use_data_before_expert_parallel_", "hybrid_engine", "memory_breakdown",
})  # fmt: skip
"""Top-level keys of DeepSpeed 0.19.8; it takes any other silently."""
ZERO = frozenset({
    "stage", "allgather_bucket_size", "allgather_partitions", "allgather_sequential", "compute_grad_norm",
    "contiguous_gradients", "cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory", "elastic_checkpoint",
    "enable_sanity_checks", "gather_16bit_weights_on_model_save", "ignore_unused_parameters", "leaf_module",
    "legacy_stage1", "load_from_fp32_weights", "log_trace_cache_warnings", "max_live_parameters",
    "max_reuse_distance", "memory_efficient_linear", "model_persistence_threshold", "module_granularity_threshold",
    "offload_optimizer", "offload_param", "overlap_comm", "override_module_apply", "param_persistence_threshold",
    "parameter_alignment", "pipeline_loading_checkpoint", "prefetch_bucket_size", "reduce_bucket_size",
    "reduce_scatter", "round_robin_gradients", "save_muon_momentum_buffer_in_memory",
    "stage3_allgather_sequential", "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save", "stage3_max_live_parameters", "stage3_max_reuse_distance",
    "stage3_model_persistence_threshold", "stage3_module_granularity_threshold",
    "stage3_param_persistence_threshold", "stage3_prefetch_bucket_size", "stage3_use_all_reduce_for_fetch_params",
    "sub_group_size", "use_all_reduce_for_fetch_params", "use_multi_rank_bucket_allreduce", "zenflow",
    "zero_hpz_partition_size", "zero_quantized_gradients", "zero_quantized_nontrainable_weights",
    "zero_quantized_weights",
})  # fmt: skip
"""Keys of ``zero_optimization``; it refuses any other."""
CHECKPOINTS = frozenset({
    "partition_activations", "number_checkpoints", "contiguous_memory_optimization",
    "synchronize_checkpoint_boundary", "profile", "cpu_checkpointing",
})  # fmt: skip
"""Keys of ``activation_checkpointing``; it takes any other silently, as in the tables below."""
TENSOR = frozenset({
    "autotp_size", "dtype", "injection_policy_tuple", "keep_module_on_host", "partition_config", "preset_model",
    "replace_with_kernel_inject", "tensor_parallel", "tp_overlap_comm", "vocab_parallel_ce_backend",
    "vocab_parallel_lm_head",
})  # fmt: skip
PARTITION = frozenset({
    "tp_size", "layer_specs", "embedding_partition_dim", "lm_head_patterns", "use_default_specs", "strict_mode",
})  # fmt: skip
SPEC = frozenset({
    "patterns", "partition_type", "gather_output", "grad_allreduce", "shape", "partition_dim", "model_types",
})  # fmt: skip
WAYS = ("column", "row", "skip")
PRESETS = ("llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3")


def read_deepspeed(path: str, data: Mapping[str, Json]) -> TrainerFile:
    """DeepSpeed: everything but the model and the chips."""
    r = Reader(path, data)
    r.unknown(DEEPSPEED_TOP, "DeepSpeed's configuration")
    zero = Reader(path, table_of(data, "zero_optimization"), wrong=r.wrong, faults=r.faults)
    for key in sorted(zero.values.keys() - ZERO):
        r.fault("W03", f"zero_optimization has no key '{key}', and DeepSpeed refuses it.",
                f"Nearest: {listed(nearest(key, ZERO, 2))}.")  # fmt: skip
    stage = zero.number("stage")
    if stage not in (0, 1, 2, 3):
        r.fault("W03", f"zero_optimization.stage is {stage}; it can be 0, 1, 2 or 3.")
    host = _in_host(r, zero, stage)
    tp, cp = _autotp(r), r.degree("sequence_parallel_size")
    layout: dict[str, int | str] = {"zero": stage, "tp": tp, "cp": cp, "sp": "off"}
    if host:
        layout["offload"] = host
    micro = r.number("train_micro_batch_size_per_gpu")
    turns, batch = r.number("gradient_accumulation_steps"), r.number("train_batch_size")
    layout["mbs"] = max(micro, 1)
    chips = None
    if micro and turns and batch:
        if batch % (micro * turns):
            r.fault("B01", f"train_batch_size {batch} is no multiple of {micro} × {turns}.",
                    f"Nearest: {_near(batch, micro * turns)}.")  # fmt: skip
        layout["dp"] = max(batch // (micro * turns), 1)
        chips = int(layout["dp"]) * tp * cp
    again = Reader(path, table_of(data, "activation_checkpointing"), wrong=r.wrong, faults=r.faults)
    again.unknown(CHECKPOINTS, "activation_checkpointing")
    if again.number("number_checkpoints") > 0:
        layout["recompute"] = "full"
    else:
        r.notes.append("recompute is decided in the training script, not here; none is assumed")
    r.done()
    narrow = [name for name in ("bf16", "fp16") if table_of(data, name).get("enabled")]
    return TrainerFile(
        path=path, program="deepspeed", trainer="deepspeed", layout=without_defaults(layout),
        chips=chips, global_batch=batch or None, precision=narrow[0] if narrow else "fp32",
        optimizer="sgd" if str(table_of(data, "optimizer").get("type", "")).lower() == "sgd" else "adamw",
        notes=tuple(r.notes), faults=tuple(r.faults),
    )  # fmt: skip


def _in_host(r: Reader, zero: Reader, stage: int) -> str:
    """What is kept in host memory; empty for nothing."""
    hosts: set[str] = set()
    for device in ("offload_param", "offload_optimizer"):
        where = str(table_of(zero.values, device).get("device", "none"))
        if where not in ("none", "cpu"):
            r.notes.append(f"{device} to {where} is priced as to the host's memory")
        hosts |= {device} if where != "none" else set()
        wrong = device == "offload_param" and where != "none" and stage != 3
        r.silently(wrong, f"offload_param does nothing at stage {stage}.", "It needs stage 3.")
    if "offload_param" in hosts and stage == 3:
        return "states"
    share = table_of(zero.values, "offload_optimizer").get("ratio", 1.0)
    whole = stage != 3 or not isinstance(share, int | float)
    return "" if not hosts else "optimizer" if whole else share_word(float(share))


def _autotp(r: Reader) -> int:
    """Ranks that split every layer. What decides how is looked at only when the model is built, and in part never."""
    tensor = Reader(r.path, table_of(r.values, "tensor_parallel"), wrong=r.wrong, faults=r.faults)
    tensor.unknown(TENSOR, "tensor_parallel")
    preset = tensor.text("preset_model")
    r.silently(preset not in ("", *PRESETS), f"preset_model '{preset}' is no preset; it is ignored.",
               f"Presets: {listed(PRESETS)}.")  # fmt: skip
    partition = Reader(r.path, table_of(tensor.values, "partition_config"), faults=r.faults)
    partition.unknown(PARTITION, "partition_config")
    specs = partition.values.get("layer_specs") or []
    for number, spec in enumerate(specs if isinstance(specs, list) else []):
        here = Reader(r.path, spec if isinstance(spec, dict) else {}, faults=r.faults)
        here.unknown(SPEC, f"layer_specs[{number}]")
        r.silently(not here.values.get("patterns"), f"layer_specs[{number}] has no patterns and matches nothing.",
                   "patterns are regular expressions of parameters' names.")  # fmt: skip
        way = here.text("partition_type", default="column").lower()
        r.silently(way not in WAYS, f"layer_specs[{number}].partition_type is '{way}'; the model is not built with it.",
                   f"It can be {listed(WAYS, 'or')}.")  # fmt: skip
    return tensor.degree("autotp_size")


def _near(batch: int, step: int) -> str:
    low = batch // step * step
    return f"{low} or {low + step}" if low else str(step)
