"""Strategies of a block under a trainer's roles, and the collectives that follow from them.

One sentence gives every published scheme: *where an axis splits a dim of the operator that an input does not have, that
input's gradient is partial over the axis*. Tensor parallelism's all-reduces, sequence parallelism's gathers and
scatters, context parallelism's key/value exchange, vocabulary parallelism's statistics and expert parallelism's
all-to-alls are what it says about these operators; none of them is written down here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from planner.cost.setting import followed
from planner.graph.operator import FOLLOWS, SOURCE_DIMS, Block, DimName, Operator, Tensor, Use
from planner.graph.placement import (
    PARTIAL,
    REPLICATE,
    AxisName,
    Chosen,
    Kind,
    Layout,
    Partial,
    Placement,
    Replicate,
    Shard,
    Split,
    conversion,
)
from planner.trainers.trainer import Trainer

Roles: TypeAlias = tuple[tuple[AxisName, tuple[DimName, ...], str], ...]
"""For every axis the dims that it may split, most wanted first; then the same for single operators, by name. A tuple,
so that results can be cached."""
Phase: TypeAlias = Literal["forward", "backward"]

DENSE: tuple[AxisName, ...] = ("dp", "cp", "tp")
EXPERT: tuple[AxisName, ...] = ("edp", "ep", "etp")


@dataclass(frozen=True, slots=True)
class Move:
    """A collective on one tensor over one axis."""

    kind: Kind
    tensor: str
    axis: AxisName
    phase: Phase
    operator: str
    """The operator that waits for it."""
    others: tuple[tuple[AxisName, DimName], ...]
    """How the remaining axes shard the tensor meanwhile."""
    again: bool = False
    """Gathers once more, for the backward pass, what was kept in shards."""


@dataclass(frozen=True, slots=True)
class WeightPlacement:
    """How a weight lies on the axes, and over which axes its gradient is partial."""

    tensor: Tensor
    layout: Layout
    partial: tuple[AxisName, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything about a block under given roles that does not depend on the degrees."""

    block: Block
    splits: tuple[Split, ...]
    """The strategy of every operator, in order."""
    layouts: Mapping[str, Layout]
    """The layout in which every tensor stands after it was produced (partial sums resolved)."""
    arriving: Mapping[str, Layout]
    """The layout in which every input comes from the layer before."""
    moves: tuple[Move, ...]
    weights: tuple[WeightPlacement, ...]


def roles_of(trainer: Trainer, *, sp: bool, tied: bool = False) -> Roles:
    """A trainer's roles as a hashable value; without sequence parallelism ``tp`` leaves ``seq`` alone.

    Args:
        trainer: its roles.
        sp: with sequence parallelism.
        tied: the head has the embedding's table.
    """
    every = [(axis, dims, "") for axis, dims in trainer.roles.items() if axis != "pp"]
    single = [(axis, trainer.role(axis, name, tied=tied), name) for axis, name in trainer.apart]
    return tuple((axis, _cut(axis, dims, sp=sp), name) for axis, dims, name in (*every, *single))


def _cut(axis: AxisName, dims: tuple[DimName, ...], *, sp: bool) -> tuple[DimName, ...]:
    """The dims that an axis cuts: of a source what it cuts of the sequence."""
    mine = [dim for dim in dims if sp or axis != "tp" or dim != "seq"]
    return tuple(dict.fromkeys([*mine, *(SOURCE_DIMS[dim] for dim in mine if dim in SOURCE_DIMS)]))


def strategy(op: Operator, roles: Roles) -> Split:
    """Every axis of the operator's view splits the first of its dims that the operator has and allows."""
    axes = EXPERT if op.view == "expert" else DENSE
    chosen: dict[AxisName, DimName] = {}
    for axis, dims, name in roles:
        if axis in axes and name in ("", op.name):
            dim = next((d for d in dims if d in op.dims and d not in op.whole), None)
            if dim is not None:
                chosen[axis] = dim
            elif name:
                chosen.pop(axis, None)
    return chosen


