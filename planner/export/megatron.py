"""Megatron-LM: argument list, pipeline layout string and environment variables.

Keys and what the parser refuses: Megatron-LM 0.19.2, ``megatron/training/arguments.py``, run on a CPU.
"""

from __future__ import annotations

import re

from planner.export.files import File, flags, json_text, shell_list
from planner.export.megatron_model import model_pairs
from planner.export.refusal import (
    SHARES,
    Limits,
    any_level,
    equal_layers,
    host_share,
    megatron_core,
    offloads,
    pinned,
    schedules,
)
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import Shape, shape_of
from planner.export.view import View, commented, header
from planner.units import Json

RELEASE = "Megatron-LM 0.19.2"
_BLACKWELL = re.compile(r"^g?b[123]00")
LAYERWISE = {"norm1": "layernorm", "norm2": "layernorm", "moe.act": "moe_act"}
"""Operators that a module of ``--recompute-modules`` computes again, one a module (or part of a norm)."""
LATENT = frozenset({"attn.q_up", "attn.kv_up", "attn.rotary_q", "attn.build_k", "attn.split_v"})
"""Operators of ``mla_up_proj``."""
SMALL_NORMS = frozenset({"attn.q_norm", "attn.k_norm", "attn.kv_norm"})
"""Norms that Megatron keeps whatever is asked; a fiftieth of what the others keep."""
PRECISION: dict[str, list[tuple[str, Json]]] = {
    "bf16": [("--bf16", True)],
    "fp16": [("--fp16", True)],
    "fp8": [
        ("--bf16", True),
        ("--fp8-format", "hybrid"),
        ("--fp8-recipe", "tensorwise"),
    ],
    "fp32": [],
}
MOMENTS = {"adamw-bf16": "bf16", "adamw-8bit": "fp8"}


def write(view: View) -> list[File]:
    """A shell file to source, the same as JSON, and the script that measures.

    Raises:
        PlannerError: the plan has what Megatron-LM's arguments cannot say (W01).
    """
    check(view, RELEASE)
    shape = shape_of(view)
    plan, model = flags(plan_pairs(view, shape)), flags(model_pairs(shape, view.plan.recipe.seq))
    environment = environment_of(view)
    head = header(view, RELEASE)
    if shape.odd:
        head.append(f"not in MODEL_ARGS, add your own arguments for: {', '.join(shape.odd)}")
    exports = "".join(f"export {key}={value}\n" for key, value in environment.items())
    shell = "".join(
        [
            commented(
                [
                    *head,
                    'use it as: source megatron.sh; torchrun … pretrain_gpt.py "${PLAN_ARGS[@]}" …',
                ]
            ),
            f"\nPLAN_CHIPS={view.world}\n",
            exports,
            "\n",
            shell_list("PLAN_ARGS", plan),
            "\n",
            shell_list("MODEL_ARGS", model),
        ]
    )
    data = {
        "about": head,
        "world_size": view.world,
        "environment": environment,
        "plan": plan,
        "model": model,
    }
    script = remeasure(view, MEASURED, environment, overlaps(view))
    return [File("megatron.sh", shell), File("megatron.json", json_text(data)), script]


def check(view: View, target: str) -> None:
    """What Megatron's arguments cannot hold, and what its parser takes although it is wrong."""
    d, limits = view.degrees, Limits(target)
    offloads(limits, view, "optimizer", *SHARES)
    equal_layers(limits, view)
    any_level(limits, view, (0, 1))
    schedules(limits, view, "1f1b", "interleaved")
    limits.refuse(
        view.plan.recipe.optimizer in MOMENTS and view.level == 0 and d.dp * d.cp > 1,
        f"{view.plan.recipe.optimizer} with unsharded states",
        pinned("zero=1"),
    )
    # initialize_model_parallel divides the ranks of a stage, the parser does not look
    left = (d.dp * d.cp * d.tp) % (d.ep * d.etp)
    limits.refuse(
        left > 0,
        f"ep {d.ep} × etp {d.etp} in {d.dp * d.cp * d.tp} ranks of a stage",
        pinned("ep=1"),
    )
    megatron_core(limits, view)
    if d.recompute == "selective":
        strange = sorted(view.recomputed - {*LAYERWISE, *LATENT, *SMALL_NORMS})
        limits.refuse(
            bool(strange),
            f"recompute of {', '.join(strange)} alone",
            f"{pinned('recompute=none')} or recompute=full",
        )
    limits.done()


