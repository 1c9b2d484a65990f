"""Tensors between operators: converted for every reader as the plan says, and their gradients back.

Readers that want the same share what is converted, and gradients that lie alike are added before they move. What an
all-gather made is not kept for the backward pass: it is gathered again there, and what a recomputed operator made
comes from its inputs again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from planner.runtime.grid import Grid, convert
from planner.runtime.lies import Lies, walk


@dataclass(slots=True, eq=False)
class Held:
    """A tensor as its writer left it."""

    value: Tensor
    lies: Lies
    grid: Grid
    gathers_again: bool = True
    """What gathers add to it is not kept, but gathered once more."""
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
        """The tensor converted.

        What gathers at the end add can be made again from what was there before them; what was exchanged or reduced is
        kept, also where the tensor itself will be made again.
        """
        before = want
        light = {"all-gather"} if self.gathers_again else set()
        light |= {"slice"} if again and again.makes(self.value) else set()
        for step, earlier, _ in reversed(walk(self.lies, want, joint=self.grid.joint)):
            if step.kind not in light:
                break
            before = earlier
        value, grid = convert(self.value.detach(), self.lies, before, self.grid), self.grid
        found = convert(value, before, want, grid)
        if again is not None:
            again.promise(found, [value], lambda kept: convert(kept, before, want, grid))
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

    sources: list[Tensor | _Promise]
    """What is kept instead."""
    make: Callable[..., Tensor]
    users: int = 0
    taken: int = 0
    value: Tensor | None = None

    def take(self) -> Tensor:
        """The tensor, for one of its users."""
        value = self.value
        if value is None:
            with torch.no_grad():
                value = self.make(*[_unpack(source) for source in self.sources])
        self.taken += 1
        self.value = value if self.taken % self.users else None
        return value


_Promise: TypeAlias = "tuple[Copy, torch.Size, tuple[int, ...], int]"
"""What is kept instead of a tensor: how it is made again, and its shape, strides and offset."""


@dataclass(slots=True, eq=False)
class Again:
    """What need not be kept for the backward pass, by its storage."""

    copies: dict[int, Copy] = field(default_factory=dict)

    def makes(self, tensor: Tensor) -> bool:
        """Whether a tensor will be made again."""
        return _storage(tensor) in self.copies

    def promise(self, made: Tensor, sources: Sequence[Tensor], make: Callable[..., Tensor]) -> None:
        """Notes how a tensor is made again from others, unless it is but a view of one of them."""
        if _storage(made) not in map(_storage, sources):
            self.copies[_storage(made)] = Copy(list(sources), make)

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Inside it, what operators save of such tensors is a promise to make them again."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, _unpack)

    def pack(self, tensor: Tensor) -> Tensor | _Promise:
        """What is kept of a tensor that an operator saves."""
        copy = self.copies.get(_storage(tensor))
        if copy is None:
            return tensor
        if not copy.users:
            copy.sources = [self.pack(one) for one in copy.sources if isinstance(one, Tensor)]
        copy.users += 1
        return copy, tensor.shape, tensor.stride(), tensor.storage_offset()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _unpack(kept: Tensor | _Promise) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    copy, shape, stride, offset = kept
    found: Tensor = copy.take().as_strided(shape, stride, offset)
    return found
