"""Generations of the trainers' software: how older or other programs spend the same operators.

A plan is made for the current release of a trainer; a measured run was made by some release of some program. What they
do differently (kernels that they fuse, what they overlap, bytes that they keep) is data, in ``generations.json``:
numbers with their spread, fitted on measured runs (``python -m benchmarks.fit``) or taken from a stated source.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from planner.trainers.fsdp import FSDP
from planner.trainers.megatron import MEGATRON
from planner.trainers.mindspore import MINDSPORE
from planner.trainers.torchtitan import TORCHTITAN
from planner.trainers.trainer import Trainer
from planner.units import Json

PATH = Path(__file__).with_name("generations.json")
BASES = {t.name: t for t in (MEGATRON, TORCHTITAN, FSDP, MINDSPORE)}
PARTS = {
    "overlap": ("tp", "tp_gradients", "tp_again", "cp", "ep", "gradients", "weights", "sends"),
    "overhead": (
        "step",
        "operator",
        "slowest",
        "memory_passes",
        "score_passes",
        "softmax",
        "engine",
        "jitter",
        "accumulation",
        "waits_for",
        "exchange",
    ),
    "memory": (
        "gradient_bytes",
        "accumulates_whole",
        "master_bytes",
        "gathered_layers",
        "logit_bytes",
        "logit_whole_bytes",
        "standing_bytes",
        "workspace_bytes",
        "weighs_inside",
        "optimizer_bytes",
        "runtime_bytes",
        "fragmentation",
        "kept",
        "keeps_gathered",
    ),
}
"""Numbers of a generation, by the part of the trainer that holds them."""
FLAGS = (
    "kernel",
    "sends_once",
    "reduces_each",
    "reduced_bytes",
    "reduces_whole",
    "step_barrier",
    "regathers",
    "scatters_sends",
    "bucket_per_rank",
    "loss",
    "apart",
)


@lru_cache(maxsize=1)
def table() -> dict[str, dict[str, Json]]:
    """The data of all generations, by name; one that is ``like`` another holds only what differs from it."""
    own = _own()
    return {name: own.get(data.get("like", name), {}) | data for name, data in own.items()}


@lru_cache(maxsize=1)
def _own() -> dict[str, dict[str, Json]]:
    found: dict[str, dict[str, Json]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def holder(name: str, field: str) -> str:
    """The generation whose number a field of this one is: its own, or that of the one that it is like.

    >>> holder("megatron-core-overlap", "tp"), holder("megatron-core-overlap", "ep")
    ('megatron-core-overlap', 'megatron-core')
    """
    own = _own()[name]
    return name if field in own else str(own.get("like", name))


def generation(name: str) -> Trainer:
    """The trainer as a generation of its software runs it.

    >>> generation("megatron-2021").overlap.tp > generation("megatron-core-overlap").overlap.tp
    True
    """
    return varied(BASES[table()[name]["base"]], table()[name], name)


CURRENT = {"megatron": "megatron-core-overlap", "mindspore": "mindspore", "mindspeed": "mindspeed"}
"""Generation of the release that plans are made for, with the arguments that a plan's files turn on; trainers without
one have the numbers of their runs themselves."""


def current(trainer: Trainer) -> Trainer:
    """The trainer with the overlap and overhead that its newest measured runs show, so that a plan is priced as a run.

    What a plan's files choose beyond that (dispatcher, what is recomputed, the loss, bytes) stays the trainer's own.
    """
    if trainer.name not in CURRENT:
        return trainer
    measured = generation(CURRENT[trainer.name])
    return replace(trainer, overlap=measured.overlap, overhead=measured.overhead)


def varied(base: Trainer, values: dict[str, Json], name: str) -> Trainer:
    """A trainer with some numbers of its parts and some flags replaced."""
    parts = {
        part: replace(getattr(base, part), **{k: values[k] for k in keys if k in values})
        for part, keys in PARTS.items()
    }
    flags = {key: values[key] for key in FLAGS if key in values}
    recompute = base.recompute
    if "selective" in values:
        recompute = recompute | {"selective": frozenset(values["selective"])}
    return replace(base, name=name, recompute=recompute, **parts, **flags)
