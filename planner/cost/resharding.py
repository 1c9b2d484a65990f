"""What it costs to bring a tensor from any layout to any other on a mesh of several axes.

Layouts are states, collectives are steps between them, and a conversion is the cheapest path: which axes go first and
which go together, a gather over the slow axis of what the fast one cut before, all come out of that. Axes that cut one
dim cut it one inside the other, in the order of the mesh; a step adds or takes the innermost cuts, and a *permute*
sends blocks where they belong when cuts are nested in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from math import gcd, prod
from typing import Literal, TypeAlias

import numpy as np

from planner.cost.collectives import collective, send
from planner.graph.operator import DimName
from planner.graph.placement import (
    PARTIAL,
    REPLICATE,
    AxisName,
    Kind,
    Layout,
    Partial,
    Placement,
    Shard,
)
from planner.hardware.cluster import Cluster
from planner.hardware.mesh import members
from planner.units import Array, BoolArray, IntArray

StepKind: TypeAlias = Kind | Literal["permute", "slice"]
"""A collective, a send of blocks to their places, or a local cut that moves nothing."""
State: TypeAlias = tuple[tuple[int, ...], ...]
"""For every dim the axes that cut it, outermost cut first; last, the axes over which the tensor is partial."""


@dataclass(frozen=True, slots=True, eq=False)
class FreeMesh:
    """Axes whose roles are not fixed: names, sizes and where they lie on the cluster's levels."""

    names: tuple[AxisName, ...]
    """Outermost first: ranks next to each other along the last axis stand closest."""
    sizes: tuple[int, ...]
    members: IntArray
    """How every axis spreads over the levels (:func:`planner.hardware.mesh.members`). Shapes: (levels, axes)."""
    cluster: Cluster

    def joint(self, axes: BoolArray) -> IntArray:
        """How several axes together spread over the levels. Shapes: (n, axes) -> (levels, n)."""
        return np.asarray(np.where(axes, self.members[:, None, :], 1).prod(axis=2))

    def ranks(self, axes: BoolArray) -> Array:
        """Ranks of groups of axes. Shapes: (n, axes) -> (n,)."""
        return np.asarray(np.where(axes, np.array(self.sizes, dtype=np.float64), 1.0).prod(axis=1))


def free_mesh(cluster: Cluster, sizes: Mapping[AxisName, int]) -> FreeMesh:
    """A mesh of these axes, outermost first, on consecutive chips."""
    counts = tuple(sizes.values())
    strides = tuple(prod(counts[index + 1 :]) for index in range(len(counts)))
    spread = members(np.array(counts), np.array(strides), cluster.groups)
    return FreeMesh(tuple(sizes), counts, spread, cluster)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a conversion."""

    kind: StepKind
    axes: tuple[AxisName, ...]
    size: float
    """Bytes as nccl-tests counts them; of a permute or slice, those of one rank's block."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Graph:
    """States of a tensor and the steps between them, as far as they do not depend on bytes."""

    states: tuple[State, ...]
    codes: dict[tuple[int, ...], int]
    """State of every layout: for each axis 0 (replicated), 1 (partial) or 2 + dim."""
    steps: Mapping[StepKind, tuple[IntArray, IntArray, BoolArray]]
    """Of every kind, sources, targets and the axes that take part. Shapes: (n,), (n,), (n, axes)."""
    share: Array
    """Share of the tensor on one rank in every state."""


