"""The strategies of all operators on the meshes of a trainer's roles: exact, for all meshes at once.

What dp, cp, ep and edp cut is what their names mean. The tensor axes, tp and in experts etp, may cut another dim than
their role says where the trainer takes a strategy for every operator: weights along any of their sides, passes over
memory along what their results have. Nodes of the problem are operators; a tensor between two of them is an edge, a
tensor with more readers a node of its own with a state for every combination of theirs, so that what readers share is
converted once, however many they are. Costs come from the functions that price the plan, what the trainer hides left
out; tables have the meshes as leading dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
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
    roles = roles_of(trainer.roles, sp=sp)
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
    found = [own, *({**rest, axis: dim} for dim in _free(block, op, dict(roles)[axis]))]
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


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The cheapest strategies of a block's operators."""

    options: Options
    chosen: IntArray
    """Option of every operator. Shapes: (n, operators)."""
    seconds: Array
    """Forwards and backwards of one micro-batch; inf where nothing is allowed. Shapes: (n,)."""


def cheapest(
    s: Setting, block: Block, every: Options, allowed: Sequence[BoolArray | None], *, sp: bool
) -> Choices:
    """The cheapest strategies of a block under every mesh of a setting.

    Args:
        s: meshes, all with or all without sequence parallelism.
        block: one of the model's blocks.
        every: what its operators may do.
        allowed: for every operator, which of its options each mesh may take, ``(n, options)``; None for all.
        sp: whether the meshes have sequence parallelism.
    """
    flow = _Flow(s, block, every, stream_layout(roles_of(s.task.trainer.roles, sp=sp)))
    form = block_structure(s, block, sp=sp)
    costs = [
        _operator_table(s, block, op, splits, mask)
        for op, splits, mask in zip(block.operators, every, allowed, strict=True)
    ]
    edges: list[tuple[int, int]] = []
    tables: list[Array] = []
    for name in dict.fromkeys((*block.inputs, *(n for op in block.operators for n in op.writes))):
        nodes, combinations, moves = flow.tensor(name)
        table = _priced(s, form, moves)
        sizes = [len(every[node]) for node in nodes]
        if len(nodes) == 1:
            costs[nodes[0]] = costs[nodes[0]] + table
        elif len(nodes) == 2:
            edges.append((nodes[0], nodes[1]))
            tables.append(table.reshape(-1, *sizes))
        elif nodes:
            costs.append(table)
            for place, node in enumerate(nodes):
                edges.append((len(costs) - 1, node))
                tables.append(_agreeing(combinations[:, place], sizes[place]))
    found = eliminate(costs, edges, tables)
    count = len(s.sequences)
    chosen = np.broadcast_to(found.choice, (count, len(costs)))[:, : len(every)]
    return Choices(every, chosen, np.broadcast_to(found.value, (count,)))


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


def _priced(s: Setting, form: Structure, moves: Sequence[tuple[Move, ...]]) -> Array:
    """Exposed seconds of every combination's collectives. Shapes: (n, combinations)."""
    distinct = list(dict.fromkeys(move for some in moves for move in some))
    if not distinct:
        return np.zeros((1, len(moves)))
    place = {move: number for number, move in enumerate(distinct)}
    count = np.zeros((len(distinct), len(moves)))
    for column, some in enumerate(moves):
        for move in some:
            count[place[move], column] += 1.0
    seconds = [exposed_share(s, move) * move_seconds(s, form, move) for move in distinct]
    return np.stack(np.broadcast_arrays(*seconds, s.sequences)[:-1], axis=1) @ count


@dataclass(frozen=True, slots=True, eq=False)
class _Flow:
    """Tensors between the options of their writers and readers."""

    s: Setting
    block: Block
    every: Options
    stream: Layout

    def tensor(self, name: str) -> tuple[list[int], IntArray, list[tuple[Move, ...]]]:
        """The operators at a tensor, their combinations of options, and what each combination moves.

        Shapes: (combinations, operators) of the second; the last operator's option changes first.
        """
        block = self.block
        operators = enumerate(block.operators)
        nodes = [n for n, op in operators if name in (*op.writes, *(u.tensor for u in op.reads))]
        combinations = list(product(*(range(len(self.every[node])) for node in nodes)))
        moves = []
        for combination in combinations:
            splits = {node: self.every[node][k] for node, k in zip(nodes, combination, strict=True)}
            uses = list(self._uses(name, splits))
            have = self._have(name, splits, uses)
            if name in block.outputs:
                uses.append(leaving(block, name, have, self.stream))
            moves.append(tuple(tensor_moves(block, name, have, uses)))
        return nodes, np.array(combinations, dtype=np.int64).reshape(-1, len(nodes)), moves

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
