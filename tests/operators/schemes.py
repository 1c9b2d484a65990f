"""Small problems whose optimum is a published scheme, and what the solver says about them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from planner.cost.resharding import free_mesh
from planner.graph.architecture import Attention, Mlp
from planner.graph.model import Model
from planner.graph.operator import Block, Operator, Tensor, Use
from planner.search.operators import Choice, Wish, solve_block
from planner.trainers.trainer import Task
from tests.cost.blocks import chip_of, cluster_of, level_of, task_of

QUICK = {
    "launch": 0.0,
    "matmul_latency": 0.0,
    "memory_bandwidth": 1e15,
}
"""A chip whose time is products and nothing else."""


def task(model: Model, chips: int, *, node: int = 0, latency: float = 1e-10, **facts) -> Task:
    """A task on a network with next to no latency, so that volumes decide, then their number.

    Flat, or with nodes of so many chips that are ten times as fast inside.
    """
    plain = {"efficiency": 1.0, "latency": latency, "ramp_bytes": 0.0}
    levels = [level_of(bandwidth=1e11, **plain)]
    if node:
        levels.insert(0, level_of(node, name="node", bandwidth=1e12, **plain))
    cluster = cluster_of(chips, *levels, chip=chip_of(**(QUICK | facts)))
    return replace(task_of(model, chips=chips), cluster=cluster)


def solved(
    model: Model, block: Block, axes: dict[str, int], *, sequences: int, facts=None, **wish
) -> Choice:
    chips = 1
    for size in axes.values():
        chips *= size
    given = task(model, chips, **(facts or {}))
    mesh = free_mesh(given.cluster, axes)
    return solve_block(block, mesh, given, Wish(sequences=sequences, **wish))


def moved(choice: Choice, *tensors: str) -> dict[tuple[str, str, str], float]:
    """Bytes by phase, kind and tensor; of these tensors, or of all that are no weights."""
    found: dict[tuple[str, str, str], float] = {}
    for move in choice.collectives:
        if move.tensor in tensors or (not tensors and move.tensor not in choice.states):
            key = (move.phase, move.step.kind, move.tensor)
            found[key] = found.get(key, 0.0) + move.step.size
    return found


def weights_moved(choice: Choice) -> dict[tuple[str, str], float]:
    """Bytes of weights and their gradients by phase and kind."""
    found: dict[tuple[str, str], float] = {}
    for move in choice.collectives:
        if move.tensor in choice.states:
            key = (move.phase, move.step.kind)
            found[key] = found.get(key, 0.0) + move.step.size
    return found


def dims_of(choice: Choice, *operators: str) -> set[tuple[str, str]]:
    """What axes split in these operators, or in all."""
    return {
        pair
        for name, split in choice.splits.items()
        if not operators or name in operators
        for pair in split.items()
    }


def chain(*layers: tuple[str, str], sizes: dict[str, float]) -> Block:
    """Products one after the other by hand: every layer turns its first dim into its second.

    Tokens are ``batch``.
    """
    tensors = {"t0": Tensor("t0", ("batch", layers[0][0]))}
    operators = []
    for number, (over, into) in enumerate(layers, 1):
        name, weight = f"t{number}", f"w{number}"
        tensors[name] = Tensor(name, ("batch", into))
        tensors[weight] = Tensor(weight, (over, into), "weight")
        operators.append(
            Operator(
                name=f"op{number}",
                kind="matmul",
                dims=("batch", over, into),
                reads=(Use(f"t{number - 1}", ("batch", over)),),
                writes=(name,),
                weights=(weight,),
                flops=2.0,
                saves=(f"t{number - 1}",),
            )
        )
    return Block("chain", {"batch": 1, **sizes}, tensors, tuple(operators), ("t0",), (name,))


def fan_of(over: str, *into: str, sizes: dict[str, float]) -> Block:
    """Products that all read one tensor ``t0``, as many as dims are given: every one writes one of these."""
    tensors, operators = {"t0": Tensor("t0", ("batch", over))}, []
    for number, dim in enumerate(into):
        name, weight = f"u{number}", f"w{number}"
        tensors[name] = Tensor(name, ("batch", dim))
        tensors[weight] = Tensor(weight, (over, dim), "weight")
        operators.append(
            Operator(
                name=f"op{number}",
                kind="matmul",
                dims=("batch", over, dim),
                reads=(Use("t0", ("batch", over)),),
                writes=(name,),
                weights=(weight,),
                flops=2.0,
            )
        )
    outputs = tuple(op.writes[0] for op in operators)
    return Block("fan", {"batch": 1, **sizes}, tensors, tuple(operators), ("t0",), outputs)


def convolutions(pixels: int, channels: tuple[int, ...], wide: int, depth: int) -> Block:
    """Convolutions over an image, a pool over its pixels, then layers without an image: by hand.

    Pixels are not split: a halo is no part of this.
    """
    names = [f"c{n}" for n in range(len(channels))] + [f"f{n}" for n in range(depth)]
    sizes = dict(zip(names, (*channels, *[wide] * depth), strict=True))
    tensors, operators = {"t0": Tensor("t0", ("batch", "pixels", "c0"))}, []
    last = "t0"
    for number, (over, into) in enumerate(pairwise(names), 1):
        image = ("batch", "pixels") if into in names[: len(channels)] else ("batch",)
        if image != tensors[last].dims[:-1]:
            tensors["pooled"] = Tensor("pooled", ("batch", over))
            operators.append(
                Operator(
                    name="pool",
                    kind="memory",
                    dims=tensors[last].dims,
                    reads=(Use(last, tensors[last].dims),),
                    writes=("pooled",),
                )
            )
            last = "pooled"
        tensors[f"t{number}"] = Tensor(f"t{number}", (*image, into))
        tensors[f"w{number}"] = Tensor(f"w{number}", (over, into), "weight")
        operators.append(
            Operator(
                name=f"{'conv' if 'pixels' in image else 'full'}{number}",
                kind="matmul",
                dims=(*image, over, into),
                reads=(Use(last, tensors[last].dims),),
                writes=(f"t{number}",),
                weights=(f"w{number}",),
                flops=2.0,
                saves=(last,),
                whole=frozenset({"pixels"}),
            )
        )
        last = f"t{number}"
    sizes |= {"batch": 1, "pixels": pixels}
    return Block("net", sizes, tensors, tuple(operators), ("t0",), (last,))


def peak(flops: float) -> dict[str, dict[str, float]]:
    """A chip so fast."""
    return {"peak": dict.fromkeys(("bf16", "fp32"), flops)}


dense_layers = (Attention(heads=4, kv_heads=4, head_dim=16), Mlp(width=64))
"""Something to make a model of, where only the task around it matters."""