@dataclass(frozen=True, slots=True, eq=False)
class Conversions:
    """Conversions between all layouts of one tensor."""

    mesh: FreeMesh
    dims: tuple[DimName, ...]
    """Dims that layouts may cut."""
    size: float
    """Bytes of the whole tensor."""
    graph: _Graph
    layouts: tuple[tuple[int, ...], ...]
    """Every possible layout as codes an axis: 0 replicated, 1 partial, 2 + dim."""
    seconds: Array
    """Cheapest conversion. Shapes: (states, states); the layouts are the first states."""
    index: IntArray
    """Layout of a number with one digit an axis in base ``2 + dims``, -1 where the tensor cannot lie like that."""

    @property
    def local(self) -> Array:
        """Bytes on one rank under every layout. Shapes: (layouts,)."""
        return self.size * self.graph.share[: len(self.layouts)]

    def at(self, codes: IntArray) -> IntArray:
        """Numbers of layouts given as codes; -1 where impossible. Shapes: (n, axes) -> (n,)."""
        base = 2 + len(self.dims)
        return np.asarray(self.index[codes @ (base ** np.arange(codes.shape[1], dtype=np.int64))])

    def placements(self, layout: int) -> Layout:
        """A layout by number, in names."""
        return {
            name: _placement(code, self.dims)
            for name, code in zip(self.mesh.names, self.layouts[layout], strict=True)
        }

    def number(self, layout: Layout) -> int:
        """Number of a layout in names, -1 where impossible."""
        cut = {place.dim for place in layout.values() if isinstance(place, Shard)}
        if not cut <= set(self.dims) or not set(layout) <= set(self.mesh.names):
            return -1
        codes = [_code(layout.get(name, REPLICATE), self.dims) for name in self.mesh.names]
        return int(self.at(np.array([codes], dtype=np.int64))[0])

    def path(self, have: int, want: int) -> tuple[Step, ...]:
        """The steps of the cheapest conversion from one layout to another, slices left out."""
        names, found = self.mesh.names, []
        direct = _direct(self.mesh, self.graph, self.size)
        while have != want:
            rest = direct[have] + self.seconds[:, want]
            rest[have] = np.inf
            straight = direct[have, want] <= self.seconds[have, want] * (1 + 1e-12)
            after = want if straight else int(np.argmin(rest))
            kind, axes = _joining(self.graph, have, after)
            if kind != "slice":
                size = float(_bytes(kind, self.local_share(have), self.mesh.ranks(axes))[0])
                group = tuple(name for name, on in zip(names, axes[0], strict=True) if on)
                found.append(Step(kind, group, size, float(direct[have, after])))
            have = after
        return tuple(found)

    def local_share(self, state: int) -> float:
        """Bytes on one rank in any state."""
        return self.size * float(self.graph.share[state])


def conversions(
    mesh: FreeMesh, dims: tuple[DimName, ...], sizes: tuple[int, ...], size: float
) -> Conversions:
    """All conversions of a tensor on a mesh.

    Args:
        mesh: the axes.
        dims: dims that its layouts may cut.
        sizes: their sizes; only whole parts are allowed.
        size: bytes of the whole tensor.

    Units: bytes in, seconds out.
    """
    whole = prod(mesh.sizes)
    graph = _graph(mesh.sizes, tuple(gcd(n, whole) for n in sizes))
    seconds = _direct(mesh, graph, size)
    np.fill_diagonal(seconds, 0.0)
    through = np.empty_like(seconds)
    for middle in range(len(seconds)):
        np.add(seconds[:, middle, None], seconds[middle], out=through)
        np.minimum(seconds, through, out=seconds)
    base = 2 + len(dims)
    index = np.full(base ** len(mesh.sizes), -1, dtype=np.int64)
    for codes, number in graph.codes.items():
        index[sum(code * base**axis for axis, code in enumerate(codes))] = number
    return Conversions(mesh, dims, size, graph, tuple(graph.codes), seconds, index)


def _direct(mesh: FreeMesh, graph: _Graph, size: float) -> Array:
    """Seconds of every single step; inf where none joins two states."""
    count = len(graph.states)
    seconds = np.full((count, count), np.inf)
    for kind, (source, target, axes) in graph.steps.items():
        moved = _bytes(kind, size * graph.share[source], mesh.ranks(axes))
        if kind == "slice":
            taken = np.zeros(len(source))
        elif kind == "permute":
            taken = send(moved, mesh.joint(axes), mesh.cluster)
        else:
            taken = collective(kind, moved, mesh.joint(axes), mesh.cluster)
        seconds[source, target] = taken
    return seconds


def _joining(graph: _Graph, have: int, after: int) -> tuple[StepKind, BoolArray]:
    """The step that leads from one state to another, with its axes. Shapes: (1, axes)."""
    return next(
        (kind, axes[here])
        for kind, (source, target, axes) in graph.steps.items()
        if (here := (source == have) & (target == after)).any()
    )


