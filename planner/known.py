"""What is known by name: lists, and one thing with the source of each number."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from planner.errors import PlannerError, listed, nearest
from planner.frontends.catalog import entries, find
from planner.frontends.cluster_file import read_chip, read_cluster
from planner.frontends.hardware_files import ClusterFile
from planner.frontends.hardware_text import dump_chip, dump_cluster
from planner.frontends.model_file import dump_model, read_model
from planner.frontends.model_schema import ModelDescription
from planner.frontends.recipe_file import RecipeFile
from planner.frontends.yaml_source import load_yaml
from planner.graph.architecture import STATED, Architecture
from planner.graph.blocks import build_model
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster
from planner.plan.schema import NoPlan, Plan
from planner.trainers.registry import TRAINERS
from planner.trainers.trainer import Trainer
from planner.units import GB, GIB, TERA, Json, show_bytes, show_seconds

KINDS = ("models", "clusters", "chips", "trainers")
SCHEMAS: dict[str, type[BaseModel]] = {
    "plan": Plan,
    "no-plan": NoPlan,
    "model": ModelDescription,
    "cluster": ClusterFile,
    "recipe": RecipeFile,
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One known thing: as a file that reads back, and as plain data."""

    text: str
    """YAML that the same command reads, with sources; for trainers plain lines, for a kind the names."""
    data: Json
    """An object; for a kind a row for everything of it."""


def list_names(kind: str) -> list[dict[str, Any]]:
    """A row for everything of a kind: ``models``, ``clusters``, ``chips`` or ``trainers``.

    Raises:
        PlannerError: no such kind.
    """
    if kind == "models":
        return [_model_row(read_model(entry.name), entry.aliases) for entry in entries("model")]
    if kind == "chips":
        return [_chip_row(read_chip(entry.name)) for entry in entries("chip")]
    if kind == "clusters":
        return [_cluster_row(read_cluster(entry.name)) for entry in entries("cluster")]
    if kind == "trainers":
        return [
            {"name": t.name, "release": t.release, "aliases": ", ".join(t.aliases)}
            for t in TRAINERS
        ]
    raise PlannerError.of("A03", f"nothing is listed as '{kind}'.", f"Possible: {listed(KINDS)}.")


def show(name: str) -> Shown:
    """A model, chip, cluster or trainer by name, or a file of one of them; or all that there is of a kind.

    Raises:
        PlannerError: nothing has that name, or the file is wrong.
    """
    if name in KINDS:
        rows = list_names(name)
        return Shown("\n".join(str(row["name"]) for row in rows), rows)
    for trainer in TRAINERS:
        if name.lower() in (trainer.name, *trainer.aliases):
            return _trainer(trainer)
    path = name.lower().endswith((".json", ".yaml", ".yml")) or "/" in name
    if find("chip", name):
        return _chip(read_chip(name))
    if find("cluster", name):
        return _cluster(read_cluster(name, notes=False))
    if path or find("model", name):
        return _described(name)
    if ":" in name:
        return _cluster(read_cluster(name, notes=False))
    if Path(name).is_dir():
        return _model(read_model(name))
    known = [entry.name for kind in ("model", "chip", "cluster") for entry in entries(kind)]
    close = listed(nearest(name, [*known, *(t.name for t in TRAINERS)]), "and")
    raise PlannerError.of(
        "M01", f"nothing is known as '{name}'. Nearest: {close}.", "All: shardwright list models"
    )


def _described(name: str) -> Shown:
    """A model by name, or whatever a file describes: hardware is known by its keys."""
    path = Path(name)
    if path.suffix.lower() in (".yaml", ".yml") and path.is_file():
        data = load_yaml(path).data
        if isinstance(data, dict) and "levels" in data:
            return _cluster(read_cluster(name, notes=False))
        if isinstance(data, dict) and "peak_tflops" in data:
            return _chip(read_chip(name))
    return _model(read_model(name))


