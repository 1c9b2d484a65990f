"""Megatron-LM and MindSpeed: arguments in a launch script, a list, or the JSON that we export."""

from __future__ import annotations

import math
from collections.abc import Mapping

from planner.errors import Fault, alike, listed
from planner.frontends.launch import megatron_model, megatron_stages
from planner.frontends.launch.found import (
    Reader,
    TrainerFile,
    in_part,
    share_word,
    without_defaults,
)
from planner.units import Json

DEGREES = {
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
}
UNPRICED = {
    "swap-optimizer": "the optimizer's states live on the host (swap-optimizer)",
    "swap-attention": "activations of attention are moved to the host (swap-attention)",
    "cpu-offloading-num-layers": "activations are moved to the host (cpu-offloading-num-layers)",
    "reuse-fp32-param": "weights share the bytes of their fp32 copy (reuse-fp32-param)",
    "recompute-activation-function": "the activation function is computed again (recompute-activation-function)",
    "lora-r": "only low-rank adapters are trained (lora-r)",
    "moe-tp-extend-ep": "tp ranks carry whole experts (moe-tp-extend-ep)",
}
"""Options that change time or memory in a way that prices do not know."""
CHIPS_A_NODE = (
    "NPUS_PER_NODE",
    "GPUS_PER_NODE",
    "GPUS_PER_NODES",
    "NPROC_PER_NODE",
    "NUM_GPUS_PER_NODE",
    "PER_NODE",
)
NODES = ("NNODES", "NODES", "NUM_NODES")


PARALLEL = (
    *DEGREES.values(), "expert-model-parallel-size", "expert-tensor-parallel-size", "sequence-parallel",
    "micro-batch-size", "global-batch-size", "use-distributed-optimizer", "recompute-granularity", "recompute-method",
    "recompute-num-layers", "recompute-modules", "pipeline-model-parallel-layout",
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank",
    "num-distributed-optimizer-instances", "overlap-grad-reduce", "overlap-param-gather",
)  # fmt: skip
"""Options that a layout is read from."""
ASCEND = ("noop-layers", "num-layer-list", "context-parallel-algo")
"""Options that only MindSpeed has."""


def read(path: str, values: Mapping[str, Json], variables: Mapping[str, str]) -> TrainerFile:
    """A configuration from its options without their dashes, and the script's variables.

    Raises:
        PlannerError: values that are no numbers (W03), a model that is not described (M02).
    """
    reader = Reader(path, {name.replace("_", "-"): value for name, value in values.items()})
    model = megatron_model.read(reader)
    chips = _chips(reader, variables)
    layout = _layout(reader, chips)
    stages = megatron_stages.read(reader, model.layers, int(layout["pp"]))
    if stages is not None and len(stages) > int(layout["pp"]):
        layout["vpp"] = len(stages) // int(layout["pp"])
    if layout.get("vpp", 1) != 1:
        layout.setdefault("schedule", "interleaved")
    _silent(reader, layout, stages, model.experts > 0)
    _repeated(reader, layout, stages or (model.layers,))
    _unknown(reader)
    seq = reader.number("seq-length", default=0)
    batch = reader.number("global-batch-size", default=0)
    for key, what in UNPRICED.items():
        if reader.flag(key):
            reader.notes.append(f"not priced: {what}")
    reader.done()
    even = stages is not None and len(set(stages)) == 1
    return TrainerFile(
        path=path,
        program="megatron",
        trainer="mindspeed" if any(map(reader.text, ASCEND)) else "megatron",
        layout=without_defaults(layout),
        architecture=megatron_model.architecture(model) if model.layers else None,
        chips=chips,
        global_batch=batch or None,
        seq_len=seq or None,
        precision=_precision(reader),
        optimizer=_optimizer(reader),
        stages=None if even else stages,
        notes=tuple(reader.notes),
        faults=tuple(reader.faults),
    )


def _host_share(reader: Reader) -> str:
    """The word for the share of optimizer states in host memory: the nearest that is priced."""
    text = reader.text("optimizer-offload-fraction") or "1"
    return share_word(float(text) if text.replace(".", "", 1).isdigit() else 1.0)


def _chips(reader: Reader, variables: Mapping[str, str]) -> int | None:
    """The world: stated, or nodes times chips a node."""
    world = _first(variables, ("PLAN_CHIPS", "WORLD_SIZE"))
    if world:
        return world
    nodes = _first(variables, NODES) or reader.number("nnodes", default=0)
    each = _first(variables, CHIPS_A_NODE) or reader.number("nproc-per-node", default=0)
    return nodes * each or None


def _first(variables: Mapping[str, str], names: tuple[str, ...]) -> int:
    return next((int(variables[name]) for name in names if variables.get(name, "").isdigit()), 0)


