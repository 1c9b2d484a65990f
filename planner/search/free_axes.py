"""Strategies of operators on a mesh of free axes: every axis splits one of an operator's dims, or none.

Layouts and collectives follow from :mod:`planner.cost.strategies`, one axis at a time. Expert tensors have ``batch``
and ``seq`` in place of ``capacity`` here: the rows that tokens send are cut as those tokens are, so that dispatch by
one cut and combine by another is a conversion like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import numpy as np

from planner.candidates import single
from planner.cost.operator_cost import OperatorCost, operator_cost
from planner.cost.resharding import Conversions, FreeMesh, conversions
from planner.cost.setting import Setting
from planner.cost.strategies import gradient, required, written
from planner.errors import PlannerError
from planner.graph.operator import FOLLOWS, PER_SEQUENCE, Block, DimName, Operator, Tensor, Use
from planner.graph.placement import (
    PARTIAL,
    REPLICATE,
    AxisName,
    Layout,
    Partial,
    Placement,
    Shard,
    Split,
)
from planner.trainers.trainer import Task
from planner.units import Array, BoolArray, IntArray

ROWS: DimName = "capacity"
"""The dim of expert tensors that inherits the cuts of the tokens' dims."""
TOKENS: tuple[DimName, ...] = ("batch", "seq")
SUMS: frozenset[str] = frozenset({"matmul", "lookup", "exchange", "loss"})
"""Kinds of operators whose result may be partial: sums. The others need all of what they do not write on one rank."""
MOST = 1000
"""Ways to assign a mesh's axes to dims, of an operator or a tensor, up to which all are looked at."""
SURE = 3
"""Axes of a mesh that is proposed where there are too many."""
Rule: TypeAlias = Callable[[Use, Tensor, Operator, Split], Layout]


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """A block on a mesh."""

    block: Block
    """As the model has it."""
    plain: Block
    """The same with tokens' dims in place of the rows of experts."""
    mesh: FreeMesh
    task: Task
    sequences: int
    """Sequences of one micro-batch on all ranks of the mesh."""

    def size(self, dim: DimName) -> int:
        """Size of a dim that an axis may split."""
        return self.sequences if dim == "batch" else int(self.plain.sizes[dim])

    def bytes_of(self, name: str) -> float:
        """Bytes of a whole tensor."""
        tensor = self.block.tensors[name]
        each = self.sequences if PER_SEQUENCE & set(tensor.dims) else 1
        return self.block.elements(tensor.dims) * each * self.element_bytes(tensor)

    def element_bytes(self, tensor: Tensor) -> float:
        """Bytes of one element."""
        return self.setting({}).element_bytes(tensor)

    def setting(self, parts: Mapping[DimName, Array]) -> Setting:
        """A setting in which every dim is an axis of its own that cuts it into so many parts.

        Prices many strategies at once: rows are strategies.
        """
        one = np.ones_like(next(iter(parts.values()), np.ones(1)))
        tokens = parts.get("batch", one) * parts.get("seq", one)
        routed = {"edp": tokens * parts.get("experts", one), "ep": one, "etp": one}
        return Setting(
            task=self.task,
            rows=single(),
            degrees={**parts, ROWS: tokens, **routed},
            members={},
            sequences=self.sequences * one,
        )


def space(
    block: Block, mesh: FreeMesh, task: Task, sequences: int, *, repeated: bool = True
) -> Space:
    """A block on a mesh, ready for strategies.

    Args:
        block: as the model has it.
        mesh: the axes.
        task: cluster, recipe and trainer, for the kernels.
        sequences: of one micro-batch, on all ranks together.
        repeated: the block follows on itself, so that it leaves its stream as it found it.
    """
    return Space(block, _plain(block, repeated=repeated), mesh, task, sequences)


def ring(block: Block) -> tuple[str, str] | None:
    """Input and output of a block that follows on itself: one and the same tensor of two neighbours."""
    first, last = block.tensors[block.inputs[0]], block.tensors[block.outputs[0]]
    alike = first.dims == last.dims and first.kind == last.kind == "activation"
    return (first.name, last.name) if alike and first != last else None


def _plain(block: Block, *, repeated: bool) -> Block:
    """Tokens' dims for the rows of experts; what a repeated block reads is what it wrote."""
    joined = dict([pair]) if repeated and (pair := ring(block)) else {}
    tensors = {t.name: replace(t, dims=_tokens(t.dims)) for t in block.tensors.values()}
    operators = tuple(
        replace(
            op,
            dims=_tokens(op.dims),
            reads=tuple(
                Use(joined.get(use.tensor, use.tensor), _tokens(use.dims)) for use in op.reads
            ),
            saves=tuple(joined.get(name, name) for name in op.saves),
        )
        for op in block.operators
    )
    return replace(block, tensors=tensors, operators=operators)


