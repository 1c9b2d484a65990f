"""A plan made small enough for the processes of one computer: every degree above one becomes two, structure stays."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from planner.errors import PlannerError
from planner.runtime.program import DENSE, Move, Part, Program
from planner.runtime.sizes import numbers, states, stream

WIDTHS = (1.0, 2.0, 4.0)
"""Bytes that a number may have."""
PADDING = 0.02
"""Share by which trainers make a vocabulary larger, so that ranks have equal parts of it."""
MOST_RANKS = 16
"""Processes that a check starts at most."""
SIZES = {
    "seq": 16, "keys": 16, "embed": 32, "vocab": 64, "heads": 8, "kv_heads": 8, "head_dim": 8, "ffn": 64,
    "experts": 4, "expert_ffn": 16, "shared_ffn": 16, "positions": 16, "q_latent": 8, "kv_latent": 8,
    "rope_dim": 4, "kv_rope_latent": 12, "value_dim": 4, "nope_value": 8,
}  # fmt: skip
"""Sizes that two ranks of every axis divide, and FSDP2 without padding."""


def shrink(plan: Program) -> Program:
    """A program that runs on a few processes; one whose numbers are small already stays as it is.

    Its collectives move as many fp32 numbers as the plan's would at its size.

    Raises:
        PlannerError: it has parts that cannot be run (W06).
    """
    if any("source" in part.sizes for part in plan.parts):
        raise PlannerError.of("W06", "Models with an encoder before the decoder are not run.")
    if plan.tied and plan.pp > 1 and plan.folded and plan.level and plan.data > 1:
        what = (
            f"Tied embeddings under {plan.schedule} are not run with states sharded over data ranks: "
            "both chunks of a rank hold the table, and FSDP2 shards each chunk by itself."
        )
        raise PlannerError.of("W06", what, "shardwright plan … --pin zero=0, or pp=1")
    small = plan.ranks <= MOST_RANKS and all(part.sizes["embed"] <= 64 for part in plan.parts)
    return plan if small else _moving(_small(plan), plan)


def _small(plan: Program) -> Program:
    axes = {axis: min(size, 2) for axis, size in plan.axes.items()}
    axes["pp"] = min(plan.pp, 4 if prod(axes[axis] for axis in DENSE) == 1 else 2)
    copied = plan.shard < plan.data and axes["dp"] * axes["cp"] == 2
    experts = axes["ep"] * axes["etp"] * min(plan.axes["edp"], 2)
    if axes["dp"] == 2 and copied:
        axes["dp"] = 4
    while axes["dp"] > 1 and prod(axes[axis] for axis in DENSE) < experts:
        axes["dp"] *= 2
    whole = prod(axes[axis] for axis in DENSE)
    if plan.axes["edp"] == 1:
        axes["ep"] = whole // axes["etp"]
    axes["edp"] = whole // (axes["ep"] * axes["etp"])
    data = axes["dp"] * axes["cp"]
    chunks = min(len(plan.visits) // plan.pp, 2)
    visits = _visits(list(plan.visits), axes["pp"], chunks)
    kept = _kept(plan, visits)
    turns = 2 * axes["pp"] if axes["pp"] > 2 or plan.folded else 4
    made = {id(part): _part(part, 2 * axes["dp"], axes["ep"] * axes["edp"]) for part in plan.parts}
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
        mtp=tuple(made[id(part)] for part in plan.mtp),
    )


def _moving(small: Program, plan: Program) -> Program:
    """The small program with the bytes of its collectives."""
    before = {part.name: part for part in plan.parts}

    def moved(part: Part) -> Part:
        old = before[part.name]
        ops = tuple(
            replace(op, moves=tuple(
                _resized(m, numbers(m, was, old, plan), numbers(m, op, part, small)) for m in op.moves
            ))
            for op, was in zip(part.ops, old.ops, strict=True)
        )  # fmt: skip
        held = tuple(_resized(m, states(m, old, plan), states(m, part, small)) for m in part.states)
        return replace(part, ops=ops, states=held)

    made = {id(part): moved(part) for part in small.parts}
    sent = Move("forward", "send", "x", "pp", plan.sent)
    return replace(
        small,
        sent=_resized(sent, stream(plan), stream(small)).bytes,
        embedding=made[id(small.embedding)],
        layers=tuple(made[id(part)] for part in small.layers),
        head=made[id(small.head)],
        mtp=tuple(made[id(part)] for part in small.mtp),
    )


def _resized(move: Move, before: float, after: float) -> Move:
    """So many fp32 numbers where the plan's bytes are numbers of a possible width.

    Else as many more or fewer bytes, so that a comparison shows that they are wrong.
    """
    if not before:
        return move
    width = move.bytes / before
    right = any(abs(width / known - 1) <= PADDING for known in WIDTHS)
    return replace(move, bytes=after * (4.0 if right else width))


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


def _part(part: Part, sequences: int, experts: int) -> Part:
    sizes = {dim: min(size, SIZES.get(dim, size)) for dim, size in part.sizes.items()}
    sizes["batch"] = sequences
    if part.sizes.get("kv_heads", 0) < part.sizes.get("heads", 0):
        sizes["kv_heads"] = 4
    if "joined" in sizes:
        sizes["joined"] = 2 * sizes["embed"]
    if "experts" in sizes:
        each = part.sizes["batch"] * part.sizes["seq"]
        top = min(2, round(part.sizes["capacity"] * part.sizes["experts"] / each))
        sizes["experts"] = max(sizes["experts"], experts)
        sizes["capacity"] = sequences * sizes["seq"] * top // sizes["experts"]
    return replace(part, sizes=sizes)
