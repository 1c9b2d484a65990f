"""torchtitan: a configuration module (0.3), or a TOML job file (0.2).

Stages are always named layer by layer: the trainer's own split counts embedding and head as a layer each. Keys and what
the parsers refuse: torchtitan 0.3.0 and 0.2.2, run on a CPU.
"""

from __future__ import annotations

from planner.export.files import File
from planner.export.refusal import Limits, any_level, equal_layers, offloads, pinned, schedules
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import Shape, shape_of
from planner.export.view import View, commented, header
from planner.plan.schema import BlockPlan
from planner.units import Json

RELEASE, OLD_RELEASE = "torchtitan 0.3.0", "torchtitan 0.2.2"
SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
POLICIES = {"none": "None", "full": "FullAC", "selective": "SelectiveAC"}
POLICY_SOURCE = "torchtitan.distributed.activation_checkpoint"
"""Classes of 0.3 that recompute, and where they are imported from."""
MODELS = {
    "llama-3-8b": ("llama3", "llama3_8b", "8B"),
    "llama-3.1-8b": ("llama3", "llama3_8b", "8B"),
    "llama-3-70b": ("llama3", "llama3_70b", "70B"),
    "llama-3.1-70b": ("llama3", "llama3_70b", "70B"),
    "llama-3.1-405b": ("llama3", "llama3_405b", "405B"),
    "qwen3-0.6b": ("qwen3", "qwen3_0_6b", "0.6B"),
    "qwen3-1.7b": ("qwen3", "qwen3_1_7b", "1.7B"),
    "qwen3-14b": ("qwen3", "qwen3_14b", "14B"),
    "qwen3-32b": ("qwen3", "qwen3_32b", "32B"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b", "30B-A3B"),
    "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b", "671B"),
    "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b", "20B"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b", "120B"),
}
"""Our name of a model to torchtitan's package, configuration function (0.3) and flavor (0.2)."""


def write(view: View) -> list[File]:
    """A module with one function that returns the configuration: ``--module shardwright_plan --config plan``.

    Raises:
        PlannerError: what torchtitan's configuration cannot hold (W01).
    """
    _check(view, RELEASE)
    known = MODELS.get(view.plan.model.name)
    values = {
        "training": training(view),
        "parallelism": parallelism(view, shape_of(view), "lm_head"),
    }
    lines = [
        f"    config.{part}.{key} = {value!r}"
        for part, keys in values.items()
        for key, value in keys.items()
    ]
    policy = POLICIES[view.degrees.recompute]
    chosen = "None" if policy == "None" else f"{policy}.Config()"
    lines += [
        f"    config.activation_checkpoint = {chosen}",
        "    config.compile.enable = True",
        "    return config",
    ]
    head = header(view, RELEASE)
    uses = f"\nfrom {POLICY_SOURCE} import {policy}\n" if policy != "None" else ""
    start = "\n\ndef apply(config):\n" + _APPLY + "\n".join(lines) + "\n"
    if known:
        package, function, _ = known
        start += f"\n\ndef plan():\n    from torchtitan.models.{package}.config_registry import {function}\n\n"
        start += f"    return apply({function}())\n"
    else:
        head.append("torchtitan has no configuration of this model: call apply() on your own")
    return [
        File("shardwright_plan.py", commented(head) + uses + start),
        remeasure(view, MEASURED),
    ]


def write_toml(view: View) -> list[File]:
    """A job file of torchtitan 0.2.

    Raises:
        PlannerError: what a job file cannot hold (W01).
    """
    _check(view, OLD_RELEASE)
    limits = Limits(OLD_RELEASE)
    known = MODELS.get(view.plan.model.name)
    limits.refuse(
        known is None,
        f"the model {view.plan.model.name}: a job file names one of torchtitan's",
        "the 0.3 configuration module, --to torchtitan",
    )
    limits.done()
    assert known is not None
    tables: dict[str, dict[str, Json]] = {
        "model": {"name": known[0], "flavor": known[2]},
        "training": training(view),
        "parallelism": parallelism(view, shape_of(view), "output"),
        "activation_checkpoint": {"mode": view.degrees.recompute, "selective_ac_option": "op"},
        "compile": {"enable": True},
    }
    del tables["training"]["disable_cuda_graphs"]
    if view.experts:
        tables["parallelism"]["expert_tensor_parallel_degree"] = 1
    body = "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {toml_text(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )
    return [
        File("plan.toml", commented(header(view, OLD_RELEASE)) + "\n" + body),
        remeasure(view, OLD_MEASURED),
    ]