def schema(kind: str) -> dict[str, Json]:
    """The JSON Schema of plans, models, clusters or recipes.

    Raises:
        PlannerError: no such kind.
    """
    if kind not in SCHEMAS:
        raise PlannerError.of(
            "A03", f"no schema named '{kind}'.", f"Possible: {listed(list(SCHEMAS))}."
        )
    return SCHEMAS[kind].model_json_schema()


def _model_row(arch: Architecture, aliases: tuple[str, ...]) -> dict[str, Any]:
    model = build_model(arch, min(arch.max_seq, 4096))
    return {
        "name": arch.name,
        "B params": round(model.num_params / 1e9, 2),
        "layers": model.num_layers,
        "seq": arch.max_seq,
        "also": ", ".join(aliases),
    }


def _chip_row(chip: Chip) -> dict[str, Any]:
    best = "bf16" if "bf16" in chip.peak else "fp16"
    return {
        "name": chip.name,
        "GiB": round(chip.memory_bytes / GIB, 1),
        "GB/s": round(chip.memory_bandwidth / GB),
        "TFLOPS": round(chip.peak[best] / TERA),
        "$/h": chip.price if chip.price is not None else "–",
        "wiring": chip.cluster,
    }


def _cluster_row(cluster: Cluster) -> dict[str, Any]:
    levels = " · ".join(
        f"{level.name} {level.size or '…'} at {level.bandwidth / GB:.4g}"
        for level in cluster.levels
    )
    return {"name": cluster.name, "chip": cluster.chip.name, "levels (chips at GB/s)": levels}


def _model(arch: Architecture) -> Shown:
    model = build_model(arch, min(arch.max_seq, 4096))
    data = asdict(arch) | {
        "num_params": model.num_params,
        "num_active_params": round(model.num_active_params),
        "num_mtp_params": model.num_mtp_params,
        "num_layers": model.num_layers,
        "operators": {name: list(dims) for name, dims in model.operator_dims().items()},
    }
    lines = [f"#   {name}  ({', '.join(dims)})" for name, dims in model.operator_dims().items()]
    told = "\n".join(["", "# operators and their dims, as --pin names them", *lines, ""])
    text, length = dump_model(arch), f"max_seq: {arch.max_seq}\n"
    if arch.assumed != STATED:
        text = text.replace(length, f"{length[:-1]}  # {arch.assumed}\n")
    return Shown(text + told, data)


def _chip(chip: Chip) -> Shown:
    return Shown(dump_chip(chip), asdict(chip))


def _cluster(cluster: Cluster) -> Shown:
    return Shown(dump_cluster(cluster), asdict(cluster))


def _trainer(trainer: Trainer) -> Shown:
    data: dict[str, Json] = {
        "name": trainer.name,
        "release": trainer.release,
        "aliases": list(trainer.aliases),
        "source": trainer.source,
        "axes": sorted(trainer.axes),
        "sharding": list(trainer.shardings),
        "schedules": list(trainer.schedules),
        "memory": asdict(trainer.memory),
        "overlap": asdict(trainer.overlap),
        "overhead": asdict(trainer.overhead),
        "rules": {
            rule.name: {"sentence": rule.sentence, "source": rule.source} for rule in trainer.rules
        },
    }
    lines = [f"{trainer.name}: {trainer.release}", f"source: {trainer.source}", ""]
    for part in ("memory", "overlap", "overhead"):
        lines += [f"{part}: {data[part]['source']}"]
        facts = data[part].items()
        lines += [
            f"  {key}: {_with_unit(part, key, value)}" for key, value in facts if key != "source"
        ]
    lines += ["", "rules:", *(f"  {rule.name}: {rule.sentence}" for rule in trainer.rules)]
    return Shown("\n".join(lines) + "\n", data)


def _with_unit(part: str, key: str, value: Json) -> str:
    """A trainer's number as a person reads it; what has no unit is a share or a count."""
    if part == "overhead" and key in ("step", "operator", "exchange") and value is not None:
        return show_seconds(value)
    if key == "runtime_bytes":
        return show_bytes(value)
    if key.endswith("_bytes"):
        return f"{value:g} B an element"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
