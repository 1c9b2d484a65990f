"""The collectives that a plan has, for one step on one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TypeAlias

from planner.runtime.program import Move, Op, Part, Program

Key: TypeAlias = tuple[str, str, str]
"""Phase (forward, backward), kind and axis; the axis of states is ``data`` (``replicas`` across groups that shard
them), of experts' states ``edp``."""
Issued: TypeAlias = dict[Key, tuple[int, float]]
"""How many collectives, and bytes of all."""


def predicted(plan: Program) -> Issued:
    """What the first rank issues in a step, but for what stages send each other.

    The loss's three numbers a token are two collectives: the largest logit is needed before the others can be summed.
    Layers that are computed again repeat their forward collectives in place of what would be gathered again, up to the
    last operator whose inputs are needed.
    """
    found: Issued = {}
    parts = plan.parts_of(0)
    for part in parts:
        inside, states = list(_operators(part, plan)), list(_states(part, plan))
        for key, size in inside * plan.micro_batches:
            _add(found, key, size)
        for key, size in states * (plan.micro_batches if plan.gathers_each else 1):
            _add(found, key, size)
        for axis, size in _copied(part, plan).items():
            _add(found, ("backward", "all-reduce", axis), size)
    if plan.splits_loss and plan.head in parts:
        key = ("forward", "all-reduce", "tp")
        found[key] = (found[key][0] + plan.micro_batches, found[key][1])
    return found


def _add(found: Issued, key: Key, size: float) -> None:
    count, total = found.get(key, (0, 0.0))
    found[key] = (count + 1, total + size)


def _operators(part: Part, plan: Program) -> Iterator[tuple[Key, float]]:
    moves = _here(part.ops, plan)
    gathered = {m.tensor for m in moves if (m.phase, m.kind) == ("forward", "all-gather")}
    repeated = plan.recompute and part in plan.layers
    for m in moves:
        again = m.phase == "backward" and m.kind == "all-gather" and m.tensor in gathered
        if not (repeated and again):
            yield (m.phase, m.kind, m.axis), m.bytes
    for m in _here(_needed(part), plan) if repeated else ():
        if m.phase == "forward":
            yield ("backward", m.kind, m.axis), m.bytes


def _here(ops: Sequence[Op], plan: Program) -> list[Move]:
    return [m for op in ops for m in op.moves if plan.axes.get(m.axis, 1) > 1]


def _needed(part: Part) -> Sequence[Op]:
    """A layer's operators up to the last that keeps something: sums keep nothing, and what follows is not repeated."""
    keeps = [n for n, op in enumerate(part.ops) if op.kind != "memory" or "add" not in op.name]
    return part.ops[: keeps[-1] + 1]


def _states(part: Part, plan: Program) -> Iterator[tuple[Key, float]]:
    gathers: dict[str, int] = {}
    for m in part.states:
        axis = "edp" if m.axis == "edp" and plan.expert_parallel else "data"
        if m.phase == "gradient":
            yield ("backward", m.kind, _across(m, axis, plan)), m.bytes
        else:
            phase = "backward" if gathers.get(axis) else "forward"
            gathers[axis] = 1
            yield (phase, m.kind, axis), m.bytes


def _copied(part: Part, plan: Program) -> dict[str, float]:
    """Gradients of weights that an axis copies although it cuts their operator: norms, biases, the router.

    They are summed at the end of a step, in fp32, and too small for the plan to have collectives for them.
    """
    found: dict[str, float] = {}
    for op in part.ops:
        for name, placements in op.weights.items():
            cut = prod(plan.axes[a] for a, p in placements.items() if p != "replicate")
            whole = prod(part.sizes[dim] for dim in part.tensors[name])
            if plan.level:
                cut *= plan.axes["edp"] if "edp" in placements else plan.shard
            for axis in placements.keys() - {"dp", "cp", "edp"}:
                if placements[axis] == "replicate" and plan.axes[axis] > 1:
                    found[axis] = found.get(axis, 0.0) + 4.0 * whole / cut
    return found


def _across(m: Move, axis: str, plan: Program) -> str:
    return "replicas" if plan.level and m.kind == "all-reduce" else axis
