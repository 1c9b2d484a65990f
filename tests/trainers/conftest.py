"""A task from a few facts: small models and clusters, written as the fixture files write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.candidates import (
    OFFLOAD,
    RECOMPUTE,
    SCHEDULES,
    SHARDING,
    Candidates,
    concatenate,
    single,
)
from planner.graph.architecture import Architecture, Attention, Experts, LatentAttention, Layer, Mlp
from planner.graph.blocks import build_model
from planner.graph.model import Model
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.recipe import Recipe
from planner.trainers.registry import get_trainer
from planner.trainers.trainer import Task

NAMED = {
    "schedule": SCHEDULES,
    "sharding": SHARDING,
    "recompute": RECOMPUTE,
    "offload": OFFLOAD,
}


def _attention(facts: dict[str, Any]) -> Attention | LatentAttention:
    heads = facts.get("heads", 16)
    if facts.get("latent"):
        return LatentAttention(
            heads=heads, q_latent=96, kv_latent=64, nope_dim=32, rope_dim=16, value_dim=32
        )
    kv_heads = facts.get("kv_heads", heads)
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=facts.get("head_dim", 64))


def build(facts: dict[str, Any], seq: int, *, fused: bool = True) -> Model:
    mlp: Mlp | Experts = Mlp(width=facts.get("ffn", 4096))
    if "experts" in facts:
        mlp = Experts(
            count=facts["experts"],
            top_k=2,
            width=facts.get("expert_ffn", 1024),
            shared_width=facts.get("shared_ffn", 0),
        )
    layer = Layer(name="layer", attention=_attention(facts), mlp=mlp)
    kinds, layers = (layer,), (0,) * facts.get("layers", 4)
    if facts.get("encoder"):
        kinds, layers = (
            (replace(layer, name="encoder", encodes=True), replace(layer, cross=True)),
            (0, 0, 1, 1),
        )
    arch = Architecture(
        name=facts.get("name", "tiny"),
        hidden=facts.get("hidden", 1024),
        vocab=facts.get("vocab", 32000),
        max_seq=seq,
        kinds=kinds,
        layers=layers,
        tied=facts.get("tied", False),
    )
    return build_model(arch, seq, fused=fused)


def cluster_of(chips: int) -> Cluster:
    chip = Chip(
        name="chip",
        memory_bytes=80e9,
        memory_bandwidth=2e12,
        peak={"bf16": 1e15},
        matmul_efficiency={"bf16": 0.7},
        matmul_latency=1e-6,
        matmul_sharpness=2.0,
        attention_efficiency=0.5,
        memory_efficiency=0.8,
        launch=5e-6,
    )
    level = Level(
        name="network", size=None, bandwidth=5e10, efficiency=0.8, latency=1e-5, ramp_bytes=1e6
    )
    return Cluster(
        name="cluster",
        chip=chip,
        num_chips=chips,
        levels=(level,),
        chips_per_host=8,
        host_bandwidth=5e10,
    )


def make_task(case: dict[str, Any]) -> Task:
    recipe = Recipe(**({"global_batch": 64, "seq": 4096} | case.get("recipe", {})))
    return Task(
        model=build(case.get("model", {}), recipe.seq, fused=recipe.fused_attention),
        cluster=cluster_of(case.get("chips", 8)),
        recipe=recipe,
        trainer=get_trainer(case.get("trainer", "megatron")),
        memory_limit=80e9,
        copy_kv=case.get("copy_kv", False),
        chips=tuple(case.get("may_use", ())),
    )


def make_rows(layout: dict[str, Any]) -> Candidates:
    """A table from columns; single values stand in every row, names of schedules and the like become indices."""
    columns = {
        name: [
            NAMED[name].index(v) if name in NAMED and isinstance(v, str) else int(v) for v in values
        ]
        for name, given in layout.items()
        for values in [given if isinstance(given, list) else [given]]
    }
    count = max((len(values) for values in columns.values()), default=1)
    rows = [{n: v[i] if len(v) > 1 else v[0] for n, v in columns.items()} for i in range(count)]
    return concatenate([single(**row) for row in rows])


@pytest.fixture
def task_of() -> Callable[[dict[str, Any]], Task]:
    return make_task


@pytest.fixture
def rows_of() -> Callable[[dict[str, Any]], Candidates]:
    return make_rows