def required(use: Use, tensor: Tensor, op: Operator, split: Split) -> Layout:
    """The layout in which an operator needs an input, in the tensor's own dim names."""
    if op.kind == "exchange" and "capacity" in tensor.dims:
        return dict.fromkeys(EXPERT, Shard("capacity"))
    own = _own_dims(use, tensor)
    return {axis: Shard(own[dim]) if dim in own else REPLICATE for axis, dim in split.items()}


def written(tensor: Tensor, op: Operator, split: Split) -> Layout:
    """The layout in which an operator leaves an output: what is split but not written is summed."""
    if op.kind == "exchange" and "capacity" in tensor.dims:
        return dict.fromkeys(EXPERT, Shard("capacity"))
    cut = followed(tensor.dims, split)
    return {axis: Shard(dim) if dim in tensor.dims else PARTIAL for axis, dim in cut.items()}


def gradient(use: Use, tensor: Tensor, op: Operator, split: Split) -> Layout:
    """The layout in which an operator leaves the gradient of an input."""
    if op.kind == "exchange" and "capacity" in tensor.dims:
        return dict.fromkeys(EXPERT, Shard("capacity"))
    own = _own_dims(use, tensor)
    return {axis: Shard(own[dim]) if dim in own else PARTIAL for axis, dim in split.items()}


def _own_dims(use: Use, tensor: Tensor) -> dict[DimName, DimName]:
    """From an operator's dims, followed dims included, to the tensor's own."""
    own = dict(zip(use.dims, tensor.dims, strict=True))
    return own | {FOLLOWS[dim]: own[dim] for dim in use.dims if dim in FOLLOWS}


@lru_cache(maxsize=256)
def structure(block_key: BlockKey, roles: Roles, chosen: Chosen = ()) -> Structure:
    """The strategies, layouts and collectives of a block; cached, since it is the same for all degrees."""
    block = block_key.block
    own = {name: dict(split) for name, split in chosen}
    splits = tuple(
        own[op.name] if op.name in own else strategy(op, roles) for op in block.operators
    )
    stream = stream_layout(roles)
    arriving = {name: _arriving(block, splits, name, stream) for name in block.inputs}
    produced = dict(arriving)
    for op, split in zip(block.operators, splits, strict=True):
        for name in op.writes:
            produced[name] = written(block.tensors[name], op, split)
    moves: list[Move] = []
    layouts: dict[str, Layout] = {}
    for name, have in produced.items():
        uses = _uses(block, splits, name)
        if name in block.outputs:
            uses.append(leaving(block, name, have, stream))
        layouts[name] = _settled(have, uses)
        moves += tensor_moves(block, name, have, uses)
    return Structure(block, splits, layouts, arriving, tuple(moves), _weights(block, splits))


@dataclass(frozen=True, slots=True, eq=False)
class BlockKey:
    """A block hashed by identity, to serve as a cache key."""

    block: Block

    def __hash__(self) -> int:
        return id(self.block)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockKey) and other.block is self.block


Uses: TypeAlias = "list[tuple[str, Layout, Layout]]"
"""(operator, layout it needs, layout of the gradient it leaves) of every reader of a tensor."""


def _uses(block: Block, splits: tuple[Split, ...], name: str) -> Uses:
    tensor = block.tensors[name]
    return [
        (op.name, required(use, tensor, op, split), gradient(use, tensor, op, split))
        for op, split in zip(block.operators, splits, strict=True)
        for use in op.reads
        if use.tensor == name
    ]


def leaving(block: Block, name: str, have: Layout, stream: Layout) -> tuple[str, Layout, Layout]:
    """How the layer after reads an output: the stream as it lies, anything else summed up."""
    tensor = block.tensors[name]
    final = _streamed(tensor, stream) if "embed" in tensor.dims else _summed(have)
    return ("output", final, final)


