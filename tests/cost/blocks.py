"""Blocks of a single layer and the setting in which they are priced."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.candidates import Candidates, single
from planner.cost.block import block_structure, move_bytes
from planner.cost.saved import saved_bytes
from planner.cost.setting import Setting, setting
from planner.cost.strategies import Move, Structure
from planner.graph.architecture import Architecture, Attention, Experts, LatentAttention, Layer, Mlp
from planner.graph.blocks import build_model
from planner.graph.model import Model
from planner.graph.operator import Block
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.recipe import Recipe
from planner.trainers.registry import get_trainer
from planner.trainers.trainer import Task

PRECISIONS = ("bf16", "fp16", "fp8", "fp32")


def chip_of(**facts) -> Chip:
    plain = {
        "name": "chip",
        "memory_bytes": 80e9,
        "memory_bandwidth": 2e12,
        "peak": dict.fromkeys(PRECISIONS, 1e15),
        "matmul_efficiency": dict.fromkeys(PRECISIONS, 0.7),
        "matmul_latency": 1e-6,
        "matmul_sharpness": 2.0,
        "attention_efficiency": 0.5,
        "memory_efficiency": 0.8,
        "launch": 5e-6,
    }
    return Chip(**(plain | facts))


def level_of(size: int | None = None, **facts) -> Level:
    plain = {
        "name": "network",
        "bandwidth": 5e10,
        "efficiency": 0.8,
        "latency": 1e-5,
        "ramp_bytes": 1e6,
    }
    return Level(size=size, **(plain | facts))


def cluster_of(chips: int, *levels: Level, **facts) -> Cluster:
    plain = {"name": "cluster", "chip": chip_of(), "chips_per_host": 1, "host_bandwidth": 5e10}
    return Cluster(num_chips=chips, levels=levels or (level_of(),), **(plain | facts))


def model_of(
    attention: Attention | LatentAttention,
    mlp: Mlp | Experts,
    seq: int,
    *,
    hidden: int = 64,
    fused: bool = True,
    layers: int = 1,
    **facts,
) -> Model:
    arch = Architecture(
        name="x",
        hidden=hidden,
        vocab=facts.pop("vocab", 1024),
        max_seq=seq,
        kinds=(Layer(name="layer", attention=attention, mlp=mlp),),
        layers=(0,) * layers,
        **facts,
    )
    return build_model(arch, seq, fused=fused)


def gpt(s: int, h: int, a: int) -> Model:
    """The classic block: biases, layer norms, dropout, attention that keeps its scores."""
    attention = Attention(
        heads=a, kv_heads=a, head_dim=h // a, qkv_bias=True, out_bias=True, rotary=False
    )
    mlp = Mlp(width=4 * h, gated=False, bias=True)
    return model_of(attention, mlp, s, hidden=h, fused=False, norm="layer", dropout=True)


@dataclass(frozen=True, slots=True)
class Priced:
    """A block under some degrees."""

    setting: Setting
    block: Block
    form: Structure

    def saved(self, *tags: str) -> float:
        """Bytes kept for the backward pass when operators with these tags are recomputed."""
        return float(saved_bytes(self.setting, self.form, frozenset(tags))[0])

    def moves(self, *, again: bool = False) -> dict[tuple[str, str, str, str], float]:
        """Bytes of the collectives that really happen: (phase, kind, tensor, axis) to bytes."""
        found: dict[tuple[str, str, str, str], float] = {}
        for move in self.form.moves:
            if self.setting.degrees[move.axis][0] > 1 and move.again == again:
                key = (move.phase, move.kind, move.tensor, move.axis)
                assert key not in found
                found[key] = self.bytes(move)
        return found

    def bytes(self, move: Move) -> float:
        return float(move_bytes(self.setting, self.block, move, self.form).ravel()[0])


def priced(model: Model, block: Block, trainer: str = "megatron", **row: int) -> Priced:
    s = setting_of(model, trainer, single(**row))
    return Priced(s, block, block_structure(s, block, sp=bool(row.get("sp", 0))))


def task_of(model: Model, trainer: str = "megatron", chips: int = 8, **recipe) -> Task:
    return Task(
        model=model,
        cluster=cluster_of(chips),
        recipe=Recipe(**({"global_batch": 64, "seq": model.seq} | recipe)),
        trainer=get_trainer(trainer),
        memory_limit=80e9,
    )


def setting_of(model: Model, trainer: str, rows: Candidates) -> Setting:
    task = task_of(model, trainer)
    return setting(replace(task, cluster=cluster_of(int(rows.ranks.max()))), rows)
