"""Blocks priced once for every distinct combination of the degrees that they depend on.

Many candidates differ only in dp, pp, sharding or recompute: what a block costs is then the same. The table has a row
for each distinct combination (``keys``) and a column for each distinct block; candidates point into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.candidates import RECOMPUTE, Candidates, distinct
from planner.cost.block import FAMILIES, BlockCost, block_cost, head_logits
from planner.cost.partition import distinct_blocks
from planner.cost.setting import Setting, setting
from planner.graph.builder import SOURCE, STREAM
from planner.graph.operator import SOURCE_DIMS, Block, DimName
from planner.graph.placement import AxisName
from planner.trainers.trainer import Task
from planner.units import Array, IntArray

KEY_COLUMNS = ("sp", "tp", "cp", "ep", "etp", "micro_batch", "operators")
"""What a block's cost depends on: neither dp nor pp, since a rank's share of a micro-batch is the same."""


@dataclass(frozen=True, eq=False)
class BlockTable:
    """Costs of one block on one rank for one micro-batch; arrays ``(keys, blocks)`` unless said otherwise."""

    forward: Array
    """Seconds of compute."""
    backward: Array
    weight: Array
    """The part of the backward seconds in which gradients of weights are made."""
    exposed: Array
    """Seconds of exposed communication; ``(families, 2, keys, blocks)``, forward then backward."""
    hidden: Array
    """Seconds of hidden communication; same shape."""
    recompute: Array
    """Extra seconds backwards; ``(modes, keys, blocks)``, as in ``RECOMPUTE``."""
    saved: Array
    """Bytes; ``(modes, keys, blocks)``."""
    working: Array
    """Bytes; ``(modes, keys, blocks)``."""
    kept: Array
    """Bytes of ``saved`` and of gradients that gradients of weights need."""
    dense: Array
    """Elements of weights on the rank that train."""
    expert: Array
    frozen: Array
    """Elements of weights that do not, dense and of experts; ``(2, keys, blocks)``."""
    tied: Array
    """Elements of tables that the embedding has too, among ``dense`` and among ``frozen``; ``(2, keys, blocks)``."""
    matrices: Array
    stream: Array
    """Bytes of the residual stream on one rank; ``(keys,)``."""
    logits: Array
    """Logits on one rank (elements); ``(keys,)``."""

    @cached_property
    def total_forward(self) -> Array:
        """Seconds forwards with exposed communication."""
        return np.asarray(self.forward + self.exposed[:, 0].sum(axis=0))

    @cached_property
    def total_backward(self) -> Array:
        """Seconds backwards with exposed communication and recompute; ``(modes, keys, blocks)``."""
        return np.asarray(self.backward + self.exposed[:, 1].sum(axis=0) + self.recompute)


def block_table(task: Task, rows: Candidates) -> tuple[BlockTable, IntArray]:
    """Price all distinct blocks for all rows.

    Returns:
        The table, and for every row of ``rows`` its row in the table.
    """
    first, index = distinct(
        [getattr(rows, name).astype(np.int64, copy=False) for name in KEY_COLUMNS]
    )
    if not len(rows):
        return _part(setting(task, rows), sp=False), index
    alike, group = distinct([rows.operators[first], rows.sp[first].astype(np.int64)])
    members = [np.flatnonzero(group == number) for number in range(len(alike))]
    parts = [
        _part(setting(task, rows.take(first[some])), sp=bool(rows.sp[first[some[0]]]))
        for some in members
    ]
    if len(parts) == 1:
        return parts[0], index
    order = np.argsort(np.concatenate(members), kind="stable")
    merged = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=axis).take(order, axis)
        for name, axis in KEY_AXIS.items()
    }
    return BlockTable(**merged), index


def with_rows(
    task: Task, rows: Candidates, known: tuple[BlockTable, IntArray], more: Candidates
) -> tuple[BlockTable, IntArray]:
    """A table that holds the blocks of more candidates, too.

    Args:
        task: the question.
        rows: the candidates that it is of.
        known: the table, and for every row of ``rows`` its row there, which stays.
        more: the others.

    Returns:
        The table, and for every row of ``more`` its row there.
    """
    table, key = known
    place = np.full(len(table.stream), -1)
    place[key] = np.arange(len(rows))
    used = np.flatnonzero(place >= 0)
    first, index = distinct([getattr(more, name).astype(np.int64) for name in KEY_COLUMNS])
    pairs = ((getattr(rows, n)[place[used]], getattr(more, n)[first]) for n in KEY_COLUMNS)
    met, same = distinct([np.concatenate(pair).astype(np.int64) for pair in pairs])
    found = met[same[len(used) :]]
    new = found >= len(used)
    number = np.append(used, 0)[np.where(new, -1, found)]
    if new.any():
        added, where = block_table(task, more.take(first[new]))
        number[new] = len(table.stream) + where
        both = {
            name: np.concatenate([getattr(part, name) for part in (table, added)], axis)
            for name, axis in KEY_AXIS.items()
        }
        table = BlockTable(**both)
    return table, number[index]


KEY_AXIS = {
    "forward": 0,
    "backward": 0,
    "weight": 0,
    "kept": 0,
    "exposed": 2,
    "hidden": 2,
    "recompute": 1,
    "saved": 1,
    "working": 1,
    "dense": 0,
    "expert": 0,
    "frozen": 1,
    "tied": 1,
    "matrices": 0,
    "stream": 0,
    "logits": 0,
}
"""Which array axis of each field runs over the keys."""


def _part(s: Setting, *, sp: bool) -> BlockTable:
    model = s.task.model
    blocks = distinct_blocks(model)
    costs = [block_cost(s, block, sp=sp) for block in blocks]
    cut = {"dp": "batch", "cp": "seq"} | ({"tp": "seq"} if sp else {})
    logits = sum(head_logits(s, block, sp=sp) for block in (*model.mtp, model.head))
    return BlockTable(
        forward=_columns([c.forward for c in costs]),
        backward=_columns([c.backward for c in costs]),
        weight=_columns([c.weight for c in costs]),
        kept=_columns([c.kept for c in costs]),
        exposed=_traffic(costs, "exposed"),
        hidden=_traffic(costs, "hidden"),
        recompute=_modes(costs, "recompute"),
        saved=_modes(costs, "saved"),
        working=_modes(costs, "working"),
        dense=_columns([c.dense for c in costs]),
        expert=_columns([c.expert for c in costs]),
        frozen=np.stack([_columns([c.frozen[kind] for c in costs]) for kind in (0, 1)]),
        tied=np.stack([_columns([c.tied[kind] for c in costs]) for kind in (0, 1)]),
        matrices=_columns([c.matrices for c in costs]),
        stream=_stream(s, cut) * s.task.recipe.activation_bytes,
        logits=np.asarray(logits, dtype=np.float64),
    )


def _stream(s: Setting, cut: Mapping[AxisName, DimName]) -> Array:
    """Elements that one layer hands to the next; of the largest where layers differ in width or length.

    A layer that reads what an encoder made hands that on with its own.
    """
    first, *others = s.task.model.blocks
    whole = [
        tuple(b.sizes.get(dim) for dim in ("seq", "embed", "source")) for b in (first, *others)
    ]
    found = _handed(s, first, cut)
    for block, sizes in zip(others, whole[1:], strict=True):
        if sizes != whole[0]:
            found = np.maximum(found, _handed(s, block, cut))
    return found


def _handed(s: Setting, block: Block, cut: Mapping[AxisName, DimName]) -> Array:
    own = s.elements(block, STREAM, cut)
    if "source" not in block.sizes:
        return own
    along = {axis: SOURCE_DIMS.get(dim, dim) for axis, dim in cut.items()}
    return own + s.elements(block, SOURCE, along)


def _columns(values: list[Array]) -> Array:
    return np.stack(np.broadcast_arrays(*values), axis=1)


def _modes(costs: list[BlockCost], field: str) -> Array:
    """Stack by recompute mode; a mode that the trainer lacks is priced as none and removed by a rule."""
    return np.stack(
        [
            _columns([getattr(c, field).get(mode, getattr(c, field)["none"]) for c in costs])
            for mode in RECOMPUTE
        ]
    )


def _traffic(costs: list[BlockCost], prefix: str) -> Array:
    return np.stack(
        [
            np.stack(
                [
                    _columns([getattr(c.traffic[family], f"{prefix}_{phase}") for c in costs])
                    for phase in ("forward", "backward")
                ]
            )
            for family in FAMILIES
        ]
    )
