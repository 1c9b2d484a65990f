"""Placements: what one mesh axis does to one tensor (DTensor's and GSPMD's terms)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from planner.graph.operator import DimName

AxisName: TypeAlias = str
"""Name of a mesh axis: ``dp``, ``cp``, ``tp``, ``pp``; ``edp``, ``ep``, ``etp`` in the expert view of the same
ranks; or a free name."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The axis cuts this dim of the tensor."""

    dim: DimName

    def __str__(self) -> str:
        return f"shard({self.dim})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank of the axis holds the whole tensor."""

    def __str__(self) -> str:
        return "replicate"


@dataclass(frozen=True, slots=True)
class Partial:
    """The tensor is the sum over the ranks of the axis."""

    def __str__(self) -> str:
        return "partial"


Placement: TypeAlias = Shard | Replicate | Partial
Layout: TypeAlias = Mapping[AxisName, Placement]
"""The placements of one tensor over all axes; an axis that is absent replicates."""
Split: TypeAlias = Mapping[AxisName, DimName]
"""A strategy: for one operator, the dim that each axis splits; an axis that is absent splits none."""
Chosen: TypeAlias = tuple[tuple[str, tuple[tuple[AxisName, DimName], ...]], ...]
"""Strategies of a block's operators, by name; a tuple, so that what follows from them can be cached."""

Kind: TypeAlias = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]

REPLICATE, PARTIAL = Replicate(), Partial()


def conversion(have: Placement, want: Placement) -> Kind | None:
    """The collective that turns one placement into another; None where a local slice or nothing does.

    >>> conversion(PARTIAL, Shard("seq")), conversion(Shard("seq"), Shard("heads"))
    ('reduce-scatter', 'all-to-all')
    """
    if have == want or isinstance(have, Replicate):
        return None
    if isinstance(have, Partial):
        return "reduce-scatter" if isinstance(want, Shard) else "all-reduce"
    return "all-to-all" if isinstance(want, Shard) else "all-gather"
