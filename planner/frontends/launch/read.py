"""Which trainer's file it is, and what it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.errors import PlannerError, listed, nearest
from planner.frontends.launch import (
    accelerate,
    bridge,
    deepspeed,
    json_files,
    megatron,
    mindformers,
    torchtitan,
)
from planner.frontends.launch.found import TrainerFile
from planner.frontends.launch.shell import options, plain
from planner.frontends.yaml_source import YamlSource, parse_yaml
from planner.units import Json

PROGRAMS = (
    "megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "mindformers", "galvatron",
)  # fmt: skip
ALIASES = {
    "megatron-lm": "megatron", "mindspeed": "megatron", "mindspeed-llm": "megatron", "mcore": "megatron",
    "fsdp": "accelerate", "mindspore": "mindformers", "titan": "torchtitan", "bridge": "megatron-bridge",
    "nemo": "megatron-bridge",
}  # fmt: skip
ENDINGS = (".sh", ".json", ".toml", ".py", ".yaml", ".yml", ".txt", ".args")
MOST_BYTES = 2_000_000
_YAML_KEYS = {
    "mindformers": ("parallel_config", "runner_config", "recompute_config"),
    "accelerate": ("distributed_type", "fsdp_config", "parallelism_config"),
}
_JSON_KEYS = {
    "deepspeed": ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
    "galvatron": ("pp_deg", "tp_sizes_enc"),
    "megatron": ("world_size", "plan"),
    "megatron-bridge": ("world_size", "overrides"),
}
_MEASURES = "a row for: shardwright evaluate"
"""What only the script that measures says."""
_TITAN_MODULE = re.compile(r"^\s*(?:from|import) torchtitan\b|\.parallelism\b", re.MULTILINE)
_LAUNCHER = re.compile(r"\baccelerate\s+launch\b")
_SOURCED = re.compile(r"^\s*source (\S+?);? .*\$\{(\w+)\[@\]\}", re.MULTILINE)
"""A script that runs with the array of another."""


def read_trainer_file(path: Path, program: str | None = None) -> TrainerFile:
    """A trainer's configuration.

    Args:
        path: the file.
        program: whose it is; None to know it by its keys.

    Raises:
        PlannerError: a file that cannot be read (F01), an unknown trainer (T02), a file of no trainer that we know or
            with values that cannot be (W03), a model that is described in part (M02).
    """
    text = _text(path)
    asked = _program(program)
    found = _by_ending(path, text, asked)
    if found is None or (asked and found.program != asked):
        whose = f"{asked}'s" if asked else f"one of {listed(PROGRAMS)}"
        raise PlannerError.of(
            "W03",
            f"is no configuration of a trainer that we read: {whose} was expected.",
            where=str(path),
        )
    if found.program == "megatron" and "mindspeed" in f"{program} {text}".lower():
        return replace(found, trainer="mindspeed")
    return found


def is_trainer_file(path: Path) -> bool:
    """Whether a file is a trainer's configuration, by its ending and a look at its keys; its values may be wrong."""
    if path.suffix.lower() not in ENDINGS or not path.is_file():
        return False
    try:
        return _is_trainers(path, _text(path))
    except PlannerError:
        return False


def _is_trainers(path: Path, text: str) -> bool:
    ending = path.suffix.lower()
    if ending == ".sh":
        return "--" in text or bool(bridge.words_of(text))
    if ending in (".yaml", ".yml"):
        data = parse_yaml(text, str(path)).data
        return isinstance(data, dict) and _known(data, _YAML_KEYS) is not None
    if ending == ".json":
        found = json_files.parsed(str(path), text)
        return "schema_version" not in found and _known(found, _JSON_KEYS) is not None
    return ending == ".toml" or _by_ending(path, text, None) is not None


def _program(word: str | None) -> str | None:
    if word is None:
        return None
    name = word.strip().lower().replace("_", "-")
    name = ALIASES.get(name, name)
    if name in PROGRAMS:
        return name
    close = listed(nearest(name, [*PROGRAMS, *ALIASES], 2), "and")
    raise PlannerError.of(
        "T02",
        f"no files of a trainer named '{word}' are read. Nearest: {close}.",
        f"Possible: {listed(PROGRAMS)}.",
    )


