"""The per-operator part of a plan: strategies, layouts and collectives of every distinct block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from planner.candidates import RECOMPUTE, Recompute
from planner.cost.block import (
    block_structure,
    exposed_share,
    move_bytes,
    move_seconds,
)
from planner.cost.operator_cost import OperatorCost, operator_cost
from planner.cost.prices import Prices, block_seconds, without_cut
from planner.cost.saved import (
    recomputed,
    repeated,
    saved_tensor_bytes,
    saved_tensors,
    scattered_bytes,
)
from planner.cost.setting import Setting, setting
from planner.cost.states import shard_ranks
from planner.cost.strategies import Move, Structure, required, written
from planner.graph.operator import Block, Operator
from planner.graph.placement import Layout, Split
from planner.plan.schema import BlockPlan, Collective, OperatorPlan
from planner.recipe import QUANTISED
from planner.search.breakdown import runs
from planner.units import Array


def block_plans(p: Prices) -> tuple[BlockPlan, ...]:
    """Every distinct block of a plan; ``p`` holds one row."""
    model = p.task.model
    s = setting(p.task, p.rows)
    layers = [
        (block, runs([i for i, kind in enumerate(model.layers) if kind == index]))
        for index, block in enumerate(model.blocks)
    ]
    named = [(model.embedding, "embedding"), *layers]
    named += [(block, "mtp") for block in model.mtp[:1]]
    named.append((model.head, "head"))
    counts = [1, *(model.layers.count(i) for i in range(len(model.blocks)))]
    counts += [len(model.mtp)] * bool(model.mtp) + [1]
    shown = _mode(p)
    p = without_cut(p)
    forward, backward = block_seconds(p)
    return tuple(
        BlockPlan(
            name=block.name,
            layers=where,
            count=count,
            forward=float(forward[0, column]),
            backward=float(backward[0, column]),
            sizes=dict(block.sizes),
            tensors={name: tensor.dims for name, tensor in block.tensors.items()},
            arrives=_shown(block_structure(s, block, sp=bool(s.rows.sp[0])).arriving),
            operators=tuple(_operators(s, block, shown)),
            gradient_collectives=(*_state_collectives(p, column), *_between_ends(p, block, column)),
        )
        for column, ((block, where), count) in enumerate(zip(named, counts, strict=True))
    )


def _mode(p: Prices) -> Recompute:
    """What layers recompute; where they differ, what those do that recompute in part."""
    if p.cut is None or not p.cut.mixed:
        return RECOMPUTE[int(p.rows.recompute[0] if p.cut is None else p.cut.modes[0])]
    return "selective" if p.cut.selective.any() else "none"


def _operators(s: Setting, block: Block, mode: Recompute) -> Iterator[OperatorPlan]:
    form = block_structure(s, block, sp=bool(s.rows.sp[0]))
    tags = recomputed(s, block, mode)
    saved = _saved_by(s, form, tags)
    own = {name for name, _ in s.task.operators[int(s.rows.operators[0])].get(block.name, ())}
    again = repeated(block, tags)
    for op, split in zip(block.operators, form.splits, strict=True):
        cost = operator_cost(s, block, op, split)
        tensors = block.tensors
        inputs = {u.tensor: required(u, tensors[u.tensor], op, split) for u in op.reads}
        outputs = {name: written(tensors[name], op, split) for name in op.writes}
        weights = {w.tensor.name: w.layout for w in form.weights if w.tensor.name in op.weights}
        yield OperatorPlan(
            name=op.name,
            kind=op.kind,
            split=dict(split),
            by_role=op.name not in own,
            inputs=_shown(inputs),
            weights=_shown(weights),
            outputs=_shown(outputs),
            operands=(*inputs, *op.weights, *op.writes),
            shape={d: _one(s.local(d, block.sizes[d], _cut(split, d))) for d in op.dims},
            flops=_one(cost.flops),
            forward=_one(cost.forward),
            backward=_one(cost.backward),
            roofline=_roofline(s, op, cost),
            saved=saved.get(op.name, 0.0),
            recomputed=again[op.name] > 0,
            collectives=tuple(_collective(s, form, m) for m in form.moves if _waits(m, op, block)),
        )


def _waits(move: Move, op: Operator, block: Block) -> bool:
    """Whether a move is shown at an operator: at the one that waits, at the writer for a block's output."""
    if move.operator == "output":
        return move.tensor in op.writes
    return move.operator == op.name


def _cut(split: Split, dim: str) -> tuple[str, ...]:
    return tuple(axis for axis, name in split.items() if name == dim)


