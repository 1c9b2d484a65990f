"""JSON configurations: DeepSpeed, Galvatron, and the argument list that we export for Megatron-LM."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from planner.errors import PlannerError
from planner.frontends.launch import megatron
from planner.frontends.launch.found import Reader, TrainerFile, share_word, without_defaults
from planner.frontends.launch.shell import words_to_options
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
GALVATRON = frozenset({
    "pp_deg", "tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint", "global_bsz", "chunks",
    "pp_division", "pipeline_type", "default_dp_type", "vtp", "vsp", "embed_sdp", "vocab_sdp", "cp_sizes_enc",
    "ep_sizes_enc", "tp_of_ep_sizes_enc", "vcp", "world_size",
})  # fmt: skip


def parsed(path: str, text: str) -> dict[str, Json]:
    """A JSON object.

    Raises:
        PlannerError: no JSON, or no object (W03).
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlannerError.of("W03", f"is not JSON: {error}.", where=path) from None
    if not isinstance(data, dict):
        raise PlannerError.of("W03", "holds no JSON object.", where=path)
    return data


def read_megatron(path: str, data: Mapping[str, Json]) -> TrainerFile:
    """The argument list that ``export --to megatron`` writes beside the shell file."""
    words = [str(word) for key in ("plan", "model") for word in data.get(key) or ()]
    world = data.get("world_size")
    return megatron.read(path, words_to_options(words), {"WORLD_SIZE": str(world)} if world else {})