def _by_ending(path: Path, text: str, asked: str | None) -> TrainerFile | None:
    where, ending = str(path), path.suffix.lower()
    if ending == ".json":
        return _json(where, text)
    if ending in (".yaml", ".yml"):
        return _yaml(parse_yaml(text, where), text)
    if ending == ".toml":
        return torchtitan.from_toml(where, text)
    if ending == ".py":
        return torchtitan.from_module(where, text) if _TITAN_MODULE.search(text) else None
    lent = _SOURCED.search(text)
    if lent and f"{lent[2]}=" not in text:
        raise PlannerError.of(
            "W03",
            f"runs what {lent[1]} sets, and sets nothing itself.",
            f"Give that file: shardwright check {path.parent / lent[1]}",
            where=where,
        )
    if _MEASURES in text:
        raise PlannerError.of(
            "W03",
            "measures a plan, and sets nothing itself.",
            f"Give the trainer's own file: shardwright check {path.parent}/…",
            where=where,
        )
    if asked == "megatron-bridge" or (asked is None and bridge.words_of(text)):
        return bridge.read_script(where, text)
    values, variables = options(text, where)
    if _LAUNCHER.search(plain(text)):
        return _launched(path, values)
    if asked == "torchtitan" or any(name.startswith("parallelism.") for name in values):
        return torchtitan.from_flags(where, values, _job(path, values))
    return megatron.read(where, values, variables)


def _json(where: str, text: str) -> TrainerFile | None:
    data = json_files.parsed(where, text)
    if "schema_version" in data:
        raise PlannerError.of(
            "W03",
            "is a plan, no configuration of a trainer.",
            f"What it costs, and whether it holds: shardwright check {where}",
            where=where,
        )
    program = _known(data, _JSON_KEYS)
    readers = {
        "deepspeed": deepspeed.read_deepspeed,
        "galvatron": json_files.read_galvatron,
        "megatron": json_files.read_megatron,
        "megatron-bridge": bridge.read_json,
    }
    found = readers[program](where, data) if program else None
    about = data.get("_about")
    if found is None or program != "deepspeed" or not isinstance(about, list):
        return found
    return accelerate.with_script(found, accelerate.started(" ".join(map(str, about))))


def _yaml(source: YamlSource, text: str) -> TrainerFile | None:
    if not isinstance(source.data, dict):
        return None
    program = _known(source.data, _YAML_KEYS)
    if program == "accelerate":
        found = accelerate.read_accelerate(source.path, source.data)
        return accelerate.noted(accelerate.with_script(found, accelerate.started(text)))
    return mindformers.read_mindformers(source) if program else None


def _job(path: Path, values: Mapping[str, Json]) -> Mapping[str, Json]:
    """What the job file of torchtitan's flags sets, if it lies where the script says."""
    named = next((values[key] for key in torchtitan.JOB_FILE if key in values), None)
    file = path.parent / str(named)
    there = named is not None and file.is_file()
    return torchtitan.job_values(str(file), _text(file)) if there else {}


def _launched(path: Path, values: Mapping[str, Json]) -> TrainerFile:
    """A script that calls Accelerate's launcher, with the file that it names, if it lies where the script says."""
    named = values.get("config_file")
    data: dict[str, Json] = {}
    if isinstance(named, str):
        file = path.parent / named
        source = parse_yaml(_text(file), str(file))
        data = source.data if isinstance(source.data, dict) else {}
    return accelerate.noted(accelerate.read_launch(str(path), values, data))


def _known(data: Mapping[str, Json], keys: Mapping[str, tuple[str, ...]]) -> str | None:
    counts = {program: sum(key in data for key in names) for program, names in keys.items()}
    best = max(counts, key=lambda program: counts[program])
    return best if counts[best] else None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise PlannerError.of("W03", "is too large for a configuration.", where=str(path))
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise PlannerError.of("W03", "is not text.", where=str(path)) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no such path"
        raise PlannerError.of("F01", f"cannot read {str(path)!r}: {why}.") from None