def _bytes(kind: StepKind, local: Array | float, ranks: Array) -> Array:
    return np.asarray(local * (ranks if kind == "all-gather" else np.ones_like(ranks)))


@lru_cache(maxsize=256)
def _graph(axes: tuple[int, ...], sizes: tuple[int, ...]) -> _Graph:
    codes: dict[tuple[int, ...], int] = {}
    states: dict[State, int] = {}
    for layout in product(range(2 + len(sizes)), repeat=len(axes)):
        state = _state(layout, len(sizes))
        if all(n % _cut(cut, axes) == 0 for n, cut in zip(sizes, state, strict=False)):
            codes[layout] = states[state] = len(states)
    for state in tuple(states):
        for turned in product(*(permutations(cut) for cut in state[:-1])):
            states.setdefault((*turned, state[-1]), len(states))
    steps: dict[StepKind, list[tuple[int, int, list[bool]]]] = {}
    for state, number in states.items():
        for kind, over, after in _steps(state, len(axes)):
            if after in states:
                part = [axis in over for axis in range(len(axes))]
                steps.setdefault(kind, []).append((number, states[after], part))
    share = [1.0 / prod(_cut(cut, axes) for cut in state[:-1]) for state in states]
    return _Graph(
        states=tuple(states),
        codes=codes,
        steps={kind: _columns(found) for kind, found in steps.items()},
        share=np.array(share),
    )


def _columns(found: list[tuple[int, int, list[bool]]]) -> tuple[IntArray, IntArray, BoolArray]:
    source, target, axes = zip(*found, strict=True)
    return np.array(source), np.array(target), np.array(axes)


def _cut(cut: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return prod(axes[axis] for axis in cut)


def _state(layout: tuple[int, ...], dims: int) -> State:
    cuts = [tuple(a for a, code in enumerate(layout) if code == 2 + dim) for dim in range(dims)]
    return (*cuts, tuple(a for a, code in enumerate(layout) if code == 1))


def _steps(state: State, axes: int) -> Iterator[tuple[StepKind, tuple[int, ...], State]]:
    """Every step that leaves a state: over one axis, or over several as one group."""
    *cuts, partial = state
    used = {axis for cut in state for axis in cut}
    for axis in set(range(axes)) - used:
        yield "slice", (axis,), (*cuts, tuple(sorted((*partial, axis))))
        for after in _onto(cuts, (axis,)):
            yield "slice", (axis,), (*after, partial)
    for some in chain.from_iterable(combinations(partial, n + 1) for n in range(len(partial))):
        rest = tuple(axis for axis in partial if axis not in some)
        yield "all-reduce", some, (*cuts, rest)
        for after in _onto(cuts, some):
            yield "reduce-scatter", some, (*after, rest)
    for dim, cut in enumerate(cuts):
        for outer in range(len(cut)):
            without = [*cuts[:dim], cut[:outer], *cuts[dim + 1 :]]
            yield "all-gather", cut[outer:], (*without, partial)
            for after in _onto(without, cut[outer:], but=dim):
                yield "all-to-all", cut[outer:], (*after, partial)
        for turned in permutations(cut):
            if turned != cut:
                yield "permute", cut, (*cuts[:dim], turned, *cuts[dim + 1 :], partial)


def _onto(cuts: list[tuple[int, ...]], axes: tuple[int, ...], but: int = -1) -> Iterator[State]:
    """The cuts with these axes cutting one dim more, innermost."""
    for dim, cut in enumerate(cuts):
        if dim != but:
            yield (*cuts[:dim], (*cut, *axes), *cuts[dim + 1 :])


def _placement(code: int, dims: tuple[DimName, ...]) -> Placement:
    return (REPLICATE, PARTIAL)[code] if code < 2 else Shard(dims[code - 2])


def _code(placement: Placement, dims: tuple[DimName, ...]) -> int:
    if isinstance(placement, Shard):
        return 2 + dims.index(placement.dim)
    return 1 if isinstance(placement, Partial) else 0
