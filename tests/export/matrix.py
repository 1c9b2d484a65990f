"""Five kinds of plans for every format: what is written is held by the trainer's own code, or refused by name."""

from __future__ import annotations

from functools import lru_cache

from planner.api import Question, price
from planner.errors import Fault, PlannerError
from planner.export.targets import export
from planner.plan.schema import Plan

KINDS = ("dense", "grouped-query", "experts", "uneven stages", "context parallel")
Row = tuple[str, str, str, int, int, str]
"""Trainer, model, cluster, global batch, sequence, layout."""
_UNEVEN = ("torchtitan", "llama-3-8b", "h100-sxm:24", 48, 4096, "pp=6,zero=2")
"""For formats without stages, so that these are all that they refuse."""
_MEGATRON: tuple[Row, ...] = (
    ("megatron", "llama-2-7b", "h100-sxm:32", 64, 4096, "tp=4,pp=2,vpp=2,zero=1"),
    ("megatron", "llama-3-8b", "h100-sxm:32", 64, 4096, "tp=2,pp=4,zero=1,recompute=full"),
    ("megatron", "mixtral-8x7b", "h100-sxm:32", 64, 4096, "tp=2,pp=2,ep=8,zero=1"),
    ("megatron", "llama-3-8b", "h100-sxm:48", 64, 4096, "tp=2,pp=6,zero=1"),
    ("megatron", "llama-3-8b", "h100-sxm:32", 64, 8192, "tp=2,pp=2,cp=2,zero=1"),
)
_TITAN: tuple[Row, ...] = (
    ("torchtitan", "llama-3-8b", "h100-sxm:32", 64, 8192, "tp=4,zero=3,recompute=full"),
    ("torchtitan", "qwen3-14b", "h100-sxm:32", 64, 4096, "tp=2,pp=4,vpp=2,zero=2"),
    ("torchtitan", "qwen3-30b-a3b", "h100-sxm:32", 64, 4096, "ep=8,zero=3,recompute=full"),
    ("torchtitan", "llama-3-8b", "h100-sxm:24", 48, 8192, "tp=2,pp=6,zero=2"),
    ("torchtitan", "llama-3-8b", "h100-sxm:32", 64, 8192, "cp=4,zero=3"),
)
_FSDP: tuple[Row, ...] = (
    ("fsdp", "llama-2-7b", "h100-sxm:16", 64, 4096, "zero=2"),
    ("fsdp", "llama-3-8b", "h100-sxm:16", 64, 4096, "zero=3,shard-group=8"),
    ("fsdp", "qwen3-30b-a3b", "h100-sxm:64", 64, 4096, "zero=3,recompute=full"),
    _UNEVEN,
    ("fsdp", "llama-3-8b", "h100-sxm:16", 32, 8192, "cp=2,zero=3"),
)
_MINDSPORE: tuple[Row, ...] = (
    ("mindspore", "llama-2-7b", "a910b:32", 64, 4096, "tp=4,pp=2,vpp=2,zero=1"),
    ("mindspore", "llama-3-8b", "a910b:32", 64, 4096, "tp=2,pp=4,zero=1,recompute=full"),
    ("mindspore", "mixtral-8x7b", "a910b:32", 64, 4096, "tp=2,etp=2,pp=2,ep=8,zero=1"),
    ("mindspore", "llama-3-8b", "a910b:48", 64, 4096, "tp=2,pp=6,zero=1"),
    ("mindspore", "llama-3-8b", "a910b:32", 64, 8192, "tp=2,pp=2,cp=2,zero=1"),
)
_GALVATRON: tuple[Row, ...] = (
    ("torchtitan", "llama-2-7b", "h100-sxm:16", 64, 4096, "tp=2,zero=3,recompute=full"),
    ("torchtitan", "llama-3-8b", "h100-sxm:32", 64, 4096, "tp=2,pp=4,zero=2"),
    *_TITAN[2:],
)
PLANS: dict[str, tuple[Row, ...]] = {
    "megatron": _MEGATRON,
    "megatron-bridge": (
        *_MEGATRON[:2],
        ("megatron", "qwen3-30b-a3b", "h100-sxm:32", 64, 4096, "tp=2,pp=2,ep=8,zero=1"),
        *_MEGATRON[3:],
    ),
    "torchtitan": _TITAN,
    "torchtitan-0.2": _TITAN,
    "deepspeed": (
        ("deepspeed", "llama-2-7b", "h100-sxm:16", 64, 4096, "tp=2,zero=2,recompute=full"),
        ("deepspeed", "llama-3-8b", "h100-sxm:16", 64, 4096, "zero=3,recompute=full"),
        ("deepspeed", "mixtral-8x7b", "h100-sxm:64", 64, 4096, "zero=3,recompute=full"),
        _UNEVEN,
        ("deepspeed", "llama-3-8b", "h100-sxm:16", 32, 8192, "cp=4,zero=3,recompute=full"),
    ),
    "accelerate": _FSDP,
    "transformers": (
        ("megatron", "llama-2-7b", "h100-sxm:2", 64, 4096, "tp=2,zero=0,sp=off"),
        ("megatron", "llama-3-8b", "h100-sxm:4", 64, 4096, "tp=4,zero=0,sp=off"),
        *_FSDP[2:],
    ),
    "mindspore": _MINDSPORE,
    "mindformers": _MINDSPORE,
    "galvatron": _GALVATRON,
    "galvatron-head": _GALVATRON,
    "maxtext": (
        ("torchtitan", "llama-2-7b", "h100-sxm:16", 64, 4096, "tp=2,zero=3,recompute=full"),
        ("torchtitan", "llama-3-8b", "h100-sxm:32", 64, 4096, "pp=4,schedule=gpipe,zero=3"),
        _TITAN[2],
        ("torchtitan", "llama-3-8b", "h100-sxm:24", 48, 4096, "pp=6,schedule=gpipe,zero=3"),
        _TITAN[4],
    ),
    "dtensor": _MEGATRON,
}
"""By format a plan of every kind, where the format has them for its own trainer."""
_ALL = ("degrees", "batches", "stages", "ranks", "parameters")
FACTS: dict[str, tuple[str, ...]] = {
    "megatron": _ALL,
    "megatron-bridge": _ALL,
    "torchtitan": _ALL,
    "torchtitan-0.2": _ALL,
    "deepspeed": ("degrees", "batches", "ranks", "states", "shards", "parameters"),
    "accelerate": ("degrees", "ranks", "shards", "parameters"),
    "transformers": ("degrees", "operators", "rules", "ranks", "parameters"),
    "mindspore": ("degrees", "stages", "ranks", "parameters"),
    "mindformers": _ALL,
    "galvatron": ("degrees", "batches", "stages", "ranks", "states"),
    "galvatron-head": (),
    "maxtext": _ALL,
    "dtensor": ("loss and gradients", "collectives"),
}
"""By format what its trainer's own code derives from the files, and is held against the plan."""
LEFT: dict[str, str] = {
    "deepspeed": "stages: it has none that a file names",
    "accelerate": "batches: they are arguments of the script that it launches",
    "transformers": "batches: they are arguments of the script; parameters leave out the rows that Megatron, whose "
    "plan it is, fills the vocabulary up with",
    "mindspore": "batches: they are the script's own; ranks are which part of every weight each rank of a stage has: "
    "groups are made by its compiler, which compiles layers in `tests/acceptance/test_mindspore.py`",
    "mindformers": "ranks are groups of the compiler, of its own model with a layer a chunk, for devices that are not "
    "there; parameters hold a difference: with context parallelism the embedding's table is cut over its ranks too",
    "galvatron": "parameters: its layers import flash attention, which needs CUDA to be built",
    "maxtext": "parameters hold two differences: norms are whole on all data ranks, and with stages every one has the "
    "embedding and the head",
}
"""By format what its own code does not derive on a CPU, with the reason, and what is counted otherwise there."""
CELLS = [f"{to}/{kind}" for to in PLANS for kind in KINDS]


@lru_cache
def cell(name: str) -> Plan:
    """The plan of a cell such as ``megatron/dense``, priced once."""
    to, _, kind = name.partition("/")
    trainer, model, cluster, batch, seq, layout = PLANS[to][KINDS.index(kind)]
    question = Question(
        model=model, cluster=cluster, trainer=trainer, global_batch=batch, seq_len=seq
    )
    return price(question, dict(pair.split("=") for pair in layout.split(",")), usual=True)


@lru_cache
def refusal(name: str) -> tuple[Fault, ...]:
    """Why a format does not hold the plan of a cell; nothing where it does."""
    try:
        export(cell(name), name.partition("/")[0])
    except PlannerError as error:
        return error.faults
    return ()


def held(to: str) -> list[str]:
    """Cells of a format that it holds."""
    return [name for name in CELLS if name.startswith(f"{to}/") and not refusal(name)]


def facts(name: str) -> tuple[str, ...]:
    """What is proven of a cell."""
    return FACTS.get(name, FACTS[name.partition("/")[0]])
