"""The ranks of a plan as a mesh: where this one stands, and what it does together with the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from planner.runtime.lies import Lies, Step, part, route


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """One rank among all."""

    sizes: Mapping[str, int]
    """Ranks of every axis."""
    place: Mapping[str, int]
    """Where this rank stands on every axis."""
    groups: Mapping[tuple[str, ...], dist.ProcessGroup]
    """The ranks that differ from this one in these axes alone; axes of more than one rank."""
    joint: bool = False
    """Several axes work together as one group where they can."""

    def names(self) -> dict[str, str]:
        """Axes by the names of their groups."""
        return {group.group_name: "+".join(axes) for axes, group in self.groups.items()}


ALONE = ("pp", "dp", "cp", "tp", "edp", "ep", "etp")


def alone(axes: Sequence[str] = ALONE) -> Grid:
    """One rank that holds everything."""
    return Grid(dict.fromkeys(axes, 1), dict.fromkeys(axes, 0), {})


def grid(*views: tuple[Sequence[str], Tensor], joint: bool = False) -> Grid:
    """A rank's place in one or more views of all ranks: their axes, and the ranks by their place on them.

    Every axis has groups of its own, also where another has the same ranks, so that what is sent can be told apart;
    with ``joint`` every set of axes too.
    """
    sizes: dict[str, int] = {}
    place: dict[str, int] = {}
    groups: dict[tuple[str, ...], dist.ProcessGroup] = {}
    for axes, ranks in views:
        here = (ranks == dist.get_rank()).nonzero()[0].tolist()
        sizes |= dict(zip(axes, ranks.shape, strict=True))
        place |= dict(zip(axes, here, strict=True))
        wide = [axis for axis in axes if sizes[axis] > 1]
        for some in chain.from_iterable(
            combinations(wide, n) for n in range(1, (len(wide) if joint else 1) + 1)
        ):
            dims = [axes.index(axis) for axis in some]
            rows = ranks.movedim(dims, list(range(-len(dims), 0))).flatten(-len(dims))
            rows = rows.reshape(-1, rows.shape[-1]).tolist()
            made = [dist.new_group(row) for row in rows]
            mine = next(n for n, row in enumerate(rows) if dist.get_rank() in row)
            groups[some] = made[mine]
    return Grid(sizes, place, groups, joint)


def local(whole: Tensor, lies: Lies, grid: Grid) -> Tensor:
    """This rank's part of a tensor."""
    for dim, cut in enumerate(lies.cuts):
        index, count = part(cut, grid.sizes, grid.place)
        if count > 1:
            size = whole.shape[dim] // count
            whole = whole.narrow(dim, index * size, size)
    return whole


def positions(size: int, cut: tuple[str, ...], grid: Grid) -> range:
    """Which positions of a dim of some size this rank holds."""
    index, count = part(cut, grid.sizes, grid.place)
    return range(index * size // count, (index + 1) * size // count)


def convert(value: Tensor, have: Lies, want: Lies, grid: Grid) -> Tensor:
    """A tensor that lies one way, brought to lie another way. Not seen by autograd."""
    for step in route(have, want, joint=grid.joint):
        value = _taken(step, value, grid)
    return value


def _taken(step: Step, value: Tensor, grid: Grid) -> Tensor:
    """The tensor after one step: one collective, or a local cut."""
    index, count = part(step.axes, grid.sizes, grid.place)
    if step.kind == "slice":
        return value.chunk(count, step.dim)[index].contiguous()
    if step.kind == "zero":
        return value if index == 0 else torch.zeros_like(value)
    group = grid.groups[step.axes]
    if step.kind == "all-reduce":
        value = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(value, group=group)
        return value
    if step.kind == "all-gather":
        found = value.new_empty((count * value.shape[0], *value.shape[1:]))
        dist.all_gather_into_tensor(found, value.contiguous(), group=group)
        return found if step.dim == 0 else torch.cat(found.chunk(count, 0), step.dim)
    to = step.to if step.kind == "all-to-all" else step.dim
    parts = value.chunk(count, to)
    sent = torch.cat(parts, 0)
    if step.kind == "reduce-scatter":
        found = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter_tensor(found, sent, group=group)
        return found
    found = torch.empty_like(sent)
    dist.all_to_all_single(found, sent, group=group)
    return torch.cat(found.chunk(count, 0), step.dim)


def ranks_of(sizes: Mapping[str, int], order: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """All ranks by their place on the wanted axes, where ranks are counted with the last of ``order`` innermost.

    Shapes: one dim for every wanted axis.
    """
    ranks = torch.arange(prod(sizes[axis] for axis in order)).reshape(*(sizes[a] for a in order))
    return ranks.permute(*(order.index(axis) for axis in wanted)).contiguous()
