"""Weights on free axes: what sharding their states costs, and operators that share one.

A weight lies as its operators cut it, all alike; its states may be sharded over further axes. It is gathered once each
way, and gradients of all its operators are added up before they are reduced: where an axis leaves only some of them
partial, the others count on one of its ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations
from math import prod

import numpy as np

from planner.cost.collectives import collective
from planner.cost.resharding import StepKind
from planner.cost.states import state_bytes, temporary_bytes
from planner.errors import PlannerError
from planner.graph.placement import Kind, Layout, Shard
from planner.search.free_axes import Space, Strategies
from planner.search.wish import Wish
from planner.units import Array, BoolArray, IntArray

Group = tuple[int, ...]
"""Axes over which the states of a weight are sharded besides those that cut it."""
Code = tuple[int, ...]
"""What every axis does to a weight: 0 nothing, 1 its gradient is partial, 2 + dim cuts that dim."""


WeightMove = tuple[Kind, BoolArray, Array, Array]
"""Kind, the axes that take part, bytes and seconds. Shapes: (states, axes), (states,), (states,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A weight in all ways that it can lie and its states be sharded."""

    name: str
    operators: tuple[int, ...]
    """Those that use it."""
    groups: tuple[Group, ...]
    """Of every state."""
    moves: list[WeightMove]
    """What every state sends, a gather forwards first."""
    seconds: Array
    """Exposed seconds of gathers and reductions. Shapes: (states,)."""
    usage: Array
    """Bytes of states on a rank, of all layers. Shapes: (states,)."""
    whole: Array
    """Bytes of what is gathered where its states are sharded, while operators use it. Shapes: (states,)."""
    gradient: Array
    """Bytes of its whole gradient where its states are sharded, until it is scattered. Shapes: (states,)."""
    making: Array
    """Bytes that making its gradient takes more. Shapes: (states,)."""
    stepped: Array
    """Bytes of temporaries while the optimizer steps, of all layers. Shapes: (states,)."""
    tables: tuple[Array, ...]
    """Of every operator 0 where a strategy goes with a state, else inf. Shapes: (strategies, states) each."""


def weights_of(s: Space, wish: Wish, every: tuple[Strategies, ...]) -> tuple[Weight, ...]:
    """A block's weights; not those that are tied to another block's, where their gradients are reduced.

    Raises:
        PlannerError: the operators of a weight cannot cut it alike, or not as it is to lie (N03).
    """
    users: dict[str, list[int]] = {}
    for number, op in enumerate(s.plain.operators):
        for name in op.weights:
            if name not in s.block.tied:
                users.setdefault(name, []).append(number)
    return tuple(_weight(s, wish, name, at, every) for name, at in users.items())


def _weight(
    s: Space, wish: Wish, name: str, operators: list[int], every: tuple[Strategies, ...]
) -> Weight:
    own = [_codes(s, every[number], name) for number in operators]
    states = _states(s, name, own, wish.lies.get(name))
    if not states:
        raise PlannerError.of(
            "N03",
            f"No layout of {name} suits all operators that use it, as they are pinned.",
            "Pin fewer operators.",
        )
    codes = np.array([lie for lie, _ in states], dtype=np.int64)
    groups = tuple(group for _, group in states)
    elements = s.block.elements(s.block.tensors[name].dims) / s.mesh.ranks(codes > 1)
    inside = np.array([[a in group for a in range(codes.shape[1])] for group in groups])
    moves, bytes_, gathered = _moves(s, name, elements, codes == 1, inside)
    apart = np.where(s.mesh.ranks(inside) > 1, elements, 0.0)
    taken = np.zeros(len(states))
    for kind, _, _, seconds in moves:
        each = 1 if kind == "all-gather" else wish.micro_batches
        taken += weight_exposed(s, wish, kind) * seconds / each
    return Weight(
        name=name,
        operators=tuple(operators),
        groups=groups,
        moves=moves,
        seconds=taken,
        usage=wish.layers * bytes_ / s.mesh.ranks(inside),
        whole=gathered * apart,
        gradient=state_bytes(s.task).gradients * apart * (s.block.tensors[name].kind != "frozen"),
        making=_making(s, name, elements, codes),
        stepped=_stepped(s, name, wish.layers * elements / s.mesh.ranks(inside), apart),
        tables=tuple(np.where(_suits(one, codes), 0.0, np.inf) for one in own),
    )


def _codes(s: Space, each: Strategies, name: str) -> IntArray:
    """What every strategy does to a weight. Shapes: (strategies, axes)."""
    dims = s.plain.tensors[name].dims
    of = [0 if d is None else 2 + dims.index(d) if d in dims else 1 for d in each.dims]
    return np.array(of, dtype=np.int64)[each.table]


def _suits(own: IntArray, codes: IntArray) -> BoolArray:
    """Whether strategies cut a weight as it lies and leave no more partial. Shapes: (n, axes), (m, axes) -> (n, m)."""
    have, want = own[:, None], codes[None]
    return np.asarray(((have == want) | ((have == 0) & (want == 1))).all(axis=2))


def _states(
    s: Space, name: str, own: list[IntArray], asked: Layout | None
) -> list[tuple[Code, Group]]:
    """Layouts that all operators can have, with the groups that divide what they leave."""
    lies = {tuple(row) for row in own[0].tolist()}
    for codes in own[1:]:
        rows = {tuple(row) for row in codes.tolist()}
        both = {(tuple(map(max, a, b)), a, b) for a in lies for b in rows}
        lies = {lie for lie, a, b in both if _cut(a) == _cut(b) == _cut(lie)}
    if asked is not None:
        lies = {lie for lie in lies if _is(s, name, lie, asked)}
    size = s.block.elements(s.block.tensors[name].dims)
    sizes, axes = s.mesh.sizes, range(len(s.mesh.sizes))
    groups = list(chain.from_iterable(combinations(axes, n) for n in range(len(sizes) + 1)))
    return [
        (lie, group)
        for lie in sorted(lies)
        for group in groups
        if all(lie[a] < 2 for a in group)
        and (size / prod(sizes[a] for a in axes if lie[a] > 1)) % prod(sizes[a] for a in group) == 0
    ]


def _cut(code: Code) -> Code:
    return tuple(c if c > 1 else 0 for c in code)


def _is(s: Space, name: str, code: Code, asked: Layout) -> bool:
    dims = s.plain.tensors[name].dims
    lies = {a: Shard(dims[c - 2]) for a, c in zip(s.mesh.names, code, strict=True) if c > 1}
    return lies == {axis: place for axis, place in asked.items() if isinstance(place, Shard)}


def weight_exposed(s: Space, wish: Wish, kind: StepKind) -> float:
    """Exposed share of gathering a weight or reducing its gradient."""
    overlap = s.task.trainer.overlap
    if not wish.overlapped:
        return 1.0
    return overlap.weights if kind == "all-gather" else overlap.gradients


def _moves(
    s: Space, name: str, elements: Array, partial: BoolArray, inside: BoolArray
) -> tuple[list[WeightMove], Array, float]:
    """What a weight sends whose states are sharded over groups, a gather each way first; bytes of states and elements.

    One that does not train has no gradient.
    """
    tensor, kinds = s.block.tensors[name], state_bytes(s.task)
    scattered, grads = partial & inside, elements * kinds.gradients
    each, gathered = kinds.weights + kinds.gradients + kinds.optimizer, s.task.recipe.weight_bytes
    wanted: list[tuple[Kind, BoolArray, Array]] = [
        ("reduce-scatter", scattered, grads),
        ("all-reduce", partial & ~inside, grads / s.mesh.ranks(scattered)),
    ]
    if tensor.kind == "frozen":
        each = gathered = s.element_bytes(tensor)
        wanted = []
    gather: tuple[Kind, BoolArray, Array] = ("all-gather", inside, elements * gathered)
    wanted = [gather, gather, *wanted]
    moves = [(kind, axes, size, _joint(s, kind, axes, size)) for kind, axes, size in wanted]
    return moves, each * elements, gathered


def _making(s: Space, name: str, elements: Array, codes: IntArray) -> Array:
    """Bytes that the trainer takes more while a weight's gradient is made: for one matrix, of experts one's."""
    tensor = s.block.tensors[name]
    if tensor.kind == "frozen" or "vocab" in tensor.dims:
        return np.zeros_like(elements)
    more = s.task.trainer.memory.wgrad_bytes * elements
    if "experts" in tensor.dims:
        cut = s.mesh.ranks(codes == 2 + s.plain.tensors[name].dims.index("experts"))
        more = more * cut / s.block.sizes["experts"]
    return np.asarray(more)


def _stepped(s: Space, name: str, parameters: Array, apart: Array) -> Array:
    """Bytes that the optimizer takes beside a weight's states: of a part at once where these are sharded."""
    if s.block.tensors[name].kind == "frozen":
        return np.zeros_like(parameters)
    at_once = np.minimum(parameters, s.task.trainer.memory.step_params)
    return temporary_bytes(s.task) * np.where(apart > 0, at_once, parameters)


def _joint(s: Space, kind: Kind, axes: BoolArray, size: Array) -> Array:
    """Seconds of one collective over several axes at once, row by row; 0 where there are none."""
    spread = s.mesh.joint(axes)
    return np.where(axes.any(axis=1), collective(kind, size, spread, s.mesh.cluster), 0.0)
