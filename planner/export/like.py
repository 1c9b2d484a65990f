"""A person's own configuration with only what the plan decides changed: comments, order and everything else stay."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import PurePath

from planner.errors import PlannerError
from planner.export import accelerate, deepspeed, megatron, mindformers, torchtitan
from planner.export.files import File
from planner.export.like_python import edited as python_edited
from planner.export.like_shell import edited
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


def _yaml(text: str, name: str, changes: Mapping[str, Json]) -> str:
    """Sections with their keys replaced or added; None takes a key out."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    try:
        data = yaml.load(text)
    except (YAMLError, ValueError) as error:
        first = (str(error).splitlines() or ["no YAML"])[0]
        raise PlannerError.of("W05", f"is not YAML: {first}", where=name) from None
    if not isinstance(data, dict):
        raise PlannerError.of("W05", "holds no keys to change.", where=name)
    _merge(data, changes)
    out = StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _merge(data: dict[str, Json], changes: Mapping[str, Json]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _merge(data[key], value)
        elif value is None:
            data.pop(key, None)
        elif data.get(key) != value:
            data[key] = value


def _mindformers(view: View, text: str, name: str) -> str:
    config = mindformers.settings(view, shape_of(view))
    model = config["model"]["model_config"]
    parts = ("runner_config", "parallel", "parallel_config", "recompute_config")
    kept = {"runner_config": ("batch_size", "gradient_accumulation_steps")}
    changes: dict[str, Json] = {
        part: {key: config[part][key] for key in kept.get(part) or tuple(config[part])}
        for part in parts
    }
    layers = {key: model[key] for key in ("batch_size", "offset", "pp_interleave_num")}
    return _yaml(text, name, changes | {"model": {"model_config": layers}})


def _accelerate(view: View, text: str, name: str) -> str:
    found = accelerate.settings(view)
    keys = (
        "distributed_type",
        "num_processes",
        "num_machines",
        "fsdp_config",
        "parallelism_config",
    )
    return _yaml(text, name, {key: found.get(key) for key in keys})


def _deepspeed(view: View, text: str, name: str) -> str:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PlannerError.of("W05", f"is not JSON: {error}.", where=name) from None
    if not isinstance(data, dict):
        raise PlannerError.of("W05", "holds no keys to change.", where=name)
    found = deepspeed.settings(view)
    zero = found["zero_optimization"]
    host = {key: zero.get(key) for key in ("offload_optimizer", "offload_param")}
    batches = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    changes: dict[str, Json] = {key: found[key] for key in batches}
    changes |= {key: found.get(key) for key in ("tensor_parallel", "sequence_parallel_size")}
    _merge(data, changes | {"zero_optimization": {"stage": zero["stage"]} | host})
    indent = re.search(r"\n([ \t]+)", text)
    return json.dumps(data, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"


def _toml(view: View, text: str, name: str) -> str:
    """Lines ``key = value`` of a section replaced; keys that it lacks are added at its end."""
    files = {file.name: file.text for file in torchtitan.write_toml(view)}
    wanted: dict[str, dict[str, str]] = {}
    section = ""
    for line in files["plan.toml"].splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            wanted[section] = {}
        elif " = " in line and not line.startswith("#"):
            key, _, value = line.partition(" = ")
            wanted[section][key] = value
    del wanted["model"], wanted["compile"]
    for part, keys in wanted.items():
        text = _section(text, part, keys)
    return text


def _section(text: str, name: str, keys: Mapping[str, str]) -> str:
    found = re.search(rf"^\[{re.escape(name)}\][^\n]*\n(?:(?!\[)[^\n]*\n?)*", text, re.MULTILINE)
    body = found[0] if found else f"\n[{name}]\n"
    for key, value in keys.items():
        line = re.compile(
            rf"^(\s*{re.escape(key)}\s*=\s*)[^\n#]*?([ \t]*(?:#[^\n]*)?)$", re.MULTILINE
        )
        if line.search(body):
            body = line.sub(lambda m, value=value: f"{m[1]}{value}{m[2]}", body)  # type: ignore[misc]
        else:
            end = body.rstrip("\n")
            body = f"{end}\n{key} = {value}\n" + "\n" * (len(body) - len(end) - 1)
    return text[: found.start()] + body + text[found.end() :] if found else text + body


def _titan(view: View, text: str, name: str) -> str:
    training = torchtitan.training(view)
    keys = ("local_batch_size", "enable_cpu_offload", "disable_cuda_graphs")
    stages = {} if view.degrees.pp > 1 else {"module_fqns_per_model_part": None}
    sections = {
        "training": {key: training[key] for key in keys},
        "parallelism": stages | torchtitan.parallelism(view, shape_of(view), "lm_head"),
    }
    return python_edited(text, sections, torchtitan.POLICIES[view.degrees.recompute], name)


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
