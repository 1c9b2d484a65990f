"""A model that runs a plan operator by operator: what one rank holds of every weight, and what it does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from planner.runtime import functions
from planner.runtime.flow import Again, Held
from planner.runtime.functions import Call, compute, computed, repeated
from planner.runtime.grid import Grid, local
from planner.runtime.lies import Lies, lies, part
from planner.runtime.program import Op, Part, Placements, Program

LAST = "y"
"""The stream behind a layer, by its name in the graph."""


class Weights(nn.Module):
    """The weights of one operator, and its computation: a module of its own, so that its states can be sharded."""

    def __init__(self, call: Call, seed: str, tables: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__()
        self.call = call
        self.dims = {name: tables.get(name, call.dims(name)) for name in call.op.weights}
        """Dims of its weights as they are held: a shared table's are those of its first user."""
        for name, dims in self.dims.items():
            shape = [call.part.sizes[dim] for dim in dims]
            whole = _first(name if name in tables else f"{seed}.{name}", shape)
            value = local(whole, self.lies(name), call.grid)
            self.register_parameter(key(name), nn.Parameter(value.clone()))

    def lies(self, name: str) -> Lies:
        """How a weight lies as it is held."""
        return lies(self.dims[name], self.call.op.weights[name], self.call.grid.sizes)

    def forward(self, *reads: Tensor) -> Tensor:
        return (repeated if self.repeats else compute)(self.call, reads, self.taken())

    @property
    def repeats(self) -> bool:
        """It runs again in the backward pass, by itself."""
        return self.call.op.recomputed and not self.call.part.recomputed

    def taken(self) -> list[Tensor]:
        """Its weights as it takes them."""
        found = []
        for name, dims in self.dims.items():
            weight = getattr(self, key(name))
            found.append(weight if dims == self.call.dims(name) else weight.t())
        return found

    def partial(self, name: str) -> list[str]:
        """Axes over which the gradient of a weight is a sum."""
        sizes, placements = self.call.grid.sizes, self.call.op.weights[name]
        return [
            axis for axis, place in placements.items() if place == "replicate" and sizes[axis] > 1
        ]


def key(name: str) -> str:
    """A weight's name as modules take it."""
    return name.replace(".", "_")


def _first(name: str, shape: Sequence[int]) -> Tensor:
    """A weight to begin with, the same in every process; on the meta device only its shape."""
    if torch.get_default_device().type == "meta":
        return torch.empty(shape)
    chance = torch.Generator().manual_seed(crc32(name.encode()))
    if len(shape) == 1:
        return 1.0 + 0.2 * torch.randn(shape, generator=chance)
    return torch.randn(shape, generator=chance) / 6.0


