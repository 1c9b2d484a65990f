"""DeepSpeed: JSON with batches, ZeRO, AutoTP and Ulysses.

DeepSpeed takes unknown top-level keys and unknown keys of ``tensor_parallel`` silently, so every key here was compared
with those that its classes have. Release: DeepSpeed 0.19.8.
"""

from __future__ import annotations

from planner.errors import listed
from planner.export.files import File, json_text
from planner.export.loop import loop, started
from planner.export.modules import LAYER, llama_like, style
from planner.export.refusal import (
    SHARES,
    Limits,
    host_share,
    no_axis,
    offloads,
    pinned,
    whole_states,
)
from planner.export.remeasure import Remeasured, remeasure
from planner.export.shape import shape_of
from planner.export.view import View, header
from planner.plan.schema import OperatorPlan
from planner.units import Json

RELEASE = "DeepSpeed 0.19.8"
BUCKET = 5 * 10**8
"""Elements of a gradient or gather bucket, DeepSpeed's default."""


def write(view: View) -> list[File]:
    """``deepspeed.json``, a training loop, and the script that measures.

    Raises:
        PlannerError: what the configuration cannot hold (W01).
    """
    _check(view)
    head = [*header(view, RELEASE), started(view, deepspeed=True)]
    data = {"_about": head} | settings(view)
    return [
        File("deepspeed.json", json_text(data)),
        loop(view, RELEASE, deepspeed=True),
        remeasure(view, MEASURED),
    ]


def _check(view: View) -> None:
    d, limits = view.degrees, Limits(RELEASE)
    offloads(limits, view, "optimizer", "states", *SHARES)
    no_axis(limits, view, "pp", "ep", "etp")
    low = d.offload == "states" and view.level < 3
    limits.refuse(low, f"weights in host memory at ZeRO-{view.level}", pinned("zero=3"))
    whole_states(limits, view)
    _sequence(limits, view)
    limits.refuse(
        d.recompute == "selective",
        "selective recompute",
        f"{pinned('recompute=none')} or recompute=full",
    )
    if d.tp > 1:
        _layers(limits, view)
    limits.refuse(view.plan.recipe.precision == "fp8", "fp8", "shardwright plan … --precision bf16")
    limits.refuse(
        view.plan.recipe.optimizer not in ("adamw", "sgd"),
        f"the optimizer {view.plan.recipe.optimizer}",
        "shardwright plan … --optimizer adamw",
    )
    limits.done()


def _sequence(limits: Limits, view: View) -> None:
    """Refuses context parallelism that is no Ulysses."""
    d = view.degrees
    cut = {op.split.get("cp") for op in view.operators() if op.name == "attn.core"}
    limits.refuse(
        d.cp > 1 and cut != {"heads"},
        f"cp {d.cp} as a ring: it has Ulysses only",
        f"{pinned('cp=1')}, or --trainer deepspeed",
    )
    limits.refuse(d.cp > 1 and d.tp > 1, "AutoTP and Ulysses together", pinned("cp=1"))
    limits.refuse(
        d.cp > 1 and shape_of(view).latent,
        "latent attention under Ulysses: queries and values have one size there",
        pinned("cp=1"),
    )


def _layers(limits: Limits, view: View) -> None:
    """Refuses what AutoTP does not split as the plan does: it leaves an embedding whole unless the head has it too."""
    limits.refuse(
        view.degrees.sequence_parallel, "sequence parallelism in AutoTP", pinned("sp=off")
    )
    limits.refuse(view.experts, "experts in AutoTP", pinned("tp=1"))
    whole = "vocab" if view.plan.model.tied else "nothing"
    for place, name, wanted in (("embedding", "lookup", whole), ("head", "project", "vocab")):
        cut = {op.split.get("tp", "nothing") for op in _ends(view, place, name)}
        limits.refuse(
            cut != {wanted},
            f"tp that cuts {listed(sorted(cut), 'and')} of the {place}: AutoTP cuts {wanted}",
            f"{pinned('tp=1')}, or --trainer deepspeed",
        )
    llama_like(limits, view, shape_of(view))


def _ends(view: View, place: str, name: str) -> list[OperatorPlan]:
    block = view.block(place)
    return [op for op in block.operators if op.name == name] if block else []


def settings(view: View) -> dict[str, Json]:
    """The configuration, without the comment."""
    d, recipe = view.degrees, view.plan.recipe
    data: dict[str, Json] = {
        "train_batch_size": recipe.global_batch,
        "train_micro_batch_size_per_gpu": d.micro_batch,
        "gradient_accumulation_steps": d.num_micro_batches,
        "zero_optimization": _zero(view.level) | _on_host(d.offload, host_share(view)),
        "optimizer": {"type": "SGD" if recipe.optimizer == "sgd" else "AdamW", "params": {"lr": 1e-4}},
        "steps_per_print": 1,
    }  # fmt: skip
    if recipe.precision in ("bf16", "fp16"):
        data[recipe.precision] = {"enabled": True}
    if d.recompute == "full":
        data["activation_checkpointing"] = {"number_checkpoints": view.plan.model.num_layers}
    if d.cp > 1:
        data["sequence_parallel_size"] = d.cp
    if d.tp > 1:
        data["tensor_parallel"] = {
            "autotp_size": d.tp,
            "vocab_parallel_lm_head": True,
            "partition_config": {"use_default_specs": False, "layer_specs": layer_specs(view)},
        }
    return data


def _zero(level: int) -> dict[str, Json]:
    zero: dict[str, Json] = {"stage": level}
    if level:
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": BUCKET}
    if level == 3:
        zero |= {
            "stage3_prefetch_bucket_size": BUCKET // 10,
            "stage3_param_persistence_threshold": 10**5,
        }
    return zero


def _on_host(offload: str, share: float) -> dict[str, Json]:
    host: dict[str, Json] = {"device": "cpu", "pin_memory": True}
    if offload == "none":
        return {}
    if share < 1.0:
        return {"offload_optimizer": host | {"ratio": share}}
    return {"offload_optimizer": host} | ({"offload_param": host} if offload == "states" else {})


def layer_specs(view: View) -> list[dict[str, Json]]:
    """Patterns of weights and how AutoTP splits them; the first pattern that matches counts."""
    specs = []
    for op in {op.name: op for op in view.operators()}.values():
        linear = LAYER.get(op.name)
        if linear is None:
            continue
        kind = {"column": "column", "row": "row", "whole": "skip"}[style(op, linear)]
        names = "|".join(name.replace(".", r"\.") for name in linear.modules)
        specs.append({"patterns": [rf".*\.({names})\.weight$"], "partition_type": kind})
    return specs


MEASURED = Remeasured(
    framework=RELEASE,
    command="torchrun $LAUNCH train.py",
    seconds=r"step [0-9]+ took ([0-9.]+) s",
    memory=r"peak ([0-9.]+) GiB",
)
