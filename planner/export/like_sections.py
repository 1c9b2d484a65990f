"""Which keys of a person's own file a plan decides, given what the file says: nothing that already means the same."""

from __future__ import annotations

from planner.export import accelerate as _accelerate
from planner.export import deepspeed as _deepspeed
from planner.export import mindformers as _mindformers
from planner.export import torchtitan as _torchtitan
from planner.export.like_keys import Path, at
from planner.export.shape import shape_of
from planner.export.view import View
from planner.units import Json

MINDFORMERS: dict[str, Json] = {
    "gradient_accumulation_steps": 1, "enable_alltoall": False, "enable_parallel_optimizer": False,
    "optimizer_weight_shard_size": -1, "data_parallel": 1, "model_parallel": 1, "context_parallel": 1,
    "expert_parallel": 1, "pipeline_stage": 1, "micro_batch_num": 1, "use_seq_parallel": False, "vocab_emb_dp": True,
    "recompute": False, "select_recompute": False, "pipeline_interleave": False, "pipeline_scheduler": "1f1b",
    "offset": 0, "pp_interleave_num": 1, "parallel_mode": 1,
}  # fmt: skip
ACCELERATE: dict[str, Json] = {
    "fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing": False, "fsdp_offload_params": False,
    **{f"parallelism_config_{axis}_size": 1 for axis in ("dp_replicate", "dp_shard", "tp", "cp")},
    "parallelism_config_cp_backend": "torch", "parallelism_config_cp_comm_strategy": "allgather", "num_machines": 1,
}  # fmt: skip
DEEPSPEED: dict[str, Json] = {"stage": 0, "sequence_parallel_size": 1, "ratio": 1.0}
"""What a key means that a file does not have (MindFormers 1.9.0, Accelerate 1.15.0, DeepSpeed 0.19.8)."""


def mindformers(view: View, now: dict[str, Json]) -> dict[Path, Json]:
    """Degrees, batches, stages, states and recompute of a MindFormers file."""
    d = view.degrees
    wanted = _mindformers.settings(view, shape_of(view))
    keys: dict[str, tuple[str, ...]] = {
        "runner_config": ("batch_size",),
        "parallel": ("enable_parallel_optimizer",),
        "parallel_config": (
            "data_parallel", "model_parallel", "context_parallel", "expert_parallel", "pipeline_stage",
            "use_seq_parallel",
        ),
    }  # fmt: skip
    changes: dict[Path, Json] = {
        (part, key): wanted[part][key] for part, names in keys.items() for key in names
    }
    if str(at(now, ("parallel", "parallel_mode"))) not in ("1", "None", "semi_auto_parallel"):
        changes["parallel", "parallel_mode"] = 1
    if d.ep > 1:
        changes["parallel", "enable_alltoall"] = True
    changes |= _turns(view, now) | _recompute(view, now, wanted["recompute_config"])
    if d.pp == 1 and d.tp > 1:
        changes["parallel_config", "vocab_emb_dp"] = False
    pipeline = ("parallel", "pipeline_config")
    chunked: dict[str, Json] = wanted["parallel"]["pipeline_config"]
    if d.pp > 1:
        changes |= {(*pipeline, key): value for key, value in chunked.items()}
    if view.level:
        shards = "optimizer_weight_shard_size"
        rows = wanted["parallel"]["parallel_optimizer_config"]
        changes["parallel", "parallel_optimizer_config", shards] = rows.get(shards)
    return changes | _layers(view, now, wanted["model"]["model_config"])


def _turns(view: View, now: dict[str, Json]) -> dict[Path, Json]:
    """Micro-batches: two numbers whose product counts where there are stages."""
    d = view.degrees
    inner, outer = (
        ("parallel_config", "micro_batch_num"),
        ("runner_config", "gradient_accumulation_steps"),
    )
    if d.pp == 1:
        return {outer: d.num_micro_batches}
    staged = (at(now, ("parallel_config", "pipeline_stage")) or 1) != 1
    if staged and (at(now, inner) or 1) * (at(now, outer) or 1) == d.num_micro_batches:
        return {}
    return {inner: d.num_micro_batches, outer: 1}


def _recompute(view: View, now: dict[str, Json], wanted: dict[str, Json]) -> dict[Path, Json]:
    """What is computed again, unless the file's own words say the same."""
    names = ("recompute", "select_recompute")
    whole, some = (at(now, ("recompute_config", name)) for name in names)
    plain = not isinstance(whole, list | dict) and not isinstance(some, dict)
    mode = "full" if whole else "selective" if some else "none"
    if plain and mode == view.degrees.recompute:
        return {}
    return {("recompute_config", name): wanted[name] for name in names}


def _layers(view: View, now: dict[str, Json], wanted: dict[str, Json]) -> dict[Path, Json]:
    """How layers are given to stages."""
    model = ("model", "model_config")
    own: Json = at(now, (*model, "offset"))
    rows = own if isinstance(own, list) else [own or 0]
    level = all(not any(row) if isinstance(row, list) else not row for row in rows)
    changes: dict[Path, Json] = {(*model, "pp_interleave_num"): wanted["pp_interleave_num"]}
    if not (view.even and level):
        changes[*model, "offset"] = wanted["offset"]
    if at(now, (*model, "batch_size")) is not None:
        changes[*model, "batch_size"] = wanted["batch_size"]
    return changes