class Layer(nn.Module):
    """One block: the embedding, a layer, or the head up to its logits."""

    def __init__(
        self,
        part: Part,
        plan: Program,
        grid: Grid,
        *,
        seed: str,
        leaves: Placements,
        passes_on: bool = False,
    ) -> None:
        super().__init__()
        self.part, self.grid = part, grid
        self.passes_on = passes_on
        """Beside its logits it gives the stream that the next such part takes."""
        self.again = plan.again and not part.recomputed
        self.arrives = {name: self.lies(name, lie) for name, lie in part.arrives.items()}
        self.leaves = self.lies(part.output, leaves)
        self.ops = nn.ModuleDict(
            {key(op.name): Weights(self.call(op), seed, plan.tables) for op in part.ops}
        )

    def lies(self, tensor: str, placements: Placements) -> Lies:
        return lies(self.part.tensors[tensor], placements, self.grid.sizes)

    def call(self, op: Op) -> Call:
        both = {**op.reads, **op.writes, **op.weights}
        return Call(
            self.part, op, self.grid, {name: self.lies(name, p) for name, p in both.items()}
        )

    def forward(self, *given: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        held = {
            name: self._held(name, value, lie)
            for (name, lie), value in zip(self.arrives.items(), given, strict=True)
        }
        again = Again() if self.again else None
        for op in self.part.ops:
            if op.kind == "loss":
                return self._logits(self._read(held, op, again)[0], held)
            module = self.ops[key(op.name)]
            reads = self._read(held, op, again)
            if again is None:
                found = module(*reads)
            else:
                with again.hooks():
                    found = module(*reads)
                if module.repeats:
                    again.promise(found, [*reads, *module.taken()], partial(computed, module.call))
            for name, value in self._parts(op, found).items():
                held[name] = self._held(name, value, module.call.lies[name])
        return held[self.part.output].read(self.leaves, self.leaves, None)

    def _held(self, name: str, value: Tensor, lie: Lies) -> Held:
        return Held(value, lie, self.grid, gathers_again=name in self.part.gathered_again)

    def _logits(self, found: Tensor, held: dict[str, Held]) -> Tensor | tuple[Tensor, Tensor]:
        if not self.passes_on:
            return found
        lie = self.arrives[self.part.input]
        return found, held[LAST].read(lie, lie, None)

    def _read(self, held: dict[str, Held], op: Op, again: Again | None) -> list[Tensor]:
        """What an operator reads, as it wants it. Where its axes cut none of an input's dims, its gradient is a sum."""
        found = []
        for name, placements in op.reads.items():
            left = {a: "partial" if p == "replicate" else p for a, p in placements.items()}
            found.append(held[name].read(self.lies(name, placements), self.lies(name, left), again))
        return found

    def _parts(self, op: Op, found: Tensor) -> dict[str, Tensor]:
        """Results by name: those that somebody reads lie behind one another along the last dim."""
        read = {name for other in self.part.ops for name in other.reads} | {self.part.output}
        names = [name for name in op.writes if name in read]
        if len(names) == 1:
            return {names[0]: found}
        sizes = [self.part.sizes[self.part.tensors[name][-1]] for name in names]
        return dict(zip(names, found.split(sizes, -1), strict=True))


class Decoder(nn.Module):
    """The whole model, or the layers of one chunk of it: parts that a chunk lacks are None."""

    def __init__(self, plan: Program, grid: Grid, chunk: int | None = None) -> None:
        super().__init__()
        chunks = len(plan.visits)
        start = 0 if chunk is None else sum(plan.visits[:chunk])
        count = len(plan.layers) if chunk is None else plan.visits[chunk]
        self.plan = plan
        stream = [part.arrives[part.input] for part in (*plan.layers, plan.head)]

        def layer(part: Part, seed: str, leaves: Placements, **more: bool) -> Layer:
            return Layer(part, plan, grid, seed=seed, leaves=leaves, **more)

        first, last = chunk in (None, 0), chunk in (None, chunks - 1)
        self.embedding = layer(plan.embedding, "embedding", stream[0]) if first else None
        self.layers = nn.ModuleDict(
            {
                str(n): layer(plan.layers[n], str(n), stream[n + 1])
                for n in range(start, start + count)
            }
        )
        self.head = layer(plan.head, "head", {}) if last else None
        self.mtp = nn.ModuleList(
            layer(part, f"mtp{n}", {}, passes_on=n + 1 < len(plan.mtp))
            for n, part in enumerate(plan.mtp)
            if last
        )
        share([self])

    def forward(self, x: Tensor, ahead: Tensor | None = None) -> Tensor:
        """The stream behind a chunk, or the logits: those of the head, then those of every module that looks further.

        Args:
            x: tokens, or the stream.
            ahead: tokens that follow, for such modules. Shapes: (sequences, modules, tokens).
        """
        for layer in self.inner():
            x = layer(x)
        if self.head is None:
            return x
        logits = [self.head(x)]
        for n, module in enumerate(self.mtp):
            assert ahead is not None
            given = module(x, ahead[:, n])
            found, x = given if n + 1 < len(self.mtp) else (given, x)
            logits.append(found)
        return torch.cat(logits)

    def inner(self) -> list[Any]:
        """Its embedding and its layers, in order."""
        return [*([] if self.embedding is None else [self.embedding]), *self.layers.values()]

    def parts(self) -> list[Any]:
        """All its layers, those first that come to own what several share."""
        return [*self.inner(), *([] if self.head is None else [self.head]), *self.mtp]

    def example(self, *, after: bool = False) -> Tensor:
        """What it is given for a micro-batch, or gives, as far as shape and type tell."""
        ends = self.inner() if self.head is None else [*self.inner(), self.head]
        layer = ends[-1 if after else 0]
        lie, name = (
            (layer.leaves, layer.part.output)
            if after
            else (layer.arrives[layer.part.input], layer.part.input)
        )
        if after and self.head is not None:
            call = layer.call(layer.part.ops[-1])
            lie, name = call.lies[call.reads[0]], call.reads[0]
        shape = [
            layer.part.sizes[dim] // part(cut, layer.grid.sizes, layer.grid.place)[1]
            for dim, cut in zip(layer.part.tensors[name], lie.cuts, strict=True)
        ]
        shape[0] *= 1 + len(self.mtp) * after
        kind = torch.long if not after and self.embedding is not None else torch.get_default_dtype()
        return torch.empty(shape, dtype=kind, device="meta", requires_grad=kind != torch.long)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """This rank's part of the mean cross-entropy, those of modules that look further added.

        Args:
            logits: as :meth:`forward` gives them.
            targets: Shapes: (sequences, 1 + modules, tokens).
        """
        assert self.head is not None
        found = torch.zeros(())
        ends = [self.head, *self.mtp]
        for n, (end, some) in enumerate(zip(ends, logits.chunk(len(ends)), strict=True)):
            found = found + functions.loss(end.call(end.part.ops[-1]), some, targets[:, n])
        return found


def share(models: Sequence[Decoder]) -> None:
    """One parameter for every table that several parts of a rank have, also where these are parts of two chunks."""
    owned: dict[str, nn.Parameter] = {}
    for layer in (layer for model in models for layer in model.parts()):
        for module in layer.ops.values():
            for name in module.dims.keys() & models[0].plan.tables.keys():
                parameter = owned.setdefault(name, getattr(module, key(name)))
                setattr(module, key(name), parameter)


def batch(plan: Program) -> tuple[Tensor, Tensor]:
    """Tokens of a step, and those that follow each: the next, and one more for every module that looks further.

    The same in every process. Shapes: (micro-batches, sequences, tokens) and (…, sequences, 1 + modules, tokens).
    """
    sizes, further = plan.embedding.sizes, len(plan.mtp)
    chance = torch.Generator().manual_seed(1)
    shape = (plan.micro_batches, sizes["batch"], sizes["seq"] + 1 + further)
    tokens = torch.randint(0, sizes["vocab"], shape, generator=chance)
    follow = [tokens[..., 1 + n : 1 + n + sizes["seq"]] for n in range(1 + further)]
    return tokens[..., : sizes["seq"]].contiguous(), torch.stack(follow, -2)
