"""How a tensor lies on a mesh: which axes cut each of its dims, outermost cut first, and over which it is a sum."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias

from planner.errors import PlannerError

StepKind: TypeAlias = Literal[
    "slice", "reduce-scatter", "all-to-all", "all-gather", "all-reduce", "zero"
]
FIRST: tuple[StepKind, ...] = (
    "slice", "zero", "reduce-scatter", "all-to-all", "all-gather", "all-reduce",
)  # fmt: skip
"""Of several steps that could be next, what costs least goes first."""
NESTED = ("dp", "cp", "tp", "edp", "etp", "ep")
"""Axes that cut one dim, outermost first. Rows of experts leave over ep first, so that it cuts innermost."""


@dataclass(frozen=True, slots=True)
class Lies:
    """How a tensor lies; axes of one rank are left out."""

    cuts: tuple[tuple[str, ...], ...]
    """For every dim the axes that cut it, outermost first: every cut is into equal, contiguous parts."""
    partial: frozenset[str] = frozenset()
    """Axes over whose ranks the tensor is a sum."""

    @property
    def axes(self) -> frozenset[str]:
        """Axes that cut it or over which it is a sum."""
        return self.partial.union(*self.cuts)

    def summed(self) -> Lies:
        """The same with its sums made."""
        return Lies(self.cuts)


@dataclass(frozen=True, slots=True)
class Step:
    """A step from one way to lie to another, over one axis or several together."""

    kind: StepKind
    axes: tuple[str, ...]
    dim: int = 0
    """The dim that the axes cut: before an all-gather or all-to-all, else after."""
    to: int = 0
    """The dim that they cut after an all-to-all."""


def lies(dims: Sequence[str], placements: Mapping[str, str], sizes: Mapping[str, int]) -> Lies:
    """A layout as a plan states it.

    Args:
        dims: of the tensor.
        placements: of every axis: ``shard(dim)``, ``replicate`` or ``partial``.
        sizes: ranks of every axis.

    >>> lies(("seq", "embed"), {"cp": "shard(seq)", "tp": "partial"}, {"cp": 2, "tp": 2})
    Lies(cuts=(('cp',), ()), partial=frozenset({'tp'}))
    """
    axes = sorted((a for a in placements if sizes[a] > 1), key=_depth)
    cut = {a: m[1] for a in axes if (m := re.fullmatch(r"shard\((\w+)\)", placements[a]))}
    return Lies(
        tuple(tuple(a for a in axes if cut.get(a) == dim) for dim in dims),
        frozenset(a for a in axes if placements[a] == "partial"),
    )


def _depth(axis: str) -> tuple[int, str]:
    return (NESTED.index(axis) if axis in NESTED else len(NESTED), axis)


def route(have: Lies, want: Lies, *, joint: bool = False) -> list[Step]:
    """The steps of :func:`walk`.

    >>> [s.kind for s in route(Lies(((), ("tp",))), Lies((("tp",), ())))]
    ['all-to-all']
    """
    return [step for step, _, _ in walk(have, want, joint=joint)]


def walk(have: Lies, want: Lies, *, joint: bool = False) -> list[tuple[Step, Lies, Lies]]:
    """The steps from one way to lie to another, each with how the tensor lies before and after it.

    A cut that others are inside of stays till they go.

    Args:
        have: how the tensor lies.
        want: how it shall lie.
        joint: axes go together where they can, as one group; else one at a time.

    Raises:
        PlannerError: there is none (W06).
    """
    found: list[tuple[Step, Lies, Lies]] = []
    while have != want:
        steps = [*_sums(have, want, joint), *_cuts(have, want, joint), *_joins(have, want, joint)]
        if not steps:
            raise PlannerError.of("W06", f"No way from {have} to {want} is known to the runtime.")
        step, after = min(steps, key=lambda s: (FIRST.index(s[0].kind), -len(s[0].axes)))
        found.append((step, have, after))
        have = after
    return found


_Steps: TypeAlias = "Iterator[tuple[Step, Lies]]"


def _sums(have: Lies, want: Lies, joint: bool) -> _Steps:
    """Sums that are made whole, and what becomes the only term of one."""
    left = sorted(have.partial - want.partial - want.axes, key=_depth)
    for axes in _some(tuple(left), joint):
        yield Step("all-reduce", axes), replace(have, partial=have.partial - set(axes))
    for axis in want.partial - have.axes:
        yield Step("zero", (axis,)), replace(have, partial=have.partial | {axis})


def _cuts(have: Lies, want: Lies, joint: bool) -> _Steps:
    """Dims that are cut further: of what is whole a slice, of a sum what is scattered."""
    for dim, cut in enumerate(want.cuts):
        kept = have.cuts[dim]
        if kept != cut[: len(kept)]:
            continue
        for count in range(len(cut) - len(kept), 0, -1):
            axes = cut[len(kept) : len(kept) + count]
            after = _with(have, dim, (*kept, *axes))
            if count > 1 and not joint:
                continue
            if set(axes) <= have.partial:
                after = replace(after, partial=have.partial - set(axes))
                yield Step("reduce-scatter", axes, dim), after
            elif count == 1 and not set(axes) & have.axes:
                yield Step("slice", axes, dim), after


def _joins(have: Lies, want: Lies, joint: bool) -> _Steps:
    """Cuts that go, or that go to another dim."""
    for dim, cut in enumerate(have.cuts):
        same = next((n for n in range(len(cut), 0, -1) if cut[:n] == want.cuts[dim][:n]), 0)
        for axes in _some(cut[same:], joint):
            left = _with(have, dim, cut[: -len(axes)])
            if cut[-len(axes) :] != axes:
                continue
            if not set(axes) & want.axes:
                yield Step("all-gather", axes, dim), left
            for to, wanted in enumerate(want.cuts):
                grown = (*have.cuts[to], *axes)
                if to != dim and wanted[: len(grown)] == grown:
                    yield Step("all-to-all", axes, dim, to), _with(left, to, grown)


def _some(axes: tuple[str, ...], joint: bool) -> list[tuple[str, ...]]:
    """All together and all tails, or one at a time."""
    return [axes[n:] for n in range(len(axes))] if joint else [(axis,) for axis in axes]


def _with(have: Lies, dim: int, cut: tuple[str, ...]) -> Lies:
    return replace(have, cuts=(*have.cuts[:dim], cut, *have.cuts[dim + 1 :]))


def part(
    cut: tuple[str, ...], sizes: Mapping[str, int], place: Mapping[str, int]
) -> tuple[int, int]:
    """Which of how many parts of a dim a rank holds.

    >>> part(("cp", "tp"), {"cp": 2, "tp": 4}, {"cp": 1, "tp": 3})
    (7, 8)
    """
    index = 0
    for axis in cut:
        index = index * sizes[axis] + place[axis]
    return index, prod(sizes[axis] for axis in cut)
