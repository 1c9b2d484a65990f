"""The collectives that a plan has, for one step on one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import TypeAlias

from planner.runtime.passes import passes
from planner.runtime.program import Move, Op, Part, Program

Key: TypeAlias = tuple[str, str, str]
"""Phase (forward, backward), kind and axis; the axis of states is ``data`` (``replicas`` across groups that shard
them), of experts' states ``edp``, of tables that the first and the last stage have ``ends``."""
Issued: TypeAlias = dict[Key, tuple[int, float]]
"""How many collectives, and bytes of all."""


def predicted(plan: Program) -> Issued:
    """What the first rank issues in a step.

    The loss's three numbers a token are two collectives: the largest logit is needed before the others can be summed.
    """
    found: Issued = {}
    chunks = [plan.parts_of(chunk) for chunk in plan.chunks_of(0)]
    for part in (part for chunk in chunks for part in chunk):
        for key, size in [*_operators(part, plan), *_recomputed(part, plan)] * plan.micro_batches:
            _add(found, key, size)
        for axis, size in _copied(part, plan).items():
            _add(found, ("backward", "all-reduce", axis), size)
        if plan.splits_loss and part.ops[-1].kind == "loss":
            _add(found, ("forward", "all-reduce", "tp"), 0.0, plan.micro_batches)
    for number, chunk in enumerate(chunks):
        for group in _held(chunk, plan):
            for key, (count, size) in group.items():
                times = _times(key, number, plan)
                _add(found, key, size * times, count * times)
    for size in _between_ends(plan).values():
        _add(found, ("backward", "all-reduce", "ends"), size)
    for phase, kind in plan.passed(0) * plan.micro_batches:
        _add(found, (phase, kind, "pp"), plan.sent)
    return found


def _times(key: Key, chunk: int, plan: Program) -> int:
    """How often a step does something with the states of a chunk of the first stage.

    On stages gradients are reduced once. Under ZeRO-3 what a backward pass gathers stays until a forward pass has used
    it: a forward pass gathers unless it follows a backward pass of its chunk, a backward pass if it follows a forward.
    """
    phase, kind, _ = key
    if plan.level < 3 or (plan.pp > 1 and kind != "all-gather"):
        return 1
    if plan.pp == 1:
        return plan.micro_batches
    turns = sum(a < b for a, b in pairwise(passes(plan, chunk)))
    return turns if phase == "backward" else plan.micro_batches + 1 - turns


def _add(found: Issued, key: Key, size: float, times: int = 1) -> None:
    count, total = found.get(key, (0, 0.0))
    found[key] = (count + times, total + size)


def _operators(part: Part, plan: Program) -> Iterator[tuple[Key, float]]:
    """Collectives of its operators. Where all of a layer is computed again nothing is gathered again for it alone."""
    moves = _here(part.ops, plan)
    gathered = {m.tensor for m in moves if (m.phase, m.kind) == ("forward", "all-gather")}
    for m in moves:
        again = m.phase == "backward" and m.kind == "all-gather" and m.tensor in gathered
        if not (part.recomputed and again):
            yield (m.phase, m.kind, m.axis), m.bytes


def _recomputed(part: Part, plan: Program) -> Iterator[tuple[Key, float]]:
    """Forward collectives that computing a whole layer again repeats, up to the last operator whose inputs are needed.

    Where some operators are computed again, what they exchange or reduce is kept.
    """
    for m in _here(_needed(part), plan) if part.recomputed else ():
        if m.phase == "forward":
            yield ("backward", m.kind, m.axis), m.bytes


def _here(ops: Sequence[Op], plan: Program) -> list[Move]:
    return [m for op in ops for m in op.moves if plan.axes.get(m.axis, 1) > 1]


def _needed(part: Part) -> Sequence[Op]:
    """A layer's operators up to the last that keeps something; what follows, and a loss, is not repeated."""
    keeps = [n for n, op in enumerate(part.ops) if op.keeps and op.kind != "loss"]
    return part.ops[: keeps[-1] + 1]


def _held(chunk: Sequence[Part], plan: Program) -> Iterator[Issued]:
    """What is done with weights and gradients, of parts whose states are gathered at once together."""
    for group in plan.together(chunk) if plan.level else [[part] for part in chunk]:
        found: Issued = {}
        for part in group:
            for key, size in _states(part, plan):
                count, total = found.get(key, (1, 0.0))
                found[key] = (count, total + size)
        yield found


def _states(part: Part, plan: Program) -> Iterator[tuple[Key, float]]:
    gathers: dict[str, int] = {}
    for m in part.states:
        if m.axis == "pp":
            continue
        axis = "edp" if m.axis == "edp" and plan.expert_parallel else "data"
        if axis == "edp" and plan.axes["edp"] == 1:
            continue
        if m.phase == "gradient":
            yield ("backward", m.kind, _across(m, axis, plan)), m.bytes
        else:
            phase = "backward" if gathers.get(m.tensor) else "forward"
            gathers[m.tensor] = 1
            yield (phase, m.kind, axis), m.bytes


def _between_ends(plan: Program) -> dict[str, float]:
    """Bytes that are summed of every table that the first and the last stage have: of what a rank holds of it."""
    cut = plan.shard if plan.level else 1
    return {m.tensor: m.bytes / cut for part in plan.ends for m in part.states if m.axis == "pp"}


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