def read_deepspeed(path: str, data: Mapping[str, Json]) -> TrainerFile:
    """DeepSpeed: everything but the model and the chips."""
    r = Reader(path, data)
    r.unknown(DEEPSPEED_TOP, "DeepSpeed's configuration")
    zero = Reader(path, _table(data, "zero_optimization"), wrong=r.wrong, faults=r.faults)
    stage = zero.number("stage")
    if stage not in (0, 1, 2, 3):
        r.fault("W03", f"zero_optimization.stage is {stage}; it can be 0, 1, 2 or 3.")
    hosts: set[str] = set()
    for device in ("offload_param", "offload_optimizer"):
        where = str(_table(zero.values, device).get("device", "none"))
        if where not in ("none", "cpu"):
            r.notes.append(f"{device} to {where} is priced as to the host's memory")
        hosts |= {device} if where != "none" else set()
        wrong = device == "offload_param" and where != "none" and stage != 3
        r.silently(wrong, f"offload_param does nothing at stage {stage}.", "It needs stage 3.")
    tp = Reader(path, _table(data, "tensor_parallel"), wrong=r.wrong).degree("autotp_size")
    layout: dict[str, int | str] = {"zero": stage, "tp": tp, "sp": "off"}
    if hosts:
        share = _table(zero.values, "offload_optimizer").get("ratio", 1.0)
        part = (
            share_word(float(share))
            if stage == 3 and isinstance(share, int | float)
            else "optimizer"
        )
        layout["offload"] = "states" if "offload_param" in hosts and stage == 3 else part
    micro = r.number("train_micro_batch_size_per_gpu")
    turns, batch = r.number("gradient_accumulation_steps"), r.number("train_batch_size")
    layout["mbs"] = max(micro, 1)
    chips = None
    if micro and turns and batch:
        if batch % (micro * turns):
            r.fault("B01", f"train_batch_size {batch} is no multiple of {micro} × {turns}.",
                    f"Nearest: {_near(batch, micro * turns)}.")  # fmt: skip
        chips = max(batch // (micro * turns), 1) * tp
        layout["dp"] = chips // tp
    if r.number("sequence_parallel_size", default=1) > 1:
        r.notes.append("not priced: Ulysses (sequence_parallel_size)")
    r.notes.append("recompute is decided in the training script, not here; none is assumed")
    r.done()
    narrow = [name for name in ("bf16", "fp16") if _table(data, name).get("enabled")]
    return TrainerFile(
        path=path, program="deepspeed", trainer="fsdp" if tp == 1 else "megatron", layout=without_defaults(layout),
        chips=chips, global_batch=batch or None, precision=narrow[0] if narrow else "fp32",
        optimizer="sgd" if str(_table(data, "optimizer").get("type", "")).lower() == "sgd" else "adamw",
        notes=tuple(r.notes), faults=tuple(r.faults),
    )  # fmt: skip


def _near(batch: int, step: int) -> str:
    low = batch // step * step
    return f"{low} or {low + step}" if low else str(step)


def _table(data: Mapping[str, Json], key: str) -> dict[str, Json]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def read_galvatron(path: str, data: Mapping[str, Json]) -> TrainerFile:
    """Galvatron, both dialects; layers that differ cannot be priced as one layout."""
    r = Reader(path, data)
    r.unknown(GALVATRON, "Galvatron's strategy")
    lists = {key: _numbers(r, key) for key in ("tp_sizes_enc", "dp_types_enc", "use_sp", "checkpoint",
                                               "cp_sizes_enc", "ep_sizes_enc", "tp_of_ep_sizes_enc")}  # fmt: skip
    lengths = {len(values) for values in lists.values() if values}
    if len(lengths) > 1:
        r.fault("W03", f"its lists have {sorted(lengths)} entries; each has one a layer.")
    for key, values in lists.items():
        if len(set(values)) > 1:
            r.notes.append(
                f"{key} differs between layers; priced as {_most(values)} in all of them"
            )
    tp, cp = _most(lists["tp_sizes_enc"], 1), _most(lists["cp_sizes_enc"], 1)
    pp = r.degree("pp_deg")
    default = {"ddp": 0, "zero2": 2, "zero3": 3}.get(r.text("default_dp_type", default="ddp"))
    r.silently(default is None, f"default_dp_type '{r.text('default_dp_type')}' is taken and means nothing.",
               "It can be ddp, zero2 or zero3.")  # fmt: skip
    if _most(lists["use_sp"], 0):
        r.notes.append("not priced: tp ranks as Ulysses (use_sp); priced as tensor parallelism")
    layout: dict[str, int | str] = {
        "tp": tp, "pp": pp, "cp": cp, "ep": _most(lists["ep_sizes_enc"], 1),
        "etp": _most(lists["tp_of_ep_sizes_enc"], 1),
        "zero": 3 if _most(lists["dp_types_enc"], 0) else default or 0,
        "recompute": "full" if _most(lists["checkpoint"], 0) else "none",
        "schedule": "gpipe" if r.text("pipeline_type") == "gpipe" else "1f1b", "sp": "on" if tp > 1 else "off",
    }  # fmt: skip
    chips = r.number("world_size") or None
    batch, turns = r.number("global_bsz"), r.degree("chunks")
    if chips and batch:
        dp = max(chips // math.prod((tp, pp, cp)), 1)
        layout |= {"dp": dp, "mbs": max(batch // (dp * turns), 1)}
        r.silently(batch % (dp * turns) > 0, f"global_bsz {batch} is no multiple of dp {dp} × chunks {turns}.",
                   "Micro-batches then have unequal sizes.")  # fmt: skip
    division = tuple(_numbers(r, "pp_division"))
    r.done()
    return TrainerFile(
        path=path, program="galvatron", trainer="torchtitan", layout=without_defaults(layout), chips=chips,
        global_batch=batch or None, stages=division if len(set(division)) > 1 else None,
        notes=tuple(r.notes), faults=tuple(r.faults),
    )  # fmt: skip


def _numbers(r: Reader, key: str) -> list[int]:
    text = r.text(key)
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        r.fault("W03", f"{key} is {text[:40]!r}; Galvatron reads numbers with commas between.")
        return []


def _most(values: list[int], default: int = 0) -> int:
    return max(set(values), key=values.count) if values else default
