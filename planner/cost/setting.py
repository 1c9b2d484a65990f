"""The circumstances in which blocks are priced: a task and the degrees of many candidates at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import mul
from typing import TypeAlias

import numpy as np

from planner.candidates import Candidates
from planner.graph.operator import FOLLOWS, PER_SEQUENCE, Block, DimName, Tensor
from planner.graph.placement import AxisName, Layout, Shard, Split
from planner.hardware.mesh import members
from planner.trainers.trainer import Task
from planner.units import Array, IntArray

_Size: TypeAlias = tuple[DimName, float, tuple[AxisName, ...]]
"""A dim with its whole size, and the axes that cut it."""
EXPERT_AXES: tuple[AxisName, ...] = ("etp", "ep", "edp")
"""Expert axes, innermost first: they factor the ranks that cp, dp and tp factor too."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A task with ``n`` rows of degrees; what the cost functions of blocks look at."""

    task: Task
    rows: Candidates
    degrees: Mapping[AxisName, Array]
    members: Mapping[AxisName, IntArray]
    """For every axis, its members at each level; ``(levels, n)``."""
    sequences: Array
    """Sequences of one micro-batch on all data-parallel ranks; ``(n,)``."""
    memo: dict[_Size, Array] = field(default_factory=dict)
    """Local sizes already worked out; dims recur in most operators."""
    points: dict[tuple[float, tuple[_Size, ...]], Array] = field(default_factory=dict)
    """Products of them: tensors recur too."""
    moves: dict[tuple[object, ...], Array] = field(default_factory=dict)
    """Seconds of collectives, of which most recur as well, by their kind, axis and sizes."""

    def local(self, dim: DimName, whole: float, cut: tuple[AxisName, ...]) -> Array:
        """Size of a dim on one rank when these axes cut it.

        A followed dim is copied beyond its size; what the trainer cuts unevenly counts for the fullest rank.
        """
        key = (dim, whole, cut)
        if key not in self.memo:
            self.memo[key] = self._local(dim, whole, cut)
        return self.memo[key]

    def _local(self, dim: DimName, whole: float, cut: tuple[AxisName, ...]) -> Array:
        size = np.asarray(whole, dtype=np.float64)
        parts = prod((self.degrees[axis] for axis in cut), start=np.float64(1.0))
        if dim in FOLLOWS:
            parts = np.gcd(size.astype(np.int64), np.asarray(parts).astype(np.int64))
        if dim in self.task.trainer.uneven:
            unit = parts * (self.task.trainer.vocab_multiple if dim == "vocab" else 1)
            size = np.ceil(size / unit) * unit
        return np.asarray((size * self.sequences if dim in PER_SEQUENCE else size) / parts)

    def elements(
        self, block: Block, dims: Iterable[DimName], cut: Mapping[AxisName, DimName]
    ) -> Array:
        """Points on one rank of the space over these dims, under a strategy or a sharding; ``(n,)`` or 0-d."""
        fixed, sizes = 1.0, []
        for dim in dims:
            axes = tuple(axis for axis, name in cut.items() if name == dim)
            if not axes and dim not in PER_SEQUENCE and dim not in self.task.trainer.uneven:
                fixed *= block.sizes[dim]
            else:
                sizes.append((dim, block.sizes[dim], axes))
        key = fixed, tuple(sizes)
        if key not in self.points:
            parts = [self.local(*size) for size in sizes]
            self.points[key] = np.asarray(reduce(mul, parts) * fixed if parts else fixed)
        return self.points[key]

    def tensor_bytes(self, block: Block, tensor: Tensor, layout: Layout) -> Array:
        """Bytes of a tensor on one rank under a layout."""
        return self.elements(block, tensor.dims, shards(layout)) * self.element_bytes(tensor)

    def element_bytes(self, tensor: Tensor) -> float:
        """Bytes of one element of a tensor."""
        recipe = self.task.recipe
        if tensor.kind == "weight":
            return recipe.weight_bytes
        if tensor.kind == "frozen":
            return recipe.frozen_bytes
        fixed = {"activation": recipe.activation_bytes, "statistic": 4.0, "mask": 1.0, "index": 8.0}
        return fixed[tensor.kind]


def shards(layout: Layout) -> dict[AxisName, DimName]:
    """The sharding part of a layout: axis to dim."""
    return {axis: place.dim for axis, place in layout.items() if isinstance(place, Shard)}


def followed(dims: tuple[DimName, ...], split: Split) -> Split:
    """A strategy in the words of a tensor that has ``kv_heads`` where the operator splits ``heads``."""
    if "kv_heads" not in dims or "heads" in dims:
        return split
    return {axis: "kv_heads" if dim == "heads" else dim for axis, dim in split.items()}


def setting(task: Task, rows: Candidates) -> Setting:
    """Degrees, strides and members of every axis for these rows."""
    axes = ("dp", "cp", "tp", "pp", *EXPERT_AXES)
    return Setting(
        task=task,
        rows=rows,
        degrees={axis: rows.degree(axis).astype(np.float64) for axis in axes},
        members=axis_members(task, rows),
        sequences=(rows.micro_batch * rows.dp).astype(np.float64),
    )


def axis_members(task: Task, rows: Candidates) -> dict[AxisName, IntArray]:
    """Where every axis lies on the levels, by the row's axis order; ``(levels, n)`` each."""
    groups = task.cluster.groups
    strides = axis_strides(task, rows)
    return {axis: members(rows.degree(axis), stride, groups) for axis, stride in strides.items()}


def axis_strides(task: Task, rows: Candidates) -> dict[AxisName, IntArray]:
    """Chips from one rank of every axis to the next; ``(n,)`` each.

    The expert axes follow the same order with etp in the place of tp, ep in that of cp and edp in that of dp.
    """
    found: dict[AxisName, IntArray] = {}
    stand_in = {"tp": "etp", "cp": "ep", "dp": "edp", "pp": "pp"}
    for view in ({axis: axis for axis in stand_in}, stand_in):
        strides: dict[AxisName, IntArray] = {
            axis: np.ones(len(rows), dtype=np.int64) for axis in view.values()
        }
        for index, order in enumerate(task.trainer.orders):
            stride = np.ones(len(rows), dtype=np.int64)
            for axis in (view[name] for name in order):
                strides[axis] = np.where(rows.order == index, stride, strides[axis])
                stride = stride * rows.degree(axis)
        found = strides | found
    return found
