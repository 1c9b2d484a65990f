"""A person's own configuration with only what the plan decides changed: comments, order and everything else stay."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

from planner.errors import PlannerError
from planner.export import like_sections as sections
from planner.export import megatron, torchtitan
from planner.export.files import File
from planner.export.like_keys import edited as keys_edited
from planner.export.like_keys import said
from planner.export.like_python import edited as python_edited
from planner.export.like_python import said as python_said
from planner.export.like_shell import edited
from planner.export.like_toml import edited as toml_edited
from planner.export.like_toml import parsed as toml_said
from planner.export.shape import shape_of
from planner.export.targets import export
from planner.export.view import View
from planner.plan.schema import Plan
from planner.units import Json

Writer = Callable[[View, str, str], str]


def export_like(plan: Plan, to: str, name: str, text: str) -> File:
    """The file of that name and text with the plan's settings.

    Args:
        plan: what to write.
        to: the format by its name, such as ``megatron``.
        name: the file's name; its ending says how it is written.
        text: what it says now.

    Raises:
        PlannerError: the format cannot hold the plan (W01), or files of this kind are not edited (W05).
    """
    writer = WRITERS.get((to, PurePath(name).suffix.lower()))
    if writer is None:
        kinds = ", ".join(f"{ending} for {target}" for target, ending in WRITERS)
        raise PlannerError.of(
            "W05",
            f"{name} cannot be edited for {to}.",
            f"Possible: {kinds}. Or without --like: all files anew.",
        )
    export(plan, to)  # refuses what the format cannot hold
    return File(PurePath(name).name, writer(View(plan), text, name))


def _megatron(view: View, text: str, name: str) -> str:
    return edited(text, megatron.plan_pairs(view, shape_of(view)), name)


def _mindformers(view: View, text: str, name: str) -> str:
    text = keys_edited(
        text, sections.mindformers(view, said(text, name)), name, sections.MINDFORMERS
    )
    # what repeats the number of data ranks by an alias has followed by now
    return keys_edited(text, sections.inputs(view, said(text, name)), name)


def _accelerate(view: View, text: str, name: str) -> str:
    """Batches stand in a comment, where there is one that starts the training script."""
    d = view.degrees
    batches = {
        "per_device_train_batch_size": d.micro_batch,
        "gradient_accumulation_steps": d.num_micro_batches,
    }
    for option, value in batches.items():
        text = re.sub(rf"(#.*\.py .*--{option}[ =])\d+", rf"\g<1>{value}", text)
    return keys_edited(text, sections.accelerate(view, said(text, name)), name, sections.ACCELERATE)


def _deepspeed(view: View, text: str, name: str) -> str:
    return keys_edited(text, sections.deepspeed(view, said(text, name)), name, sections.DEEPSPEED)


def _toml(view: View, text: str, name: str) -> str:
    wanted = sections.torchtitan(view, toml_said(text, name), "output")
    if view.experts:
        wanted["parallelism"]["expert_tensor_parallel_degree"] = 1
    del wanted["training"]["disable_cuda_graphs"]
    mode = view.degrees.recompute
    again: dict[str, Json] = {"mode": mode}
    if (
        mode == "selective"
        and toml_said(text, name).get("activation_checkpoint", {}).get("mode") != mode
    ):
        again["selective_ac_option"] = "op"
    return toml_edited(text, wanted | {"activation_checkpoint": again}, name)


def _titan(view: View, text: str, name: str) -> str:
    wanted = sections.torchtitan(view, python_said(text, name), "lm_head")
    return python_edited(text, wanted, torchtitan.POLICIES[view.degrees.recompute], name)


WRITERS: dict[tuple[str, str], Writer] = {
    ("megatron", ".sh"): _megatron,
    ("mindformers", ".yaml"): _mindformers,
    ("mindformers", ".yml"): _mindformers,
    ("accelerate", ".yaml"): _accelerate,
    ("accelerate", ".yml"): _accelerate,
    ("deepspeed", ".json"): _deepspeed,
    ("torchtitan-0.2", ".toml"): _toml,
    ("torchtitan", ".py"): _titan,
}
"""Formats and endings of files that are edited in place."""
