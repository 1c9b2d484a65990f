"""Tensors between operators: converted for every reader as the plan says, and their gradients back.

Readers that want the same share what is converted, and gradients that lie alike are added before they move. What an
all-gather made is not kept for the backward pass: it is gathered again there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from planner.runtime.grid import Grid, convert
from planner.runtime.lies import Lies, route


@dataclass(slots=True, eq=False)
class Held:
    """A tensor as its writer left it."""

    value: Tensor
    lies: Lies
    grid: Grid
    made: dict[Lies, Tensor] = field(default_factory=dict)
    """What it was converted to."""
    read_as: dict[tuple[Lies, Lies], Tensor] = field(default_factory=dict)

    def read(self, want: Lies, leaves: Lies, again: Again | None) -> Tensor:
        """The tensor as a reader wants it.

        Args:
            want: how it shall lie.
            leaves: how the reader leaves its gradient.
            again: where to note what can be made again.
        """
        if want == self.lies and leaves == self.lies.summed():
            return self.value
        if want not in self.made:
            self.made[want] = self._make(want, again)
        if not self.value.requires_grad:
            return self.made[want]
        if (want, leaves) not in self.read_as:
            back = (leaves, self.lies.summed(), self.grid)
            self.read_as[want, leaves] = _Read.apply(self.value, self.made[want], back)
        return self.read_as[want, leaves]

    def _make(self, want: Lies, again: Again | None) -> Tensor:
        """The tensor converted. What only gathers at the end add can be made again from what there was before them."""
        before = want
        for step in reversed(route(self.lies, want, joint=self.grid.joint)):
            if step.kind != "all-gather":
                break
            cut = (*before.cuts[step.dim], *step.axes)
            before = Lies(
                (*before.cuts[: step.dim], cut, *before.cuts[step.dim + 1 :]), want.partial
            )
        value, grid = convert(self.value.detach(), self.lies, before, self.grid), self.grid
        found = convert(value, before, want, grid)
        if again is not None and before != want:
            again.copies[found.untyped_storage()._cdata] = Copy(
                value, lambda kept: convert(kept, before, want, grid)
            )
        return found


class _Read(torch.autograd.Function):
    """What was made of a tensor, with the gradient's way back."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, value: Tensor, made: Tensor, back: tuple[Lies, Lies, Grid]
    ) -> Tensor:
        ctx.back = back
        return made.view_as(made)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        return convert(grads[0].contiguous(), *ctx.back), None, None


@dataclass(slots=True, eq=False)
class Copy:
    """Something that is made again when it is needed, once for all who kept it."""

    source: Tensor
    """What is kept instead."""
    make: Callable[[Tensor], Tensor]
    users: int = 0
    taken: int = 0
    value: Tensor | None = None

    def take(self) -> Tensor:
        """The tensor, for one of its users."""
        value = self.make(self.source) if self.value is None else self.value
        self.taken += 1
        self.value = value if self.taken % self.users else None
        return value


_Promise: TypeAlias = "tuple[Copy, torch.Size, tuple[int, ...], int]"
"""What is kept instead of a tensor: how it is made again, and its shape, strides and offset."""


@dataclass(slots=True, eq=False)
class Again:
    """What need not be kept for the backward pass, by its storage."""

    copies: dict[int, Copy] = field(default_factory=dict)

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Inside it, what operators save of such tensors is a promise to make them again."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, _unpack)

    def pack(self, tensor: Tensor) -> Tensor | _Promise:
        """What is kept of a tensor that an operator saves."""
        copy = self.copies.get(tensor.untyped_storage()._cdata)
        if copy is None:
            return tensor
        copy.users += 1
        return copy, tensor.shape, tensor.stride(), tensor.storage_offset()


def _unpack(kept: Tensor | _Promise) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    copy, shape, stride, offset = kept
    found: Tensor = copy.take().as_strided(shape, stride, offset)
    return found
