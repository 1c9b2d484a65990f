"""Layouts and strategies in the words of others: DTensor, GSPMD and MindSpore.

What a notation cannot hold is refused (N04), with what it lacks. Axes that cut one dim cut it in the order of the mesh,
outermost first; DTensor and GSPMD mean the same by that order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from planner.errors import PlannerError, listed
from planner.graph.operator import FOLLOWS, DimName
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

Spec: TypeAlias = tuple[AxisName | tuple[AxisName, ...] | None, ...]
"""A GSPMD partition spec: for every dim of a tensor the axis that cuts it, several, or None."""
Parts: TypeAlias = tuple[tuple[int, ...], ...]
"""A MindSpore operator strategy: for every input, into how many parts each of its dims is cut."""

_SHARD = re.compile(r"^Shard\((?:dim=)?(-?\d+)\)$")
_PARTIAL = re.compile(r"^(?:_?Partial)\((?:'?(?:reduce_op=)?'?sum'?)?\)$")


def to_dtensor(
    layout: Layout, dims: Sequence[DimName], axes: Sequence[AxisName]
) -> tuple[str, ...]:
    """A layout as DTensor's placements, one an axis of the mesh.

    Args:
        layout: the placements by name.
        dims: the tensor's dims in order.
        axes: the mesh's axes, outermost first.

    >>> to_dtensor({"tp": Shard("embed"), "cp": PARTIAL}, ("batch", "seq", "embed"), ("dp", "cp", "tp"))
    ('Replicate()', 'Partial()', 'Shard(2)')
    """
    _known(layout, dims, axes)
    return tuple(_dtensor(layout.get(axis, REPLICATE), dims) for axis in axes)


def _dtensor(placement: Placement, dims: Sequence[DimName]) -> str:
    if isinstance(placement, Shard):
        return f"Shard({dims.index(placement.dim)})"
    return "Partial()" if isinstance(placement, Partial) else "Replicate()"


def from_dtensor(
    placements: Sequence[object], dims: Sequence[DimName], axes: Sequence[AxisName]
) -> Layout:
    """DTensor's placements (or their text) as a layout.

    >>> from_dtensor(("Replicate()", "Shard(dim=-1)"), ("seq", "embed"), ("dp", "tp"))
    {'dp': Replicate(), 'tp': Shard(dim='embed')}
    """
    if len(placements) != len(axes):
        raise _refused(
            "DTensor",
            f"{len(placements)} placements stand for the {len(axes)} axes of {listed(axes, 'and')}",
        )
    return {
        axis: _read(str(text).replace(" ", ""), dims)
        for axis, text in zip(axes, placements, strict=True)
    }


def _read(text: str, dims: Sequence[DimName]) -> Placement:
    if text in ("Replicate()", "R"):
        return REPLICATE
    if _PARTIAL.match(text) or text == "P":
        return PARTIAL
    match = _SHARD.match(text)
    if match is None:
        raise _refused("DTensor", f"{text} is neither Shard(n), Replicate() nor a sum's Partial()")
    number = int(match[1])
    if not -len(dims) <= number < len(dims):
        raise _refused("DTensor", f"{text} cuts a tensor that has only {listed(dims, 'and')}")
    return Shard(dims[number])


def to_partition_spec(layout: Layout, dims: Sequence[DimName], axes: Sequence[AxisName]) -> Spec:
    """A layout as a GSPMD partition spec; partial sums have no place in one.

    >>> to_partition_spec({"dp": Shard("batch"), "tp": Shard("batch")}, ("batch", "embed"), ("dp", "tp"))
    (('dp', 'tp'), None)
    """
    _known(layout, dims, axes)
    for axis, placement in layout.items():
        if isinstance(placement, Partial):
            raise _refused("A partition spec", f"the tensor is partial over {axis}")
    cuts = [tuple(axis for axis in axes if layout.get(axis) == Shard(dim)) for dim in dims]
    return tuple((cut[0] if len(cut) == 1 else cut) if cut else None for cut in cuts)


def from_partition_spec(
    spec: Sequence[AxisName | Sequence[AxisName] | None],
    dims: Sequence[DimName],
    axes: Sequence[AxisName],
) -> Layout:
    """A GSPMD partition spec as a layout; trailing dims may be left out.

    >>> from_partition_spec((None, "tp"), ("seq", "embed", "pair"), ("dp", "tp"))
    {'dp': Replicate(), 'tp': Shard(dim='embed')}
    """
    if len(spec) > len(dims):
        raise _refused("A partition spec", f"the tensor has only {listed(dims, 'and')}")
    layout: dict[AxisName, Placement] = dict.fromkeys(axes, REPLICATE)
    for dim, entry in zip(dims, spec, strict=False):
        cut = (entry,) if isinstance(entry, str) else tuple(entry or ())
        unknown = [axis for axis in cut if axis not in layout]
        if unknown:
            raise _refused("A partition spec", f"the mesh has no axis {listed(unknown)}")
        if list(cut) != [axis for axis in axes if axis in cut]:
            turned = f"{dim} is cut by {listed(cut, 'then')}, which stand in another order"
            raise _refused("A layout", f"{turned} in the mesh")
        for axis in cut:
            if layout[axis] != REPLICATE:
                raise _refused("A partition spec", f"{axis} cuts two dims")
            layout[axis] = Shard(dim)
    return layout


def to_mindspore(
    split: Split, inputs: Sequence[Sequence[DimName]], sizes: Mapping[AxisName, int]
) -> Parts:
    """A strategy as MindSpore writes it: parts of every dim of every input.

    Args:
        split: the dim that each axis splits.
        inputs: dims of every input (weights too) in the operator's words.
        sizes: sizes of the axes.

    Raises:
        PlannerError: an axis splits a dim that no input has, or reading it back would give another strategy.

    >>> to_mindspore({"dp": "batch", "tp": "ffn"}, (("batch", "embed"), ("embed", "ffn")), {"dp": 2, "tp": 4})
    ((2, 1), (1, 4))
    """
    for axis, dim in split.items():
        if axis not in sizes:
            raise _refused("A MindSpore strategy", f"the mesh has no axis {axis}")
        if not any(dim in _leads(name) for dims in inputs for name in dims):
            raise _refused("A MindSpore strategy", f"{axis} splits {dim}, which no input has")
    written = _parts(split, inputs, sizes)
    if from_mindspore(written, inputs, sizes) != dict(split):
        raise _refused("A MindSpore strategy", f"{written} would be read as another")
    return written


def from_mindspore(
    parts: Sequence[Sequence[int]],
    inputs: Sequence[Sequence[DimName]],
    sizes: Mapping[AxisName, int],
) -> Split:
    """A MindSpore strategy as the dim that each axis splits.

    Raises:
        PlannerError: no choice of axes gives these parts, or several do.

    >>> from_mindspore(((2, 4), (4, 1)), (("batch", "embed"), ("embed", "ffn")), {"a": 2, "b": 4})
    {'a': 'batch', 'b': 'embed'}
    """
    given = tuple(tuple(part) for part in parts)
    if [len(part) for part in given] != [len(dims) for dims in inputs]:
        shape = tuple(tuple(dims) for dims in inputs)
        raise _refused("A MindSpore strategy", f"{given} does not fit inputs with dims {shape}")
    dims = list(dict.fromkeys(lead for names in inputs for name in names for lead in _leads(name)))
    # an axis of one rank cuts nothing, and so stands for no dim
    free = [axis for axis, size in sizes.items() if size > 1]
    found = []
    for chosen in product([None, *dims], repeat=len(free)):
        split = {a: d for a, d in zip(free, chosen, strict=True) if d is not None}
        if _parts(split, inputs, sizes) == given:
            found.append(split)
    mesh = listed([f"{axis} = {size}" for axis, size in sizes.items()], "and")
    if not found:
        raise _refused("A MindSpore strategy", f"no choice of the axes {mesh} gives {given}")
    if len(found) > 1:
        raise _refused("A MindSpore strategy", f"{given} leaves open which of {mesh} splits what")
    return found[0]


def _leads(name: DimName) -> tuple[DimName, ...]:
    """Dims of an operator whose split cuts an input's dim: itself, or what it follows."""
    return (name, FOLLOWS[name]) if name in FOLLOWS else (name,)


def _parts(
    split: Split, inputs: Sequence[Sequence[DimName]], sizes: Mapping[AxisName, int]
) -> Parts:
    return tuple(
        tuple(prod(sizes[a] for a, dim in split.items() if dim in _leads(name)) for name in dims)
        for dims in inputs
    )


def _known(layout: Layout, dims: Sequence[DimName], axes: Sequence[AxisName]) -> None:
    """Refuses axes that the mesh lacks and dims that the tensor lacks."""
    for axis, placement in layout.items():
        if axis not in axes:
            raise _refused("The mesh", f"it has no axis {axis}, only {listed(axes, 'and')}")
        if isinstance(placement, Shard) and placement.dim not in dims:
            raise _refused(
                "The tensor", f"it has no dim {placement.dim}, only {listed(dims, 'and')}"
            )


def _refused(notation: str, why: str) -> PlannerError:
    return PlannerError.of("N04", f"{notation} cannot hold this: {why}.")
