"""The strategies of all operators on the meshes of a trainer's roles: exact, for all meshes at once.

What dp, cp, ep and edp cut is what their names mean. The tensor axes, tp and in experts etp, may cut another dim than
their role says where the trainer takes a strategy for every operator: weights along any of their sides, passes over
memory along what their results have. Nodes of the problem are operators; a tensor between two of them is an edge, a
tensor with more readers a node of its own with a state for every combination of theirs, so that what readers share is
converted once, however many they are. Costs come from the functions that price the plan, what the trainer hides left
out; tables have the meshes as leading dimension.

What is compared is one micro-batch, forwards and backwards. What recompute repeats and what a step does once for all
micro-batches is priced with the plan, not in this choice; tensor axes always cut matrices, so that it hardly differs.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

import numpy as np

from planner.cost.block import block_structure, exposed_share, move_seconds
from planner.cost.operator_cost import operator_cost
from planner.cost.setting import Setting
from planner.cost.strategies import (
    Move,
    Roles,
    Structure,
    Uses,
    gradient,
    leaving,
    required,
    roles_of,
    strategy,
    stream_layout,
    tensor_moves,
    written,
)
from planner.graph.operator import FOLLOWS, PER_SEQUENCE, Block, DimName, Operator
from planner.graph.placement import AxisName, Layout, Split
from planner.search.free_axes import splittable
from planner.search.solver import eliminate
from planner.trainers.trainer import Trainer
from planner.units import Array, BoolArray, IntArray

WIDTH: tuple[DimName, ...] = ("embed",)
"""Dims that no role names and that a tensor axis may cut all the same: the sums of a row-parallel product."""
FREE: dict[str, AxisName] = {"dense": "tp", "expert": "etp"}
"""The axis of each view whose dim is free."""
Options: TypeAlias = tuple[tuple[Split, ...], ...]
"""For every operator of a block its strategies; the first is what the roles give."""


def options(trainer: Trainer, block: Block, pinned: Collection[str] = (), *, sp: bool) -> Options:
    """The strategies that a trainer can give every operator of a block.

    Args:
        trainer: only its own roles' where it does not take a strategy for every operator.
        block: one of the model's blocks.
        pinned: operators that may also leave a matrix whole on the tensor ranks, as a person may wish.
        sp: with sequence parallelism.
    """
    roles = roles_of(trainer, sp=sp)
    return tuple(
        _options(trainer, roles, block, op, whole=op.name in pinned) for op in block.operators
    )


def _options(
    trainer: Trainer, roles: Roles, block: Block, op: Operator, *, whole: bool
) -> tuple[Split, ...]:
    own = strategy(op, roles)
    if not trainer.per_operator or op.kind == "exchange":
        return (own,)
    axis = FREE[op.view]
    rest = {a: dim for a, dim in own.items() if a != axis}
    role = next(dims for a, dims, name in roles if a == axis and not name)
    found = [own, *({**rest, axis: dim} for dim in _free(block, op, role))]
    if whole or not _is_matrix(op):
        found.append(rest)
    return tuple(split for n, split in enumerate(found) if split not in found[:n])


def _is_matrix(op: Operator) -> bool:
    return op.kind in ("matmul", "lookup") and bool(op.weights)


def _free(block: Block, op: Operator, role: tuple[DimName, ...]) -> list[DimName]:
    """Dims that a tensor axis may cut: of a matrix its sides, of anything else what its results have."""
    dims = [dim for dim in (*role, *WIDTH) if dim in splittable(block, op)]
    if _is_matrix(op):
        return [dim for dim in dims if dim in block.tensors[op.weights[0]].dims]
    return [dim for dim in dims if dim != "seq" or op.kind in ("memory", "loss")]


def apart(block: Block, every: Options) -> list[list[int]]:
    """Operators that have a choice, in groups that do not share a tensor: each can be decided by itself."""
    groups: list[tuple[list[int], set[str]]] = []
    for number, (op, splits) in enumerate(zip(block.operators, every, strict=True)):
        if len(splits) == 1:
            continue
        tensors = {*op.writes, *(use.tensor for use in op.reads)}
        near = [group for group in groups if group[1] & tensors]
        groups = [group for group in groups if group not in near]
        operators = sorted([number, *(n for group in near for n in group[0])])
        groups.append((operators, tensors.union(*(group[1] for group in near))))
    return sorted(operators for operators, _ in groups)


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The cheapest strategies of some of a block's operators."""

    chosen: IntArray
    """Option of every one of them. Shapes: (n, operators)."""
    seconds: Array
    """Of one micro-batch both ways, with all that they move; inf where nothing is allowed. Shapes: (n,)."""


def cheapest(
    s: Setting,
    block: Block,
    every: Options,
    allowed: Sequence[BoolArray | None],
    some: Sequence[int] | None = None,
    *,
    sp: bool,
) -> Choices:
    """The cheapest strategies of a block's operators under every mesh of a setting.

    Args:
        s: meshes, all with or all without sequence parallelism.
        block: one of the model's blocks.
        every: what its operators may do.
        allowed: for every operator, which of its options each mesh may take, ``(n, options)``; None for all.
        some: the operators that are decided, while others do what their roles say; None for all.
        sp: whether the meshes have sequence parallelism.
    """
    some = range(len(every)) if some is None else some
    place = {operator: node for node, operator in enumerate(some)}
    stream = stream_layout(roles_of(s.task.trainer, sp=sp))
    flow = _Flow(s, block_structure(s, block, sp=sp), every, stream)
    costs = [_operator_table(s, block, block.operators[n], every[n], allowed[n]) for n in some]
    edges: list[tuple[int, int]] = []
    tables: list[Array] = []
    for name in flow.tensors(place):
        operators, combinations, moves = flow.tensor(name, place)
        table, nodes = flow.priced(moves), [place[operator] for operator in operators]
        sizes = [len(every[operator]) for operator in operators]
        if len(nodes) == 1:
            costs[nodes[0]] = costs[nodes[0]] + table
        elif len(nodes) == 2:
            edges.append((nodes[0], nodes[1]))
            tables.append(table.reshape(-1, *sizes))
        else:
            costs.append(table)
            edges += [(len(costs) - 1, node) for node in nodes]
            tables += [_agreeing(combinations[:, n], size) for n, size in enumerate(sizes)]
    found = eliminate(costs, edges, tables)
    count = len(s.sequences)
    chosen = np.broadcast_to(found.choice, (count, len(costs)))[:, : len(some)]
    return Choices(chosen, np.broadcast_to(found.value, (count,)))