def _tokens(dims: tuple[DimName, ...]) -> tuple[DimName, ...]:
    return tuple(dict.fromkeys(new for dim in dims for new in (TOKENS if dim == ROWS else (dim,))))


@dataclass(frozen=True, slots=True, eq=False)
class Strategies:
    """All strategies of one operator."""

    op: Operator
    dims: tuple[DimName | None, ...]
    """What an axis may choose; None first."""
    table: IntArray
    """For every strategy what each axis chooses. Shapes: (n, axes)."""

    def split(self, mesh: FreeMesh, number: int) -> Split:
        """A strategy in names."""
        chosen = zip(mesh.names, (self.dims[c] for c in self.table[number]), strict=True)
        return {axis: dim for axis, dim in chosen if dim is not None}

    def splits(self, dims: Iterable[DimName]) -> BoolArray:
        """Where an axis splits one of these dims. Shapes: (n, axes)."""
        wanted = set(dims)
        return np.array([dim in wanted for dim in self.dims])[self.table]

    def parts(self, mesh: FreeMesh) -> dict[DimName, Array]:
        """Into how many parts every strategy cuts each dim. Shapes: (n,)."""
        return {dim: mesh.ranks(self.splits((dim,))) for dim in self.dims if dim is not None}


def strategies(s: Space, op: Operator, pin: Split | None = None) -> Strategies:
    """Every way to split an operator: whole parts only, within the operator's own limits.

    Args:
        s: the block on its mesh.
        op: one of the plain block's operators.
        pin: the one strategy that is wanted; None for all.

    Raises:
        PlannerError: there are too many (N05).
    """
    dims: tuple[DimName | None, ...] = (None, *splittable(s.plain, op))
    if pin is not None:
        choices = [tuple(dims.index(pin.get(axis)) for axis in s.mesh.names)]
    else:
        _countable(s.mesh, len(dims), f"{op.name} can be split")
        choices = list(product(range(len(dims)), repeat=len(s.mesh.sizes)))
    table = np.array(choices, dtype=np.int64)
    every = Strategies(op, dims, table)
    whole = np.ones(len(table), dtype=np.bool_)
    for dim, parts in every.parts(s.mesh).items():
        whole &= s.size(dim) % parts.astype(np.int64) == 0
    return Strategies(op, dims, table[whole])


def _countable(mesh: FreeMesh, choices: int, what: str) -> None:
    """Refuses a mesh whose axes have so many choices each that not all ways can be looked at."""
    ways = choices ** len(mesh.sizes)
    if ways <= MOST:
        return
    sizes = list(zip(mesh.names, mesh.sizes, strict=True))
    while len(sizes) > 1 and (len(sizes) > SURE or choices ** len(sizes) > MOST):
        at = min(range(len(sizes) - 1), key=lambda n: sizes[n][1] * sizes[n + 1][1])
        sizes[at : at + 2] = [(sizes[at][0], sizes[at][1] * sizes[at + 1][1])]
    fewer = ", ".join(f"{name}={size}" for name, size in sizes)
    raise PlannerError.of(
        "N05",
        f"{what} in {ways:,} ways by {len(mesh.sizes)} axes; {MOST:,} are the most that are looked at.",
        f"Join neighbouring axes, such as {fewer}.",
    )


def splittable(block: Block, op: Operator) -> tuple[DimName, ...]:
    """Dims of an operator that an axis may split, by its nature.

    What is not linear (a pass over memory, fused attention) cannot leave a sum to be finished later, so that it splits
    only what all its results have.
    """
    results = [set(block.tensors[name].dims) for name in op.writes]
    return tuple(
        dim
        for dim in op.dims
        if dim not in op.whole and (op.kind in SUMS or all(dim in r for r in results))
    )


