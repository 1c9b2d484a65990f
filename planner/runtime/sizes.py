"""How many numbers the collectives of a program move, from how their tensors lie before and after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from planner.runtime.lies import Lies, lies, walk
from planner.runtime.program import Move, Op, Part, Placements, Program


def numbers(move: Move, op: Op, part: Part, plan: Program) -> float:
    """Numbers in the full buffer, as nccl-tests counts it, of a collective between operators.

    Forwards a tensor goes from how its writer leaves it to how ``op`` reads it; its gradient goes back from how the
    operator leaves it, a sum over what cuts none of the tensor's dims. What is gathered backwards may be the tensor
    itself, once more.
    """
    sizes = plan.axes
    dims = part.tensors[move.tensor]
    written = _written(part, move.tensor)
    read = op.reads.get(move.tensor) or _behind(written, part, plan)
    left = {axis: "partial" if where == "replicate" else where for axis, where in read.items()}
    there = (lies(dims, written, sizes), lies(dims, read, sizes))
    back = (lies(dims, left, sizes), there[0].summed())
    ways = [there] if move.phase == "forward" else [back, there]
    for have, want in ways:
        for step, before, after in walk(have, want):
            if step.kind == move.kind and move.axis in step.axes:
                lie = after if step.kind == "all-gather" else before
                return _local(part, dims, lie, sizes)
    return 0.0


def _written(part: Part, tensor: str) -> Placements:
    arrived = part.arrives.get(tensor)
    return arrived or next(op.writes[tensor] for op in part.ops if tensor in op.writes)


def _behind(written: Placements, part: Part, plan: Program) -> Placements:
    """How what leaves a part is read: by a layer, or with its sums made where nobody reads it."""
    if part.ops[-1].kind == "loss":
        return {a: "replicate" if where == "partial" else where for a, where in written.items()}
    return next(iter(plan.layers[0].arrives.values()))


def _local(part: Part, dims: tuple[str, ...], lie: Lies, sizes: Mapping[str, int]) -> float:
    whole = prod(part.sizes[dim] for dim in dims)
    return whole / prod(sizes[axis] for cut in lie.cuts for axis in cut)


def states(move: Move, part: Part, plan: Program) -> float:
    """Numbers in the full buffer of a collective of a part's weights, or of their gradients, on a rank.

    A table that several parts have is the first one's, where they stand on one stage.
    """
    if move.axis == "pp":
        return held(move.tensor, part, plan)
    experts = move.tensor.startswith("expert")
    names = [
        n for n in part.weights if ("edp" in part.placed(n)) == experts and _owns(part, n, plan)
    ]
    cut = plan.shard if plan.level and move.kind == "all-reduce" else 1
    return sum(held(name, part, plan) for name in names) / cut


def held(weight: str, part: Part, plan: Program) -> float:
    """Numbers of a weight on a rank."""
    dims = part.tensors[weight]
    return _local(part, dims, lies(dims, part.placed(weight), plan.axes), plan.axes)


def stream(plan: Program) -> float:
    """Numbers that a rank hands to the next stage."""
    part = plan.layers[0]
    dims = part.tensors[part.input]
    return _local(part, dims, lies(dims, part.arrives[part.input], plan.axes), plan.axes)


def _owns(part: Part, weight: str, plan: Program) -> bool:
    beside = plan.ends[0 if plan.pp == 1 or plan.folded else 1 :]
    return not any(weight in other.weights for other in beside[: _place(part, beside)])


def _place(part: Part, parts: Sequence[Part]) -> int:
    return next((n for n, other in enumerate(parts) if other is part), 0)