def _layout(reader: Reader, chips: int | None) -> dict[str, int | str]:
    layout: dict[str, int | str] = {axis: reader.degree(key) for axis, key in DEGREES.items()}
    tp = int(layout["tp"])
    inner = math.prod(int(layout[axis]) for axis in DEGREES)
    if chips is not None:
        if chips % inner:
            shown = " × ".join(f"{axis} {layout[axis]}" for axis in DEGREES)
            reader.fault("D01", f"{shown} = {inner} does not divide {chips} chips.")
        layout["dp"] = max(chips // inner, 1)
    said = reader.get("num-layers") is None and reader.get("expert-model-parallel-size") is not None
    if reader.number("num-experts", default=0) > 1 or said:
        layout["ep"] = reader.degree("expert-model-parallel-size")
        usual = 1 if reader.flag("moe-tp-extend-ep") else tp
        layout["etp"] = reader.degree("expert-tensor-parallel-size", default=usual)
    layout["mbs"] = reader.degree("micro-batch-size")
    layout["sp"] = "on" if reader.flag("sequence-parallel") and tp > 1 else "off"
    layout |= _states(reader, layout)
    layout["recompute"] = _recompute(reader)
    if reader.flag("optimizer-cpu-offload"):
        layout["offload"] = _host_share(reader)
    if reader.flag("use-tp-pp-dp-mapping"):
        layout["order"] = "tp-cp-pp-dp"
    if reader.text("schedules-method") in ("dualpipev", "zbv"):
        layout["schedule"] = reader.text("schedules-method")
        layout["vpp"] = 2
    if "ulysses" in reader.text("context-parallel-algo") and layout["cp"] != 1:
        reader.notes.append(
            "not priced: cp as Ulysses (context-parallel-algo); it is priced as a ring"
        )
    return layout


def _states(reader: Reader, layout: Mapping[str, int | str]) -> dict[str, int | str]:
    """State sharding: the distributed optimizer, or Megatron's FSDP."""
    strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    if reader.flag("use-megatron-fsdp"):
        word = reader.text("data-parallel-sharding-strategy", default="no_shard")
        return {"zero": strategies.get(word, 0)}
    if reader.flag("use-torch-fsdp2"):
        return {"zero": 3}
    if not reader.flag("use-distributed-optimizer"):
        return {"zero": 0}
    instances = reader.degree("num-distributed-optimizer-instances")
    data = int(layout.get("dp", 1)) * int(layout["cp"])
    reader.silently(
        data % instances > 0,
        f"num-distributed-optimizer-instances {instances} does not divide dp × cp = {data}.",
        "Megatron's parser takes it, and its groups refuse it.",
    )
    if instances == 1 or data % instances:
        return {"zero": 1}
    return {"zero": 1, "shard-group": data // instances}


def _recompute(reader: Reader) -> str:
    kind = reader.text("recompute-granularity")
    if reader.flag("recompute-activations"):
        kind = "selective"
    if kind == "full":
        return "full"
    if kind != "selective":
        return "none"
    modules = reader.get("recompute-modules") or ["core_attn"]
    named = set(modules if isinstance(modules, list) else [modules])
    if named <= {"core_attn"}:
        reader.notes.append(
            "recompute of core_attn is priced as none: fused attention keeps no scores"
        )
        return "none"
    extra = sorted(named - {"layernorm", "moe_act", "mla_up_proj", "core_attn"})
    if extra:
        reader.notes.append(f"recompute of {', '.join(extra)} is not priced")
    return "selective"


def _precision(reader: Reader) -> str | None:
    if reader.text("fp8-format", "fp8"):
        return "fp8"
    return "bf16" if reader.flag("bf16") else "fp16" if reader.flag("fp16") else "fp32"


def _optimizer(reader: Reader) -> str:
    if reader.text("optimizer") == "sgd":
        return "sgd"
    narrow = {"bf16": "adamw-bf16", "fp8": "adamw-8bit", "uint8": "adamw-8bit"}
    return narrow.get(reader.text("exp-avg-dtype"), "adamw")


def _silent(
    reader: Reader, layout: Mapping[str, int | str], stages: tuple[int, ...] | None, moe: bool
) -> None:
    """What Megatron's parser takes without a word."""
    tp = int(layout["tp"])
    reader.silently(
        reader.flag("sequence-parallel") and tp == 1,
        "sequence-parallel does nothing with tensor-model-parallel-size 1.",
        "Megatron turns it off. Drop it, or use tp.",
    )
    reader.silently(
        moe and tp > 1 and layout["sp"] == "off",
        f"experts with tp {tp} need sequence-parallel; training them without it fails later.",
        "Add --sequence-parallel.",
    )
    count = reader.number("recompute-num-layers", default=1)
    if layout["recompute"] == "full" and reader.text("recompute-method") == "uniform":
        even = (reader.number("num-layers") // int(layout["pp"]),)
        odd = sorted({layers for layers in stages or even if layers % max(count, 1)})
        reader.silently(
            bool(odd),
            f"recompute-num-layers {count} is no divisor of the {listed(odd, 'and')} layers of a stage.",
            "The last unit then is smaller than the others; take a divisor.",
        )
    most = max(stages, default=0) if stages else 0
    if layout["recompute"] == "full" and reader.text("recompute-method") == "block" and most:
        reader.silently(
            count > most,
            f"recompute-num-layers {count} is more than the {most} layers of a stage.",
            f"Nearest: {most}, which is all of them.",
        )


def _repeated(reader: Reader, layout: dict[str, int | str], chunks: tuple[int, ...]) -> None:
    """Full recompute of the first layers of every chunk only, or of several layers together."""
    count = reader.number("recompute-num-layers", default=1)
    if layout["recompute"] != "full" or count < 1:
        return
    if reader.text("recompute-method") == "block":
        if count < max(chunks):
            del layout["recompute"]
            layout |= in_part(chunks, [min(count, layers) for layers in chunks])
    elif count > 1:
        layout["recompute-unit"] = min(count, max(chunks))


def _unknown(reader: Reader) -> None:
    """Options that are nearly those of the layout: Megatron refuses what it does not know."""
    for key in sorted(reader.values.keys() - reader.asked - set(PARALLEL)):
        close = alike(key, PARALLEL, 1, least=0.9)
        if close:
            what = f"{key} is no option of Megatron-LM, which refuses it."
            reader.fault("W03", what, f"Nearest: {close[0]}.")


def refused(path: str, key: str, value: Json) -> Fault:
    """A value that a reader cannot follow."""
    return Fault("W03", f"{key} is {str(value)[:40]!r}, which is not understood.", (), path)
