"""Accelerate's launcher: its YAML file, a script that calls it, and what the training script is started with.

The file holds processes and states. Batches are the training script's, under the names that transformers gives them:
they are read from the launcher's line, in a script or in a comment of the file (exports write one).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from planner.frontends.launch.found import Reader, TrainerFile, table_of, without_defaults
from planner.frontends.launch.shell import words_to_options
from planner.units import Json

FSDP = frozenset(
    f"fsdp_{name}"
    for name in (
        "version", "offload_params", "min_num_params", "sharding_strategy", "reshard_after_forward",
        "auto_wrap_policy", "transformer_layer_cls_to_wrap", "backward_prefetch", "state_dict_type",
        "forward_prefetch", "use_orig_params", "cpu_ram_efficient_loading", "sync_module_states",
        "activation_checkpointing", "activation_checkpointing_offload",
    )
)  # fmt: skip
PARALLELISM = frozenset(
    f"parallelism_config_{name}"
    for name in (
        "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "cp_comm_strategy", "sp_size",
        "sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation",
    )
)  # fmt: skip
"""Keys that Accelerate 1.15.0 knows inside its two sections; it ignores any other silently."""
TOP = frozenset({"num_processes", "num_machines", "mixed_precision"})
"""Options of the launcher that are keys of its file too, and that a plan knows."""
LENGTHS = ("max_length", "max_seq_length", "block_size", "seq_length", "model_max_length")
"""What training scripts call the length of a sequence: TRL, transformers' examples, older ones."""
_STARTED = re.compile(r"\btrain\w*\.py((?: +--?[\w-]+(?:[ =][^\s-]\S*)?)+)")


def started(text: str) -> dict[str, Json]:
    """Options of the training script that a comment starts.

    >>> started("# use it as: accelerate launch … train.py --max_length 4096 --gradient_accumulation_steps 8")
    {'max_length': '4096', 'gradient_accumulation_steps': '8'}
    """
    found = _STARTED.search(text)
    return words_to_options(found[1].split()) if found else {}


def with_script(found: TrainerFile, options: Mapping[str, Json]) -> TrainerFile:
    """A configuration together with what the training script is started with: micro-batch, its number, the length."""
    r = Reader(found.path, options)
    layout = dict(found.layout)
    micro = r.get("per_device_train_batch_size") and r.degree("per_device_train_batch_size")
    turns = r.degree("gradient_accumulation_steps")
    batch = found.global_batch
    if micro:
        layout["mbs"] = micro
        batch = micro * turns * int(layout.get("dp", 1))
    if r.flag("gradient_checkpointing"):
        layout["recompute"] = "full"
    seq = r.number(*LENGTHS) or found.seq_len
    r.done()
    return replace(found, layout=layout, global_batch=batch, seq_len=seq)


def read_launch(path: str, options: Mapping[str, Json], data: Mapping[str, Json]) -> TrainerFile:
    """A script that calls the launcher.

    Args:
        path: of the script.
        options: of the launcher and of the training script together.
        data: the launcher's file, whose keys its options replace.
    """
    merged: dict[str, Json] = dict(data)
    for section, known in (("fsdp_config", FSDP), ("parallelism_config", PARALLELISM)):
        own = {key: value for key, value in options.items() if key in known}
        merged[section] = table_of(data, section) | own
    merged |= {key: value for key, value in options.items() if key in TOP}
    if options.get("use_fsdp") or merged["fsdp_config"]:
        merged.setdefault("distributed_type", "FSDP")
    return with_script(read_accelerate(path, merged), options)


def read_accelerate(path: str, data: Mapping[str, Json]) -> TrainerFile:
    """The launcher's file: data ranks and their sharding."""
    r = Reader(path, data)
    fsdp, sizes = (
        Reader(path, table_of(data, name), notes=r.notes, faults=r.faults, wrong=r.wrong)
        for name in ("fsdp_config", "parallelism_config")
    )
    fsdp.unknown(FSDP, "fsdp_config")
    sizes.unknown(PARALLELISM, "parallelism_config")
    chips = r.number("num_processes") or None
    replicate = sizes.degree("parallelism_config_dp_replicate_size")
    shard = sizes.degree("parallelism_config_dp_shard_size")
    tp, cp = sizes.degree("parallelism_config_tp_size"), sizes.degree("parallelism_config_cp_size")
    product = math.prod((replicate, shard, tp, cp))
    if not sizes.values:
        shard = product = chips or 1
    r.silently(
        chips is not None and product != chips,
        f"the sizes of parallelism_config make {product} ranks, and num_processes is {chips}.",
        "Accelerate only notices once the processes run.",
    )
    level = _level(r, fsdp)
    cut = tp > 1 and level > 0
    if cut:
        r.notes.append(
            "not priced: tensor parallelism without sequence parallelism under sharded states; priced with it"
        )
    if not level:
        r.notes.append("states are not sharded (no FSDP); priced as Megatron-LM's data parallelism")
    layout: dict[str, int | str] = {
        "dp": replicate * shard, "tp": tp, "cp": cp, "zero": level, "sp": "on" if cut else "off",
        "recompute": "full" if fsdp.flag("fsdp_activation_checkpointing") else "none",
    }  # fmt: skip
    if replicate > 1 and level and shard * cp > 1:
        layout["shard-group"] = shard * cp
    if fsdp.flag("fsdp_offload_params"):
        layout["offload"] = "states"
    r.done()
    narrow = r.text("mixed_precision", default="no")
    return TrainerFile(
        path=path, program="accelerate", trainer="torchtitan" if cut else "fsdp" if level else "megatron",
        layout=without_defaults(layout), chips=product, precision=narrow if narrow != "no" else "fp32",
        notes=tuple(r.notes), faults=tuple(r.faults),
    )  # fmt: skip


def noted(found: TrainerFile) -> TrainerFile:
    """With a note where nothing says the batches."""
    if "mbs" in found.layout:
        return found
    note = (
        "batches are decided in the training script, not here; a comment "
        "'train.py --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --max_length 4096' is read"
    )
    return replace(found, notes=(*found.notes, note))


def _level(r: Reader, fsdp: Reader) -> int:
    if r.text("distributed_type").upper() != "FSDP":
        return 0
    if fsdp.number("fsdp_version", default=1) == 1:
        words = {
            "FULL_SHARD": 3,
            "SHARD_GRAD_OP": 2,
            "NO_SHARD": 0,
            "HYBRID_SHARD": 3,
            "1": 3,
            "2": 2,
            "3": 0,
        }
        return words.get(fsdp.text("fsdp_sharding_strategy", default="FULL_SHARD").upper(), 3)
    return 2 if fsdp.text("fsdp_reshard_after_forward").lower() in ("false", "no", "0") else 3