def stream_layout(roles: Roles) -> Layout:
    """How the residual stream lies between blocks: cut as far as the roles cut its dims."""
    wanted = {axis: dims for axis, dims, name in roles if not name}
    return {
        axis: Shard(dim)
        for axis in DENSE
        for dim in ("batch", "seq")
        if dim in wanted.get(axis, ()) and not (axis == "dp" and dim == "seq")
    }


def _arriving(block: Block, splits: tuple[Split, ...], name: str, stream: Layout) -> Layout:
    """How an input arrives: the stream as it lies; indices as their first reader wants them."""
    if block.tensors[name].kind == "index":
        return _uses(block, splits, name)[0][1]
    return _streamed(block.tensors[name], stream)


def _streamed(tensor: Tensor, stream: Layout) -> Layout:
    """How the stream's layout cuts a tensor that lies as it does, perhaps along a source."""
    return {
        axis: Shard(SOURCE_DIMS[place.dim])
        if isinstance(place, Shard) and place.dim not in tensor.dims and place.dim in SOURCE_DIMS
        else place
        for axis, place in stream.items()
    }


def _summed(layout: Layout) -> Layout:
    return {a: REPLICATE if isinstance(p, Partial) else p for a, p in layout.items()}


def _at(layout: Layout, axis: AxisName) -> Placement:
    return layout.get(axis, REPLICATE)


def _settled(have: Layout, uses: Uses) -> Layout:
    """The layout a tensor is kept in: as produced, partial sums as the first reader wants them."""
    first = uses[0][1] if uses else {}
    return {
        axis: _at(first, axis) if isinstance(place, Partial) else place
        for axis, place in have.items()
    }


def tensor_moves(block: Block, name: str, have: Layout, uses: Uses) -> Iterator[Move]:
    """The collectives that bring a tensor to its readers and their gradients back."""
    axes = dict.fromkeys(axis for layout in (have, *(u[1] for u in uses)) for axis in layout)
    needs_gradient = block.tensors[name].kind in ("activation", "statistic")
    for axis in axes:
        source = _at(have, axis)
        others = _others(have, uses, axis)
        for operator, kind, want in _conversions([(u[0], source, _at(u[1], axis)) for u in uses]):
            yield Move(kind, name, axis, "forward", operator, others)
            saved = any(name in op.saves for op in block.operators if op.name == operator)
            if kind == "all-gather" and saved and isinstance(want, Replicate):
                yield Move(kind, name, axis, "backward", operator, others, again=True)
        if not needs_gradient:
            continue
        back = source if isinstance(source, Shard) else REPLICATE
        for operator, kind, _ in _conversions([(u[0], _at(u[2], axis), back) for u in uses]):
            yield Move(kind, name, axis, "backward", operator, others)


def _conversions(
    readers: list[tuple[str, Placement, Placement]],
) -> Iterator[tuple[str, Kind, Placement]]:
    """One conversion for every distinct pair of placements, at the first reader that needs it.

    Readers that want the same share what is gathered; gradients that lie alike are added before they move.
    """
    done: set[tuple[Placement, Placement]] = set()
    for operator, have, want in readers:
        kind = conversion(have, want)
        if kind is not None and (have, want) not in done:
            done.add((have, want))
            yield operator, kind, want


def _others(have: Layout, uses: Uses, axis: AxisName) -> tuple[tuple[AxisName, DimName], ...]:
    layout = _settled(have, uses)
    return tuple((a, p.dim) for a, p in layout.items() if a != axis and isinstance(p, Shard))


def _weights(block: Block, splits: tuple[Split, ...]) -> tuple[WeightPlacement, ...]:
    placed: dict[str, WeightPlacement] = {}
    for op, split in zip(block.operators, splits, strict=True):
        for name in op.weights:
            dims = block.tensors[name].dims
            layout = {a: Shard(d) if d in dims else REPLICATE for a, d in split.items()}
            partial = tuple(a for a, d in split.items() if d not in dims)
            placed.setdefault(name, WeightPlacement(block.tensors[name], layout, partial))
    return tuple(placed.values())