def _agreeing(of_state: IntArray, size: int) -> Array:
    """0 where a combination holds an operator's option, else inf. Shapes: (combinations, options)."""
    return np.where(of_state[:, None] == np.arange(size), 0.0, np.inf)


def _operator_table(
    s: Setting, block: Block, op: Operator, splits: Sequence[Split], mask: BoolArray | None
) -> Array:
    """Compute seconds of every option; inf where dims do not divide or a pin forbids it. Shapes: (n, options)."""
    columns = []
    for split in splits:
        cost = operator_cost(s, block, op, split)
        whole = _whole(s, block, split)
        columns.append(np.where(whole, cost.forward + cost.backward, np.inf))
    table = np.stack(np.broadcast_arrays(*columns, s.sequences)[:-1], axis=1)
    return table if mask is None else np.where(mask, table, np.inf)


def _whole(s: Setting, block: Block, split: Split) -> BoolArray:
    """Whether axes cut every dim into whole parts; what follows another may be copied."""
    whole = np.ones(len(s.sequences), dtype=np.bool_)
    for dim in set(split.values()) - PER_SEQUENCE - s.task.trainer.uneven - set(FOLLOWS):
        parts = np.prod([s.degrees[a] for a, d in split.items() if d == dim], axis=0)
        whole &= block.sizes[dim] % parts == 0
    return whole


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """Tensors between the options of their writers and readers."""

    s: Setting
    form: Structure
    """Of the block under the roles."""
    every: Options
    stream: Layout
    known: dict[Hashable, Array] = field(default_factory=dict)
    """Seconds of collectives already priced: those on tensors of equal dims are the same."""

    @property
    def block(self) -> Block:
        return self.form.block

    def priced(self, moves: Sequence[tuple[Move, ...]]) -> Array:
        """Exposed seconds of every combination's collectives. Shapes: (n, combinations)."""
        distinct = list(dict.fromkeys(move for some in moves for move in some))
        if not distinct:
            return np.zeros((1, len(moves)))
        place = {move: number for number, move in enumerate(distinct)}
        count = np.zeros((len(distinct), len(moves)))
        for column, some in enumerate(moves):
            for move in some:
                count[place[move], column] += exposed_share(self.s, move)
        seconds = [self._seconds(move) for move in distinct]
        return np.stack(np.broadcast_arrays(*seconds, self.s.sequences)[:-1], axis=1) @ count

    def _seconds(self, move: Move) -> Array:
        tensor = self.block.tensors[move.tensor]
        key = (move.kind, move.axis, tensor.dims, tensor.kind, move.others)
        if key not in self.known:
            self.known[key] = move_seconds(self.s, self.form, move)
        return self.known[key]

    def tensors(self, operators: Collection[int]) -> list[str]:
        """Tensors that some operators read or write, in order."""
        block = self.block
        touched = [block.operators[n] for n in sorted(operators)]
        names = {name for op in touched for name in (*op.writes, *(u.tensor for u in op.reads))}
        return [name for name in block.tensors if name in names]

    def tensor(
        self, name: str, free: Collection[int]
    ) -> tuple[list[int], IntArray, list[tuple[Move, ...]]]:
        """The free operators at a tensor, the combinations of their options, and what each of these moves.

        Shapes: (combinations, operators) of the second; the last operator's option changes first.
        """
        block = self.block
        at = [
            number
            for number, op in enumerate(block.operators)
            if name in (*op.writes, *(use.tensor for use in op.reads))
        ]
        chosen = [number for number in at if number in free]
        combinations = list(product(*(range(len(self.every[number])) for number in chosen)))
        moves = []
        for combination in combinations:
            option = dict.fromkeys(at, 0) | dict(zip(chosen, combination, strict=True))
            splits = {number: self.every[number][k] for number, k in option.items()}
            uses = list(self._uses(name, splits))
            have = self._have(name, splits, uses)
            if name in block.outputs:
                uses.append(leaving(block, name, have, self.stream))
            moves.append(tuple(tensor_moves(block, name, have, uses)))
        return chosen, np.array(combinations, dtype=np.int64).reshape(-1, len(chosen)), moves

    def _uses(self, name: str, splits: dict[int, Split]) -> Iterator[tuple[str, Layout, Layout]]:
        tensor = self.block.tensors[name]
        for node, split in splits.items():
            op = self.block.operators[node]
            for use in op.reads:
                if use.tensor == name:
                    yield (
                        op.name,
                        required(use, tensor, op, split),
                        gradient(use, tensor, op, split),
                    )

    def _have(self, name: str, splits: dict[int, Split], uses: Uses) -> Layout:
        tensor = self.block.tensors[name]
        for node, split in splits.items():
            if name in self.block.operators[node].writes:
                return written(tensor, self.block.operators[node], split)
        return uses[0][1] if tensor.kind == "index" else self.stream
