"""What the free-axis solver invents for a model, as a program that runs, with the collectives that it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from planner.cost.resharding import free_mesh
from planner.cost.strategies import required, written
from planner.graph.model import Model
from planner.graph.operator import Block
from planner.runtime.predicted import Issued
from planner.runtime.program import Op, Part, Program
from planner.search.operators import Choice, Wish, solve_block
from planner.trainers.trainer import Task

Placed = dict[str, str]


@dataclass(frozen=True)
class Invented:
    program: Program
    issued: Issued
    """What its choices send in a step."""
    layer: Choice


def invented(
    model: Model, task: Task, axes: dict[str, int], sequences: int, pins: dict[str, dict[str, str]]
) -> Invented:
    """The cheapest plan of every block, one after the other."""
    mesh = free_mesh(task.cluster, axes)
    layer = solve_block(model.blocks[0], mesh, task, Wish(sequences=sequences, pins=pins))
    stream = layer.layouts["x"]
    ends = [
        solve_block(b, mesh, task, Wish(sequences=sequences, repeated=False, lies={"x": stream}))
        for b in (model.embedding, model.head)
    ]
    choices = [ends[0], *[layer] * len(model.layers), ends[1]]
    blocks = [model.embedding, *[model.blocks[0]] * len(model.layers), model.head]
    parts = [_part(b, c, sequences) for b, c in zip(blocks, choices, strict=True)]
    issued: Issued = {}
    for choice in choices:
        for move in choice.collectives:
            key = (move.phase, move.step.kind, "+".join(move.step.axes))
            count, size = issued.get(key, (0, 0.0))
            # the largest logit is sent by itself
            count += 2 if move.tensor == "loss" else 1
            issued[key] = (count, size + move.step.size)
    found = Program(
        axes=axes,
        shard=1,
        level=0,
        visits=(len(model.layers),),
        schedule="1f1b",
        micro_batch=sequences,
        micro_batches=1,
        embedding=parts[0],
        layers=tuple(parts[1:-1]),
        head=parts[-1],
        again=False,
    )
    assert found.ranks == prod(axes.values())
    return Invented(found, issued, layer)


def _part(block: Block, choice: Choice, sequences: int) -> Part:
    sizes = {dim: int(n) for dim, n in block.sizes.items()} | {"batch": sequences}
    ops = []
    for op in block.operators:
        split, tensors = choice.splits[op.name], block.tensors
        reads = {u.tensor: required(u, tensors[u.tensor], op, split) for u in op.reads}
        writes = {name: written(tensors[name], op, split) for name in op.writes}
        weights = {
            name: {a: f"shard({d})" if d in tensors[name].dims else "replicate" for a, d in split.items()}
            for name in op.weights
        }  # fmt: skip
        ops.append(
            Op(
                name=op.name,
                kind=op.kind,
                reads={name: _words(layout) for name, layout in reads.items()},
                writes={name: _words(layout) for name, layout in writes.items()},
                weights=weights,
                recomputed=False,
                moves=(),
            )
        )
    first = block.inputs[0]
    arrives = choice.layouts.get(first) or {}
    return Part(
        name=block.name,
        sizes=sizes,
        tensors={name: tensor.dims for name, tensor in block.tensors.items()},
        arrives={first: ops[0].reads[first] if block.tensors[first].kind == "index" else _words(arrives)},
        ops=tuple(ops),
        states=(),
    )  # fmt: skip


def _words(layout) -> Placed:
    return {axis: str(place) for axis, place in layout.items()}