def plan_pairs(view: View, shape: Shape) -> list[tuple[str, Json]]:
    """Options that say what the plan decides, and what its prices take for granted."""
    d, recipe = view.degrees, view.plan.recipe
    return [
        ("--tensor-model-parallel-size", d.tp),
        ("--pipeline-model-parallel-size", d.pp),
        ("--context-parallel-size", d.cp),
        ("--cp-comm-type", "p2p" if d.cp > 1 else None),
        ("--expert-model-parallel-size", d.ep if view.experts else None),
        ("--expert-tensor-parallel-size", d.etp if view.experts else None),
        ("--sequence-parallel", d.sequence_parallel and d.tp > 1),
        ("--use-tp-pp-dp-mapping", d.order.index("pp") < d.order.index("dp") and d.pp > 1),
        ("--pipeline-model-parallel-layout", layout(view, shape.mtp) if d.pp > 1 else None),
        ("--micro-batch-size", d.micro_batch),
        ("--global-batch-size", recipe.global_batch),
        *_states(view),
        *recompute_pairs(view),
        ("--overlap-grad-reduce", d.dp * d.cp > 1),
        ("--overlap-param-gather", d.dp * d.cp > 1 and view.level == 1),
        ("--tp-comm-overlap", d.tp > 1 and d.sequence_parallel),
        *_dispatch(view),
        ("--moe-grouped-gemm", view.experts),
        ("--cross-entropy-loss-fusion", True),
        *PRECISION[recipe.precision],
        *_optimizer(recipe.optimizer, host_share(view)),
    ]


def layout(view: View, mtp: int) -> str:
    """The pipeline layout string: E embedding, t layer, m prediction module, L loss, stages divided by bars.

    Stages are listed chunk by chunk: stage index = chunk · pp + rank.
    """
    parts = ["t" if len(v) == 1 else f"t*{len(v)}" if v else "" for v in view.visits]
    parts[0] = f"E{parts[0]}"
    parts[-1] += ("m" if mtp == 1 else f"m*{mtp}" if mtp else "") + "L"
    return "|".join(parts)


def _dispatch(view: View) -> list[tuple[str, Json]]:
    """How tokens reach their experts: one copy for each far group, as the plan's all-to-alls are priced."""
    if not view.experts:
        return []
    if view.degrees.ep == 1:
        return [("--moe-token-dispatcher-type", "alltoall")]
    return [("--moe-token-dispatcher-type", "flex"), ("--moe-flex-dispatcher-backend", "hybridep")]


def overlaps(view: View) -> str:
    """What hides communication, in the words of a row of measured runs."""
    d = view.degrees
    words = ["tp comm overlap"] * (d.tp > 1 and d.sequence_parallel)
    words += ["hybridep dispatch"] * (view.experts and d.ep > 1)
    return ", ".join(words)


def _states(view: View) -> list[tuple[str, Json]]:
    """One data rank has nothing to shard, but the precision-aware optimizer is refused without the distributed one.

    Source: megatron/core/optimizer/optimizer_config.py, OptimizerConfig.__post_init__.
    """
    d, narrow = view.degrees, view.plan.recipe.optimizer in MOMENTS
    spread = d.dp * d.cp > 1
    precise = narrow or host_share(view) > 0.0
    instances = view.replicas if view.level == 1 else 1
    return [
        ("--use-distributed-optimizer", view.level == 1 if spread else precise),
        ("--num-distributed-optimizer-instances", instances if instances > 1 else None),
    ]


def recompute_pairs(view: View) -> list[tuple[str, Json]]:
    """Options of what is computed again."""
    mode = view.degrees.recompute
    if mode == "none":
        return []
    if mode == "full":
        return [
            ("--recompute-granularity", "full"),
            ("--recompute-method", "uniform"),
            ("--recompute-num-layers", view.degrees.recompute_unit),
        ]
    if mode == "mixed":
        return [
            ("--recompute-granularity", "full"),
            ("--recompute-method", "block"),
            ("--recompute-num-layers", view.repeated_layers),
        ]
    modules = {LAYERWISE[name] for name in view.recomputed & LAYERWISE.keys()}
    modules |= {"mla_up_proj"} if view.recomputed & LATENT else set()
    return [("--recompute-granularity", "selective"), ("--recompute-modules", sorted(modules))]


def _optimizer(name: str, on_host: float) -> list[tuple[str, Json]]:
    chosen = ("--optimizer", "sgd" if name == "sgd" else "adam")
    narrow = name in MOMENTS
    pairs = [chosen, ("--use-precision-aware-optimizer", narrow or on_host > 0.0)]
    pairs.append(("--optimizer-cpu-offload", on_host > 0.0))
    pairs.append(("--optimizer-offload-fraction", on_host if 0.0 < on_host < 1.0 else None))
    if not narrow:
        return pairs
    return [
        *pairs,
        ("--exp-avg-dtype", MOMENTS[name]),
        ("--exp-avg-sq-dtype", MOMENTS[name]),
    ]


def environment_of(view: View) -> dict[str, str]:
    """Variables without which the parser refuses the plan, or the overlap that it prices does not happen."""
    d = view.degrees
    before = not _BLACKWELL.match(view.plan.cluster.chip)
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if before and (d.tp > 1 or d.cp > 1) else {}


MEASURED = Remeasured(
    framework=RELEASE,
    command=(
        'source ./megatron.sh; torchrun $LAUNCH "${MEGATRON_LM:?the folder of Megatron-LM}/pretrain_gpt.py" '
        '"${PLAN_ARGS[@]}" "${MODEL_ARGS[@]}" --mock-data --tokenizer-type NullTokenizer '
        "--lr 1e-4 --train-iters 20 --eval-iters 0 --log-interval 1 --log-throughput"
    ),
    seconds=r"elapsed time per iteration \(ms\): ([0-9.]+)",
    seconds_unit=1e-3,
    memory=r"max allocated: ([0-9.]+)",
    memory_gib=1 / 1024,
)
