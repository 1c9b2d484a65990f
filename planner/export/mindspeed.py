"""MindSpeed-LLM: Megatron's arguments as its older core takes them, unequal chunks filled with empty layers.

Keys: MindSpeed-LLM's example scripts; ``--noop-layers`` names layers of the padded depth, which are built as nothing.
"""

from __future__ import annotations

from planner.export.files import File, flags, json_text, shell_list
from planner.export.megatron import MOMENTS, PRECISION, recompute_pairs
from planner.export.megatron_model import model_pairs
from planner.export.refusal import (
    Limits,
    any_level,
    equal_layers,
    megatron_core,
    offloads,
    schedules,
    whole_states,
)
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import Shape, shape_of
from planner.export.view import View, commented, header
from planner.units import Json

RELEASE = "MindSpeed-LLM 2.1 on Megatron-Core 0.12"


def write(view: View) -> list[File]:
    """A shell file to source, the same as JSON, and the script that measures.

    Raises:
        PlannerError: the plan has what MindSpeed's arguments cannot say (W01).
    """
    _check(view)
    shape = shape_of(view)
    padded = dict(padding_pairs(view))
    model = [
        (key, padded.pop(key, value)) for key, value in model_pairs(shape, view.plan.recipe.seq)
    ]
    lists = {
        "PLAN_ARGS": flags([*_plan_pairs(view, shape), *padded.items()]),
        "MODEL_ARGS": flags(model),
    }
    head = header(view, RELEASE)
    if shape.odd:
        head.append(f"not in MODEL_ARGS, add your own arguments for: {', '.join(shape.odd)}")
    words = 'use it as: source mindspeed.sh; torchrun … pretrain_gpt.py "${PLAN_ARGS[@]}" …'
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    shell = [commented([*head, words]), f"\nPLAN_CHIPS={view.world}\n"]
    shell += [f"export {key}={value}\n" for key, value in environment.items()]
    shell += [f"\n{shell_list(name, values)}" for name, values in lists.items()]
    data = {
        "about": head,
        "world_size": view.world,
        "environment": environment,
        "plan": lists["PLAN_ARGS"],
        "model": lists["MODEL_ARGS"],
    }
    script = remeasure(view, MEASURED, environment)
    return [File("mindspeed.sh", "".join(shell)), File("mindspeed.json", json_text(data)), script]


def padding_pairs(view: View) -> list[tuple[str, Json]]:
    """The padded depth, its empty layers, and layers of a virtual stage; nothing without a pipeline.

    Chunks hold as many layers as the longest one, empty ones last.
    """
    sizes = [len(chunk) for chunk in view.visits]
    most = max(sizes)
    empty = [
        chunk * most + place for chunk, size in enumerate(sizes) for place in range(size, most)
    ]
    found: list[tuple[str, Json]] = []
    if empty:
        found.append(("--num-layers", most * len(sizes)))
        found.append(("--noop-layers", ",".join(map(str, empty))))
    if len(sizes) > view.degrees.pp:
        found.append(("--num-layers-per-virtual-pipeline-stage", most))
    return found


def _check(view: View) -> None:
    limits = Limits(RELEASE)
    offloads(limits, view)
    equal_layers(limits, view)
    any_level(limits, view, (0, 1))
    schedules(limits, view, "1f1b", "interleaved")
    name = view.plan.recipe.optimizer
    limits.refuse(name in MOMENTS, name, "shardwright plan … --optimizer adamw")
    whole_states(limits, view)
    megatron_core(limits, view)
    limits.done()


def _plan_pairs(view: View, shape: Shape) -> list[tuple[str, Json]]:
    """Options that say what the plan decides."""
    d, recipe = view.degrees, view.plan.recipe
    return [
        ("--use-mcore-models", True),
        ("--tensor-model-parallel-size", d.tp),
        ("--pipeline-model-parallel-size", d.pp),
        ("--context-parallel-size", d.cp),
        ("--context-parallel-algo", "megatron_cp_algo"),
        ("--expert-model-parallel-size", d.ep if view.experts else None),
        ("--expert-tensor-parallel-size", d.etp if view.experts else None),
        ("--sequence-parallel", d.sequence_parallel and d.tp > 1),
        ("--use-tp-pp-dp-mapping", d.order.index("pp") < d.order.index("dp") and d.pp > 1),
        ("--micro-batch-size", d.micro_batch),
        ("--global-batch-size", recipe.global_batch),
        ("--use-distributed-optimizer", view.level == 1 and d.dp * d.cp > 1),
        *recompute_pairs(view),
        ("--overlap-grad-reduce", d.dp * d.cp > 1),
        ("--overlap-param-gather", d.dp * d.cp > 1 and view.level == 1),
        ("--moe-token-dispatcher-type", "alltoall" if view.experts else None),
        ("--moe-grouped-gemm", view.experts),
        ("--use-flash-attn", True),
        *PRECISION[recipe.precision],
        ("--optimizer", "sgd" if recipe.optimizer == "sgd" else "adam"),
    ]


MEASURED = Remeasured(
    framework=RELEASE,
    command=(
        'source ./mindspeed.sh; torchrun $LAUNCH "${MINDSPEED_LLM:?the folder of MindSpeed-LLM}/pretrain_gpt.py" '
        '"${PLAN_ARGS[@]}" "${MODEL_ARGS[@]}" --mock-data --tokenizer-type NullTokenizer '
        "--lr 1e-4 --train-iters 20 --eval-iters 0 --log-interval 1 --log-throughput"
    ),
    seconds=r"elapsed time per iteration \(ms\): ([0-9.]+)",
    seconds_unit=1e-3,
    memory=r"max allocated: ([0-9.]+)",
    memory_gib=1 / 1024,
)
