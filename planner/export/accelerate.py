"""Accelerate: YAML for ``accelerate launch`` with FSDP2 and its parallelism settings.

Keys inside ``fsdp_config`` and ``parallelism_config`` that it does not know are ignored silently, so a test compares
them with the launcher's own options. Release: Accelerate 1.15.0.
"""

from __future__ import annotations

from planner.export.files import File
from planner.export.loop import loop, started
from planner.export.refusal import LEVELS, Limits, any_level, no_axis, offloads, pinned
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import shape_of
from planner.export.view import View, commented, header
from planner.export.yaml_text import yaml_text
from planner.units import Json

RELEASE = "Accelerate 1.15.0"


def write(view: View) -> list[File]:
    """The launcher's file, a training loop, and the script that measures.

    Raises:
        PlannerError: what Accelerate cannot hold (W01).
    """
    limits = Limits(RELEASE)
    check(limits, view)
    limits.refuse(
        view.degrees.tp > 1,
        f"tp {view.degrees.tp} without a model that knows how it is split",
        f"{pinned('tp=1')}, or --to transformers",
    )
    limits.done()
    head = [*header(view, RELEASE), started(view, deepspeed=False)]
    text = commented(head) + yaml_text(settings(view))
    measured = remeasure(view, MEASURED)
    return [File("accelerate.yaml", text), loop(view, RELEASE, deepspeed=False), measured]


def check(limits: Limits, view: View) -> None:
    """Axes and states that Accelerate has no words for, and what it only refuses once processes run."""
    d = view.degrees
    offloads(limits, view, "states")
    no_axis(limits, view, "pp", "ep", "etp")
    any_level(limits, view, (0, 2, 3))
    pure = view.level == 0 and d.dp > 1
    whole = "zero=3" if 3 in LEVELS.get(view.plan.trainer, (3,)) else "tp=1 --pin cp=1"
    limits.refuse(pure and d.tp * d.cp > 1, "replicated states with tp or cp", pinned(whole))
    limits.refuse(
        d.dp % view.replicas > 0,
        f"states over {d.shard_group} ranks, which cut through a ring of cp {d.cp}",
        pinned(f"shard-group={d.dp * d.cp}"),
    )
    _whole_experts(limits, view)
    limits.refuse(
        d.recompute == "selective",
        "selective recompute",
        f"{pinned('recompute=none')} or recompute=full",
    )
    odd = view.plan.recipe.precision not in ("bf16", "fp16", "fp32")
    limits.refuse(
        odd,
        f"{view.plan.recipe.precision} without its own settings",
        "shardwright plan … --precision bf16",
    )
    name = view.plan.recipe.optimizer
    plain = name in ("adamw", "sgd")
    limits.refuse(not plain, f"the optimizer {name}", "shardwright plan … --optimizer adamw")
    limits.refuse(
        view.level > 0 and d.dp * d.cp == 1, "sharded states on one data rank", pinned("zero=0")
    )


def _whole_experts(limits: Limits, view: View) -> None:
    """Refuses more ranks of a shard group than experts: transformers has one weight for all.

    FSDP2 cuts dim 0 of it: ranks beyond the experts hold none, the others as many times more.
    """
    experts, group = shape_of(view).experts, view.degrees.shard_group
    data = view.degrees.dp * view.degrees.cp
    near = max(n for n in range(1, data + 1) if data % n == 0 and experts % n == 0)
    limits.refuse(
        view.level > 0 and experts > 0 and experts % group > 0,
        f"{experts} experts sharded over {group} ranks: FSDP2 cuts their weight by expert, into unequal parts",
        pinned(f"shard-group={near}"),
    )


def settings(view: View) -> dict[str, Json]:
    """The whole file."""
    d, recipe = view.degrees, view.plan.recipe
    levels = view.plan.cluster.levels
    node = min(levels[0].size if levels else view.world, view.world)
    data: dict[str, Json] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if view.level else "MULTI_GPU",
        "mixed_precision": {"bf16": "bf16", "fp16": "fp16"}.get(recipe.precision, "no"),
        "num_machines": max(1, view.world // node),
        "num_processes": view.world,
        "machine_rank": 0,
    }
    if view.level:
        data["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": view.level == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": d.recompute == "full",
            "fsdp_offload_params": d.offload == "states",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        data["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": view.replicas,
            "parallelism_config_dp_shard_size": d.dp // view.replicas,
            "parallelism_config_tp_size": d.tp,
            "parallelism_config_cp_size": d.cp,
            "parallelism_config_cp_backend": "torch",
            "parallelism_config_cp_comm_strategy": "allgather",
        }
    return data


MEASURED = Remeasured(
    framework=RELEASE,
    command=(
        "accelerate launch --config_file accelerate.yaml --machine_rank ${NODE_RANK:-0} "
        "--main_process_ip ${MASTER_ADDR:-127.0.0.1} --main_process_port ${MASTER_PORT:-29500} train.py"
    ),
    seconds=r"step [0-9]+ took ([0-9.]+) s",
    memory=r"peak ([0-9.]+) GiB",
)