def training(view: View) -> dict[str, Json]:
    """Batches: with a pipeline a rank's whole share is one local batch, cut into the pipeline's micro-batches."""
    d, recipe = view.degrees, view.plan.recipe
    local = d.micro_batch * (d.num_micro_batches if d.pp > 1 else 1)
    return {
        "local_batch_size": local,
        "global_batch_size": recipe.global_batch,
        "seq_len": recipe.seq,
        "mixed_precision_param": "float32" if recipe.precision == "fp32" else "bfloat16",
        "mixed_precision_reduce": "float32",
        "enable_cpu_offload": d.offload == "states",
        "disable_cuda_graphs": d.pp > 1 or d.ep > 1,
    }


def parallelism(view: View, shape: Shape, output: str) -> dict[str, Json]:
    """The section of degrees; ``output`` is the release's name of the head."""
    d = view.degrees
    keys: dict[str, Json] = {
        "data_parallel_replicate_degree": view.replicas,
        "data_parallel_shard_degree": d.dp // view.replicas,
        "fsdp_reshard_after_forward": "always" if view.level == 3 else "never",
        "tensor_parallel_degree": d.tp,
        "context_parallel_degree": d.cp,
        "pipeline_parallel_degree": d.pp,
        "expert_parallel_degree": d.ep,
    }
    if d.pp > 1:
        keys |= {
            "pipeline_parallel_schedule": SCHEDULES[d.schedule],
            "pipeline_parallel_microbatch_size": d.micro_batch,
            "module_fqns_per_model_part": stages(view, output),
        }
    return keys


def stages(view: View, output: str) -> list[list[str]]:
    """Modules of every stage, in the order in which a token meets them."""
    parts = [[f"layers.{layer}" for layer in visit] for visit in view.visits]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", output]
    return parts


def _check(view: View, release: str) -> None:
    d, limits = view.degrees, Limits(release)
    offloads(limits, view, "states")
    equal_layers(limits, view)
    any_level(limits, view, (0, 2, 3))
    limits.refuse(
        view.level == 0 and d.cp > 1, "context parallelism without sharded states", pinned("zero=3")
    )
    limits.refuse(
        d.dp % view.replicas > 0,
        f"states over {d.shard_group} ranks, which cut through a ring of cp {d.cp}",
        pinned(f"shard-group={d.dp * d.cp}"),
    )
    limits.refuse(
        d.tp > 1 and not d.sequence_parallel, "tp without sequence parallelism", pinned("sp=on")
    )
    limits.refuse(d.etp > 1, f"etp {d.etp}: it keeps experts whole", pinned("etp=1"))
    limits.refuse(
        d.order.index("pp") < d.order.index("dp") and d.pp > 1,
        "stages inside data parallelism",
        pinned("order=tp-cp-dp-pp"),
    )
    limits.refuse(
        view.plan.model.tied and d.pp > 1, "a pipeline whose embedding is its head", pinned("pp=1")
    )
    narrow = view.plan.recipe.precision in ("fp8", "fp16")
    limits.refuse(
        narrow,
        f"{view.plan.recipe.precision}: its converters are chosen in the model's own configuration",
        "shardwright plan … --precision bf16",
    )
    limits.refuse(
        view.plan.recipe.optimizer != "adamw",
        f"the optimizer {view.plan.recipe.optimizer}",
        "shardwright plan … --optimizer adamw",
    )
    limits.refuse(
        d.recompute == "selective" and not all(map(_every_second, view.layer_blocks)),
        "recompute of chosen operators: its selective mode computes every second product again",
        f"{pinned('recompute=none')} or recompute=full",
    )
    schedules(limits, view, *SCHEDULES)
    limits.done()


def _every_second(block: BlockPlan) -> bool:
    """Whether a layer repeats every second product; key and value, gate and up are two each."""
    before = 0
    for op in block.operators:
        if op.kind == "matmul" and op.weights:
            count = 2 if {"pair", "gates"} & op.shape.keys() else 1
            if op.recomputed != ((before + count) // 2 > before // 2):
                return False
            before += count
    return before > 0


def toml_text(value: Json) -> str:
    """A value of a job file, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


_APPLY = '    """Sets what the plan decides; the rest of a configuration stays as it is."""\n'
_RUN = (
    "torchrun $LAUNCH -m torchtitan.train {which} --training.steps 20 --metrics.log_freq 1 "
    "--checkpoint.no-enable"
)
MEASURED = Remeasured(
    framework=RELEASE,
    command='PYTHONPATH="$PWD" '
    + _RUN.format(which="--module shardwright_plan --config plan").replace(
        "--checkpoint.no-enable", ""
    ),
    seconds=r"tps: ([0-9,]+)",
    seconds_unit=-1.0,
    memory=r"memory: *([0-9.]+)GiB",
)
OLD_MEASURED = Remeasured(
    framework=OLD_RELEASE,
    command=_RUN.format(which="--job.config_file plan.toml").replace("--checkpoint.no-enable", ""),
    seconds=r"tps: ([0-9,]+)",
    seconds_unit=-1.0,
    memory=r"memory: *([0-9.]+)GiB",
)