def seconds(s: Space, original: Operator, every: Strategies) -> OperatorCost:
    """Compute time of every strategy. Shapes: (n,).

    Attention whose queries are cut runs one kernel over gathered keys, as more sequences would.
    """
    parts = every.parts(s.mesh)
    if original.kind == "attention" and "seq" in parts:
        parts["batch"] = parts["batch"] * parts.pop("seq")
    split = {dim: dim for dim in (*parts, ROWS) if dim in original.dims}
    return operator_cost(s.setting(parts), s.block, original, split)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """How an operator meets one tensor, strategy by strategy, as layouts of that tensor by number."""

    operator: int
    forward: IntArray
    """Layout that a reader needs, or that a writer leaves. Shapes: (n,)."""
    backward: IntArray
    """Layout of the gradient that a reader leaves, or that a writer needs. Shapes: (n,)."""
    saves: bool
    """Whether the operator keeps the tensor for its backward pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Stand:
    """A tensor between its writer and its readers."""

    name: str
    layouts: Conversions
    writer: Side | None
    readers: tuple[Side, ...]


def stand(
    s: Space,
    name: str,
    every: tuple[Strategies, ...],
    shared: dict[object, Conversions],
    asked: Layout | None = None,
) -> Stand:
    """All ways in which a tensor can lie, and what its writer and readers want of it.

    Args:
        s: the block on its mesh.
        name: the tensor.
        every: strategies of every operator.
        shared: conversions already worked out; tensors of equal shape share them.
        asked: a layout that is asked for; its dims may be cut although no operator cuts them.
    """
    tensor = s.plain.tensors[name]
    writer: tuple[int, list[Layout]] | None = None
    readers: list[tuple[int, list[Layout], list[Layout]]] = []
    for number, each in enumerate(every):
        if name in each.op.writes:
            writer = number, [written(tensor, each.op, cut) for cut in _single(each)]
        for use in each.op.reads:
            if use.tensor == name:
                wants, leaves = (_placed(rule, use, tensor, each) for rule in (required, gradient))
                readers.append((number, wants, leaves))
    met = [asked or {}, *(writer[1] if writer else ()), *(p for r in readers for p in r[1])]
    cut = {p.dim for layout in met for p in layout.values() if isinstance(p, Shard)}
    dims = tuple(dim for dim in tensor.dims if dim in cut)
    _countable(s.mesh, 2 + len(dims), f"{name} can lie")
    sizes, size = tuple(s.size(dim) for dim in dims), s.bytes_of(name)
    if (sizes, size) not in shared:
        shared[sizes, size] = conversions(s.mesh, dims, sizes, size)
    layouts = replace(shared[sizes, size], dims=dims)

    def lies(number: int, found: list[Layout], copies: Placement = REPLICATE) -> IntArray:
        return layouts.at(_codes(s, every[number], tensor, dims, found, copies))

    return Stand(
        name,
        layouts,
        Side(
            writer[0],
            lies(*writer),
            lies(writer[0], [_summed(p) for p in writer[1]]),
            name in every[writer[0]].op.saves,
        )
        if writer
        else None,
        tuple(
            Side(
                number,
                lies(number, wants),
                lies(number, leaves, PARTIAL),
                name in every[number].op.saves,
            )
            for number, wants, leaves in readers
        ),
    )


_ONE: AxisName = "axis"


def _single(each: Strategies) -> list[Split]:
    """What one axis may do, as strategies."""
    return [{} if dim is None else {_ONE: dim} for dim in each.dims]


def _placed(rule: Rule, use: Use, tensor: Tensor, each: Strategies) -> list[Layout]:
    return [rule(use, tensor, each.op, cut) for cut in _single(each)]


def _summed(layout: Layout) -> Layout:
    return {a: REPLICATE if isinstance(p, Partial) else p for a, p in layout.items()}


def _codes(
    s: Space,
    each: Strategies,
    tensor: Tensor,
    dims: tuple[DimName, ...],
    found: list[Layout],
    copies: Placement,
) -> IntArray:
    """Codes of a tensor's layout under every strategy, from what each choice of one axis does. Shapes: (n, axes).

    What follows another dim is cut as long as whole parts remain; over further axes the part is copied, and the
    gradients of ``copies`` are partial.
    """
    codes = np.array([_code(p.get(_ONE), dims) for p in found])[each.table]
    for follower, lead in FOLLOWS.items():
        if follower in tensor.dims and lead in each.dims and follower not in each.dims:
            led = each.splits((lead,))
            parts = np.where(led, np.array(s.mesh.sizes), 1).cumprod(axis=1)
            copied = led & np.logical_or.accumulate(s.size(follower) % parts != 0, axis=1)
            codes = np.where(copied, _code(copies, dims), codes)
    return codes


def _code(placement: Placement | None, dims: tuple[DimName, ...]) -> int:
    if isinstance(placement, Shard):
        return 2 + dims.index(placement.dim)
    return 1 if isinstance(placement, Partial) else 0
