"""Megatron-Bridge: overrides ``dotted.path=value`` for a recipe.

Never a key with ``+``: the parser would take it whatever it is. Keys: Megatron-Bridge 0.6.2, run on a CPU.
"""

from __future__ import annotations

from planner.export.files import File, json_text, shell_list
from planner.export.megatron import MOMENTS, check, environment_of, layout, overlaps, plan_pairs
from planner.export.refusal import Limits, host_share
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import shape_of
from planner.export.view import View, commented, header
from planner.units import Json

RELEASE = "Megatron-Bridge 0.6.2"
MIXED = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed"}
MODEL = (
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "cp-comm-type",
    "expert-model-parallel-size", "expert-tensor-parallel-size", "moe-token-dispatcher-type",
    "moe-flex-dispatcher-backend", "moe-grouped-gemm", "recompute-granularity",
    "recompute-method", "recompute-num-layers", "recompute-modules",
)  # fmt: skip
"""Arguments of Megatron-LM that are keys of ``model`` under the same name."""


def write(view: View) -> list[File]:
    """Overrides as a shell array and as JSON.

    Raises:
        PlannerError: the plan has what Megatron cannot hold (W01).
    """
    check(view, RELEASE)
    limits, moments = Limits(RELEASE), view.plan.recipe.optimizer
    limits.refuse(
        moments in MOMENTS,
        f"the optimizer {moments}: its overrides have no words for dtypes",
        "shardwright plan … --optimizer adamw",
    )
    limits.done()
    keys = overrides(view)
    words = [f"{key}={_value(value)}" for key, value in keys.items()]
    head = header(view, RELEASE)
    environment = environment_of(view)
    exports = "".join(f"export {key}={value}\n" for key, value in environment.items())
    use = 'use it as: source bridge.sh; torchrun … run_recipe.py --recipe … "${OVERRIDES[@]}"'
    chips = f"PLAN_CHIPS={view.world}\n"
    shell = commented([*head, use]) + "\n" + exports + chips + "\n" + shell_list("OVERRIDES", words)
    data = {
        "about": head,
        "world_size": view.world,
        "environment": environment,
        "overrides": words,
    }
    measured = remeasure(view, MEASURED, environment, overlaps(view))
    return [File("bridge.sh", shell), File("bridge.json", json_text(data)), measured]


def overrides(view: View) -> dict[str, Json]:
    """Every key that the plan decides, also where Bridge's default is the same as the plan's."""
    d, recipe, shape = view.degrees, view.plan.recipe, shape_of(view)
    away = host_share(view)
    said = dict(plan_pairs(view, shape))
    keys: dict[str, Json] = {
        f"model.{name.replace('-', '_')}": said[f"--{name}"]
        for name in MODEL
        if said.get(f"--{name}") not in (None, False)
    }
    keys["model.sequence_parallel"] = d.sequence_parallel and d.tp > 1
    if d.pp > 1:
        keys["model.pipeline_model_parallel_layout"] = layout(view, shape.mtp)
    if d.recompute == "none":
        keys["model.recompute_granularity"] = None
    spread = d.dp * d.cp > 1
    distributed = bool(said["--use-distributed-optimizer"])
    return keys | {
        "model.seq_length": recipe.seq,
        "dataset.seq_length": recipe.seq,
        "model.cross_entropy_loss_fusion": True,
        "train.micro_batch_size": d.micro_batch,
        "train.global_batch_size": recipe.global_batch,
        "ddp.use_distributed_optimizer": distributed,
        "optimizer.use_distributed_optimizer": distributed,
        "ddp.num_distributed_optimizer_instances": view.replicas if view.level == 1 else 1,
        "ddp.overlap_grad_reduce": spread,
        "ddp.overlap_param_gather": spread and view.level == 1,
        "dist.use_tp_pp_dp_mapping": "--use-tp-pp-dp-mapping" in said
        and bool(said["--use-tp-pp-dp-mapping"]),
        "optimizer.optimizer": "sgd" if recipe.optimizer == "sgd" else "adam",
        "optimizer.use_precision_aware_optimizer": away > 0.0,
        "optimizer.optimizer_cpu_offload": away > 0.0,
        **({"optimizer.optimizer_offload_fraction": away} if 0.0 < away < 1.0 else {}),
        "mixed_precision": MIXED.get(recipe.precision),
    }


def _value(value: Json) -> str:
    """A value as Hydra reads it.

    >>> _value("Et|tL"), _value(None), _value(True), _value(["a"])
    ("'Et|tL'", 'null', 'true', '[a]')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    return f"'{value}'" if isinstance(value, str) and not value.isidentifier() else str(value)


MEASURED = Remeasured(
    framework=RELEASE,
    command=(
        "source ./bridge.sh; torchrun $LAUNCH "
        '"${RUN_RECIPE:?the run_recipe.py of Megatron-Bridge}" --recipe "${RECIPE:?name of a recipe}" '
        '"${OVERRIDES[@]}" train.train_iters=20 logger.log_interval=1'
    ),
    seconds=r"elapsed time per iteration \(ms\): ([0-9.]+)",
    seconds_unit=1e-3,
    memory=r"max allocated: ([0-9.]+)",
    memory_gib=1 / 1024,
)