def inputs(view: View, now: dict[str, Json]) -> dict[Path, Json]:
    """How every input of a data set is cut: its first dim among data ranks where it is cut at all."""
    path = ("parallel", "dataset_strategy")
    rows = at(now, path)
    whole = at(now, ("parallel", "full_batch")) is True
    if (
        whole
        or not isinstance(rows, list)
        or not all(isinstance(row, list) and row for row in rows)
    ):
        return {}
    most = max(row[0] for row in rows)
    ranks = view.degrees.dp
    return {path: [[ranks if row[0] == most else row[0], *row[1:]] for row in rows]}


def accelerate(view: View, now: dict[str, Json]) -> dict[Path, Json]:
    """Processes, states and mesh of Accelerate's file; the older FSDP stays where it says the same."""
    wanted, chips = _accelerate.settings(view), at(now, ("num_processes",))
    changes: dict[Path, Json] = {("num_processes",): view.world}
    if chips != view.world:
        changes[("num_machines",)] = wanted["num_machines"]
    if view.level or now.get("distributed_type") == "FSDP":
        changes[("distributed_type",)] = wanted["distributed_type"]
    fsdp: dict[str, Json] = wanted.get("fsdp_config") or {}
    mesh: dict[str, Json] = wanted.get("parallelism_config") or {}
    if not fsdp:
        return changes | {("fsdp_config",): None, ("parallelism_config",): None}
    words = {3: ("FULL_SHARD", "1", "NONE"), 2: ("SHARD_GRAD_OP", "2")}
    word = str(at(now, ("fsdp_config", "fsdp_sharding_strategy"))).upper()
    old = str(at(now, ("fsdp_config", "fsdp_version"))) in ("1", "None") and bool(
        now.get("fsdp_config")
    )
    plain = view.world == view.degrees.dp and view.replicas == 1
    keys = ["fsdp_activation_checkpointing", "fsdp_offload_params"]
    if not (old and plain and word in words.get(view.level, ())):
        keys += (
            ["fsdp_version", "fsdp_reshard_after_forward"] if now.get("fsdp_config") else list(fsdp)
        )
        changes["fsdp_config", "fsdp_sharding_strategy"] = None
    changes |= {("fsdp_config", key): fsdp[key] for key in dict.fromkeys(keys)}
    if now.get("parallelism_config") or not plain:
        changes |= {("parallelism_config", key): value for key, value in mesh.items()}
    return changes


def deepspeed(view: View, now: dict[str, Json]) -> dict[Path, Json]:
    """Batches, states, tensor and sequence ranks of DeepSpeed's file; a third batch follows from two."""
    wanted = _deepspeed.settings(view)
    batches = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    there = [key for key in batches if key in now]
    changes: dict[Path, Json] = {
        (key,): wanted[key] for key in (there if len(there) > 1 else batches)
    }
    zero: dict[str, Json] = wanted["zero_optimization"]
    changes["zero_optimization", "stage"] = zero["stage"]
    for part in ("offload_optimizer", "offload_param"):
        path, host = ("zero_optimization", part), zero.get(part)
        away = at(now, (*path, "device")) not in (None, "none")
        if host:
            changes |= {(*path, key): host[key] for key in (() if away else ("device",))}
            changes[*path, "ratio"] = host.get("ratio")
        elif away:
            changes[path] = None
    changes[("sequence_parallel_size",)] = wanted.get("sequence_parallel_size")
    again: Json = at(now, ("activation_checkpointing", "number_checkpoints")) or 0
    if (again > 0) != (view.degrees.recompute == "full"):
        number = view.plan.model.num_layers if view.degrees.recompute == "full" else None
        changes["activation_checkpointing", "number_checkpoints"] = number
    return changes | _tensor(wanted.get("tensor_parallel"), at(now, ("tensor_parallel",)) or {})


def _tensor(wanted: dict[str, Json] | None, now: dict[str, Json]) -> dict[Path, Json]:
    """AutoTP; how a file of one's own splits modules stays, and ranks of one are none."""
    if wanted is None:
        return {("tensor_parallel",): None} if (now.get("autotp_size") or 0) > 1 else {}
    own = {"partition_config", "preset_model"} & now.keys()
    keys = [key for key in wanted if not (key == "partition_config" and own)]
    return {("tensor_parallel", key): wanted[key] for key in keys}


def torchtitan(view: View, now: dict[str, Json], output: str) -> dict[str, dict[str, Json]]:
    """Batches and degrees of a torchtitan file by section; -1 ranks are those that are left, which is what a plan has.

    Args:
        view: the plan.
        now: what the file says, by section; what is no literal is not there.
        output: the release's name of the head.
    """
    d = view.degrees
    batches = _torchtitan.training(view)
    local, there = batches["local_batch_size"], now.get("training", {})
    training: dict[str, Json] = {
        key: batches[key]
        for key in ("local_batch_size", "enable_cpu_offload", "disable_cuda_graphs")
    }
    whole = there.get("global_batch_size", -1)
    if (local * d.dp if whole == -1 else whole) != batches["global_batch_size"]:
        training["global_batch_size"] = batches["global_batch_size"]
    degrees = _torchtitan.parallelism(view, shape_of(view), output)
    rest, said = "data_parallel_shard_degree", now.get("parallelism", {})
    again = "fsdp_reshard_after_forward"
    usual = "never" if d.pp > 1 else "always"
    if said.get(rest) == -1:
        del degrees[rest]
    if said.get(again, "default") == "default" and degrees[again] == usual:
        del degrees[again]
    stages: dict[str, Json] = {} if d.pp > 1 else {"module_fqns_per_model_part": None}
    return {"training": training, "parallelism": stages | degrees}
