"""A plan made small enough for the processes of one computer: every degree above one becomes two, structure stays."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from planner.errors import PlannerError
from planner.runtime.program import DENSE, Part, Program

MOST_RANKS = 16
"""Processes that a check starts at most."""
SIZES = {
    "seq": 16, "keys": 16, "embed": 32, "vocab": 64, "heads": 4, "kv_heads": 4, "head_dim": 8, "ffn": 64,
    "experts": 4, "expert_ffn": 16, "shared_ffn": 16, "positions": 16, "q_latent": 8, "kv_latent": 8,
    "rope_dim": 4, "kv_rope_latent": 12, "value_dim": 4, "nope_value": 8,
}  # fmt: skip
"""Sizes that two ranks of every axis divide."""


def shrink(plan: Program) -> Program:
    """A program that runs on a few processes; one whose numbers are small already stays as it is.

    Raises:
        PlannerError: it has parts that cannot be run (W06).
    """
    if plan.tied and plan.pp > 1:
        raise PlannerError.of(
            "W06", "Tied embeddings on several stages are not run yet.", "shardwright plan … --pin pp=1"
        )  # fmt: skip
    small = plan.ranks <= MOST_RANKS and all(part.sizes["embed"] <= 64 for part in plan.parts)
    return plan if small else _small(plan)


def _small(plan: Program) -> Program:
    axes = {axis: min(size, 2) for axis, size in plan.axes.items()}
    axes["pp"] = min(plan.pp, 4 if prod(axes[axis] for axis in DENSE) == 1 else 2)
    whole = prod(axes[axis] for axis in DENSE)
    if whole == 2 and axes["dp"] == 2 and plan.shard < plan.data:
        axes["dp"], whole = 4, 4
    axes["edp"] = whole // (axes["ep"] * axes["etp"])
    data = axes["dp"] * axes["cp"]
    chunks = min(len(plan.visits) // plan.pp, 2)
    visits = _visits(list(plan.visits), axes["pp"], chunks)
    kept = _kept(plan, visits)
    turns = 2 * axes["pp"] if axes["pp"] > 2 or plan.schedule in ("zbv", "dualpipev") else 4
    made = {id(part): _part(part, 2 * axes["dp"]) for part in plan.parts}
    return replace(
        plan,
        axes=axes,
        shard=data if plan.shard == plan.data else data // 2,
        visits=visits if len(visits) > 1 else (len(kept),),
        micro_batch=2,
        micro_batches=turns if axes["pp"] > 1 else 1,
        embedding=made[id(plan.embedding)],
        layers=tuple(made[id(plan.layers[n])] for n in kept),
        head=made[id(plan.head)],
    )


def _kept(plan: Program, visits: tuple[int, ...]) -> list[int]:
    """Layers that stay: of a single stage the first of every kind, else the first of every chunk."""
    if len(visits) == 1:
        kinds = [id(part) for part in plan.layers]
        return sorted(kinds.index(kind) for kind in set(kinds))
    starts = [sum(plan.visits[: n * len(plan.visits) // len(visits)]) for n in range(len(visits))]
    return [start + n for start, count in zip(starts, visits, strict=True) for n in range(count)]


def _visits(sizes: list[int], pp: int, chunks: int) -> tuple[int, ...]:
    """One layer a chunk; two in those that hold more than the least, so that unequal stages stay unequal."""
    count = pp * chunks
    kept = [sizes[index * len(sizes) // count] for index in range(count)]
    if len(set(sizes)) > 1 and len(set(kept)) == 1:
        kept[-1] += 1
    return tuple(1 + (size > min(kept)) for size in kept)


def _part(part: Part, sequences: int) -> Part:
    sizes = {dim: min(size, SIZES.get(dim, size)) for dim, size in part.sizes.items()}
    sizes["batch"] = sequences
    if part.sizes.get("kv_heads", 0) < part.sizes.get("heads", 0):
        sizes["kv_heads"] = 2
    if "experts" in sizes:
        each = part.sizes["batch"] * part.sizes["seq"]
        top = min(2, round(part.sizes["capacity"] * part.sizes["experts"] / each))
        sizes["capacity"] = sequences * sizes["seq"] * top // sizes["experts"]
    return replace(part, sizes=sizes)
