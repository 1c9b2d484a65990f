"""Rules of the model's sizes: every dim that an axis splits divides by it."""

from __future__ import annotations

import math

import numpy as np

from planner.candidates import Candidates
from planner.errors import Fault
from planner.graph.operator import PER_SEQUENCE, Block, DimName, Operator
from planner.graph.placement import AxisName
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import can, closest, divisors, every, value
from planner.units import BoolArray, IntArray, show_bytes

EXPERT_AXES = frozenset({"ep", "etp", "edp"})
HEADS = frozenset({"heads", "kv_heads"})
TOKEN_DIMS = PER_SEQUENCE | {"seq"}
"""Dims with rules of their own: they grow with the recipe, not with the model."""
FP8_GRAIN = 16
"""fp8 products want both sides of a matrix in multiples of this."""


def split_dim(task: Task, axis: AxisName, op: Operator) -> DimName | None:
    """The dim along which a trainer's axis splits an operator: the first of its role that the operator has."""
    if op.view != ("expert" if axis in EXPERT_AXES else "dense"):
        return None
    role = task.trainer.role(axis, op.name, tied=bool(task.model.head.tied))
    return next((dim for dim in role if dim in op.dims and dim not in op.whole), None)


def splits(task: Task, axis: AxisName) -> dict[tuple[DimName, int], str]:
    """What an axis splits: every dim and size of it, with the first operator that has it; token dims left out."""
    found: dict[tuple[DimName, int], str] = {}
    for block in task.model.all_blocks():
        for op in block.operators:
            dim = split_dim(task, axis, op)
            if dim is not None and dim not in TOKEN_DIMS:
                found.setdefault((dim, int(block.sizes[dim])), op.name)
    return found


def _divides(degree: IntArray, sizes: list[int]) -> BoolArray:
    return math.gcd(*sizes) % degree == 0 if sizes else every(degree)


def _cannot(
    task: Task, code: str, axis: AxisName, degree: int, wrong: tuple[DimName, int]
) -> Fault:
    dim, size = wrong
    same = [other for name, other in splits(task, axis) if name == dim]
    where = f"({task.model.name}, {splits(task, axis)[wrong]})"
    fits = closest(divisors(math.gcd(*same)), degree)
    return Fault(
        code,
        f"{axis} {degree} cannot split {size} {WORDS.get(dim, dim)} {where}. {can(axis, fits)}",
    )


WORDS: dict[DimName, str] = {
    "heads": "heads",
    "kv_heads": "key/value heads",
    "ffn": "columns of the feed-forward layer",
    "shared_ffn": "columns of the shared expert",
    "expert_ffn": "columns of an expert",
    "vocab": "words of the vocabulary",
}
"""What a person calls a dim."""


def _head_sizes(task: Task, dim: DimName) -> list[int]:
    return [size for name, size in splits(task, "tp") if name == dim]


def _heads(task: Task, candidates: Candidates) -> BoolArray:
    return _divides(candidates.tp, _head_sizes(task, "heads"))


def _heads_fault(task: Task, candidates: Candidates) -> Fault:
    tp = value(candidates, "tp")
    wrong = next(size for size in _head_sizes(task, "heads") if size % tp)
    return _cannot(task, "D02", "tp", tp, ("heads", wrong))


QUERY_HEADS = Rule(
    name="heads",
    family="head count",
    sentence="tp divides the attention heads.",
    needs=frozenset({"tp"}),
    keeps=_heads,
    fault=_heads_fault,
    source="Megatron-LM 0.19.2 and torchtitan 0.3.0 refuse it; DeepSpeed #3634 (52 heads, tp 8)",
)


def _copies(task: Task) -> bool:
    return task.copy_kv and task.trainer.copies_kv


def _kv_heads(task: Task, candidates: Candidates) -> BoolArray:
    sizes = _head_sizes(task, "kv_heads")
    keeps = every(candidates.tp)
    for size in sizes:
        fits = size % candidates.tp == 0
        keeps &= fits | (candidates.tp % size == 0) if _copies(task) else fits
    return keeps


def _kv_heads_fault(task: Task, candidates: Candidates) -> Fault:
    tp, trainer = value(candidates, "tp"), task.trainer
    sizes = _head_sizes(task, "kv_heads")
    wrong = next(s for s in sizes if s % tp and not (_copies(task) and tp % s == 0))
    fault = _cannot(task, "D02", "tp", tp, ("kv_heads", wrong))
    if trainer.copies_kv and not task.copy_kv and tp % wrong == 0:
        more = show_bytes(_copied_bytes(task, tp) / value(candidates, "pp"))
        upto = "up to " if value(candidates, "pp") == 1 else ""
        copy = f"{trainer.name} can copy key/value heads: add --pin kv-heads=copy ({upto}+{more} a chip)."
        return Fault(fault.code, fault.what, (copy,))
    return fault


def _copied_bytes(task: Task, tp: int) -> float:
    """Bytes of weights and gradients that a chip holds more with whole key/value heads than with its share of them."""
    each = {"weight": task.recipe.weight_bytes + task.trainer.memory.gradient_bytes}
    more = 0.0
    for block in (task.model.blocks[kind] for kind in task.model.layers):
        heads = block.sizes.get("kv_heads", tp)
        for weight in block.weights():
            if "kv_heads" in weight.dims and heads < tp:
                held = block.elements(weight.dims) * (1.0 / heads - 1.0 / tp)
                more += held * each.get(weight.kind, task.recipe.weight_bytes)
    return more