def _shown(layouts: Mapping[str, Layout]) -> dict[str, dict[str, str]]:
    return {
        name: {axis: str(place) for axis, place in layout.items()}
        for name, layout in layouts.items()
    }


def _roofline(s: Setting, op: Operator, cost: OperatorCost) -> float:
    """Seconds forwards at the data sheet's numbers: FLOPs at peak, or bytes at full bandwidth, whichever is more."""
    chip, precision = s.task.cluster.chip, s.task.recipe.precision
    narrow = (
        "bf16" if precision in QUANTISED and not (op.kind == "matmul" and op.weights) else precision
    )
    compute = _one(cost.flops) / chip.peak_for(narrow)
    return max(compute, _one(cost.size) / chip.memory_bandwidth)


def _saved_by(s: Setting, form: Structure, tags: frozenset[str]) -> dict[str, float]:
    """Bytes kept for the backward pass, at the first operator that asks for them."""
    kept = {
        name: share * _one(saved_tensor_bytes(s, form, name))
        for name, share in saved_tensors(s, form, tags).items()
    }
    for name, size in scattered_bytes(s, form, tags).items():
        kept[name] = kept.get(name, 0.0) + _one(size)
    found: dict[str, float] = {}
    for op in form.block.operators:
        for name in (*op.saves, *(use.tensor for use in op.reads)):
            if name in kept:
                found[op.name] = found.get(op.name, 0.0) + kept.pop(name)
    return found


def _collective(s: Setting, form: Structure, move: Move) -> Collective:
    seconds = _one(move_seconds(s, form, move))
    return Collective(
        kind=move.kind,
        tensor=move.tensor,
        axis=move.axis,
        phase=move.phase,
        bytes=_one(move_bytes(s, form.block, move, form)),
        seconds=seconds,
        exposed=seconds * exposed_share(s, move),
    )


def _state_collectives(p: Prices, column: int) -> Iterator[Collective]:
    """Gradient reduction and weight gathering of one layer, for dense and expert weights.

    Exposed seconds are those of the whole step's model (:mod:`planner.cost.step`), not divided among layers here.
    """
    key = int(p.key[0])
    level = int(p.rows.sharding[0])
    recipe, gradient = p.task.recipe, _gradient_bytes(p)
    ranks = (int(p.rows.dp[0] * p.rows.cp[0]), int(p.rows.edp[0]))
    sizes = (p.dense[0, column], p.table.expert[key, column])
    for kind, (count, size) in enumerate(zip(ranks, sizes, strict=True)):
        if count == 1 or size == 0:
            continue
        axis = ("dp·cp" if int(p.rows.cp[0]) > 1 else "dp", "edp")[kind]
        states = (p.states.once, p.states.each_forward, p.states.each_backward)
        total = sum(_one(p.each(values)[kind]) for values in states) * float(size)
        grads, weights = gradient * float(size), recipe.weight_bytes * float(size)
        name = ("weights", "expert weights")[kind]
        common = {"tensor": name, "axis": axis, "exposed": 0.0}
        gathers = [("all-gather", "weight", weights)] * (2 if level == 3 else 1)
        parts = [("reduce-scatter", "gradient", grads), *gathers]
        group = int(shard_ranks(p.rows)[kind, 0])
        if group < count:
            parts.insert(1, ("all-reduce", "gradient", grads / group))
        if level == 0:
            parts = [("all-reduce", "gradient", grads)]
        whole = sum(part[2] for part in parts)
        for what, phase, moved in parts:
            seconds = total * moved / whole
            own = {"kind": what, "phase": phase, "bytes": moved, "seconds": seconds}
            yield Collective.model_validate(common | own)


def _between_ends(p: Prices, block: Block, column: int) -> Iterator[Collective]:
    """The sum of a table's gradients over the stages that have it, told of the last block that does."""
    shared = np.flatnonzero(p.table.tied[0, p.key[0]])
    if not len(shared) or column != shared[-1] or int(p.rows.pp[0]) == 1 or bool(p.rows.folded[0]):
        return
    size = float(p.table.tied[0, p.key[0], column]) * _gradient_bytes(p)
    yield Collective(
        kind="all-reduce",
        tensor=min(block.tied),
        axis="pp",
        phase="gradient",
        bytes=size,
        seconds=float(p.sends.ends[0]),
        exposed=float(p.sends.ends[0]),
    )


def _gradient_bytes(p: Prices) -> float:
    return p.task.trainer.memory.gradient_bytes if p.task.recipe.precision != "fp32" else 4.0


def _one(value: Array) -> float:
    return float(np.asarray(value).ravel()[0])