KV_HEADS = Rule(
    name="kv-heads",
    family="head count",
    sentence="tp divides the key/value heads, or is a multiple of them where the trainer copies heads.",
    needs=frozenset({"tp"}),
    keeps=_kv_heads,
    fault=_kv_heads_fault,
    source="Megatron-LM 0.19.2 accepts tp 16 with 8 groups; torchtitan: 'must divide n_kv_heads'",
)


def _width_sizes(task: Task, axis: AxisName) -> dict[tuple[DimName, int], str]:
    skip = HEADS | task.trainer.uneven
    return {key: op for key, op in splits(task, axis).items() if key[0] not in skip}


def _widths(task: Task, candidates: Candidates) -> BoolArray:
    return _divides(candidates.tp, [size for _, size in _width_sizes(task, "tp")])


def _widths_fault(task: Task, candidates: Candidates) -> Fault:
    tp = value(candidates, "tp")
    wrong = next(key for key in _width_sizes(task, "tp") if key[1] % tp)
    return _cannot(task, "D03", "tp", tp, wrong)


WIDTHS = Rule(
    name="widths",
    family="widths",
    sentence="tp divides every other dim that it splits: feed-forward, shared expert, vocabulary.",
    needs=frozenset({"tp"}),
    keeps=_widths,
    fault=_widths_fault,
    source="vLLM #31474 (heads divide, vocabulary does not); MindSpore 2.10: dimension not divisible by the "
    "split; Megatron pads the vocabulary and DTensor splits it unevenly, so they are spared",
)


def _expert_widths(task: Task, candidates: Candidates) -> BoolArray:
    return _divides(candidates.etp, [size for _, size in splits(task, "etp")])


def _expert_widths_fault(task: Task, candidates: Candidates) -> Fault:
    etp = value(candidates, "etp")
    wrong = next(key for key in splits(task, "etp") if key[1] % etp)
    return _cannot(task, "D03", "etp", etp, wrong)


EXPERT_WIDTHS = Rule(
    name="expert-widths",
    family="widths",
    sentence="etp divides the width of an expert.",
    needs=frozenset({"etp"}),
    keeps=_expert_widths,
    fault=_expert_widths_fault,
    source="Megatron-LM: a column-parallel weight divides evenly",
)


def _side(block: Block, op: Operator, weight: str, dim: DimName) -> int:
    """Length of the side of a weight matrix that a dim lies on: ``heads · head_dim`` for ``heads``."""
    read = block.tensors[op.reads[0].tensor].dims
    dims = block.tensors[weight].dims
    return int(math.prod(block.sizes[d] for d in dims if (d in read) == (dim in read)))


def _fp8_sides(task: Task) -> dict[int, str]:
    """Sides of the weight matrices that tp splits, each with its operator; the output head runs in bf16."""
    found: dict[int, str] = {}
    for block in (*task.model.blocks, *task.model.mtp):
        for op in block.operators:
            dim = split_dim(task, "tp", op)
            if op.kind != "matmul" or dim is None or dim in TOKEN_DIMS or dim == "vocab":
                continue
            for weight in op.weights[:1]:
                found.setdefault(_side(block, op, weight, dim), op.name)
    return found


def _fp8_widths(task: Task, candidates: Candidates) -> BoolArray:
    tp = candidates.tp
    keeps = every(tp)
    if task.recipe.precision == "fp8":
        for side in _fp8_sides(task):
            keeps &= side % (tp * FP8_GRAIN) == 0
    return keeps


def _fp8_widths_fault(task: Task, candidates: Candidates) -> Fault:
    tp = value(candidates, "tp")
    sides = _fp8_sides(task)
    side, op = next((s, o) for s, o in sides.items() if s % (tp * FP8_GRAIN))
    common = math.gcd(*sides)
    what = f"tp {tp} leaves {side / tp:g} columns of {side} ({task.model.name}, {op}); fp8 needs multiples of 16."
    if common % FP8_GRAIN:
        return Fault("D03", what, ("No tp can; use bf16.",))
    return Fault("D03", what, (can("tp", closest(divisors(common // FP8_GRAIN), tp)),))


FP8_WIDTHS = Rule(
    name="fp8-widths",
    family="widths",
    sentence="In fp8, what tp leaves of every weight matrix is a multiple of 16 on both sides.",
    needs=frozenset({"tp"}),
    keeps=_fp8_widths,
    fault=_fp8_widths_fault,
    source="NeMo #8869: fp8 products assert width % 16",
)


def _tied(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = np.logical_or(candidates.pp == 1, not task.model.head.tied)
    return keeps


def _tied_fault(task: Task, candidates: Candidates) -> Fault:
    pp, model = value(candidates, "pp"), task.model.name
    what = f"{task.trainer.name} cannot run pp {pp} with {model}: embedding and output head are one weight."
    return Fault("T01", what, ("It can with pp 1.",))


TIED = Rule(
    name="tied-embedding",
    family="trainer rules",
    sentence="A model whose embedding is also its output head stays on one stage.",
    needs=frozenset({"pp"}),
    keeps=_tied,
    fault=_tied_fault,
    source="torchtitan: 'Weight tying is not supported with Pipeline Parallel'",
)

RULES = (QUERY_HEADS, KV_HEADS, WIDTHS, FP8_WIDTHS, TIED, EXPERT_WIDTHS)
