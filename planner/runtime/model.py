"""A model that runs a plan operator by operator: what one rank holds of every weight, and what it does with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from planner.runtime import functions
from planner.runtime.flow import Again, Held
from planner.runtime.functions import Call, compute
from planner.runtime.grid import Grid, local
from planner.runtime.lies import Lies, lies, part
from planner.runtime.program import Op, Part, Placements, Program


class Weights(nn.Module):
    """The weights of one operator, and its computation: a module of its own, so that its states can be sharded."""

    def __init__(self, call: Call, seed: str) -> None:
        super().__init__()
        self.call = call
        self.turned = False
        """Its first weight is the embedding's table, the other way round."""
        for name in call.op.weights:
            shape = [call.part.sizes[dim] for dim in call.dims(name)]
            value = local(_first(f"{seed}.{name}", shape), call.lies[name], call.grid)
            self.register_parameter(key(name), nn.Parameter(value.clone()))

    def forward(self, *reads: Tensor) -> Tensor:
        weights = [getattr(self, key(name)) for name in self.call.op.weights]
        if self.turned:
            weights[0] = weights[0].t()
        return compute(self.call, reads, weights)

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
    """A weight to begin with, the same in every process."""
    chance = torch.Generator().manual_seed(crc32(name.encode()))
    if len(shape) == 1:
        return 1.0 + 0.2 * torch.randn(shape, generator=chance)
    return torch.randn(shape, generator=chance) / 6.0


class Layer(nn.Module):
    """One block: the embedding, a layer, or the head up to its logits."""

    def __init__(
        self, part: Part, grid: Grid, *, seed: str, leaves: Placements, again: bool
    ) -> None:
        super().__init__()
        self.part, self.grid, self.again = part, grid, again
        self.arrives = self.lies(part.input, part.arrives[part.input])
        self.leaves = self.lies(part.output, leaves)
        self.ops = nn.ModuleDict({key(op.name): Weights(self.call(op), seed) for op in part.ops})

    def lies(self, tensor: str, placements: Placements) -> Lies:
        return lies(self.part.tensors[tensor], placements, self.grid.sizes)

    def call(self, op: Op) -> Call:
        both = {**op.reads, **op.writes, **op.weights}
        return Call(
            self.part, op, self.grid, {name: self.lies(name, p) for name, p in both.items()}
        )

    def forward(self, x: Tensor) -> Tensor:
        held = {self.part.input: Held(x, self.arrives, self.grid)}
        again = Again() if self.again else None
        for op in self.part.ops:
            if op.kind == "loss":
                return self._read(held, op, again)[0]
            module = self.ops[key(op.name)]
            reads = self._read(held, op, again)
            if again is None:
                found = module(*reads)
            else:
                with again.hooks():
                    found = module(*reads)
            for name, value in self._parts(op, found).items():
                held[name] = Held(value, module.call.lies[name], self.grid)
        return held[self.part.output].read(self.leaves, self.leaves, None)

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
        self.plan, again = plan, plan.again
        stream = [part.arrives[part.input] for part in (*plan.layers, plan.head)]
        self.embedding: Layer | None = None
        self.head: Layer | None = None
        if chunk in (None, 0):
            self.embedding = Layer(
                plan.embedding, grid, seed="embedding", leaves=stream[0], again=again
            )
        self.layers = nn.ModuleDict(
            {
                str(n): Layer(
                    plan.layers[n],
                    grid,
                    seed=str(n),
                    leaves=stream[n + 1],
                    again=again and not plan.recompute,
                )
                for n in range(start, start + count)
            }
        )
        if chunk in (None, chunks - 1):
            self.head = Layer(plan.head, grid, seed="head", leaves={}, again=again)
        if plan.tied and self.embedding is not None and self.head is not None:
            _tie(self.embedding, self.head)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.parts():
            x = layer(x)
        return x

    def parts(self) -> list[Any]:
        """Its layers in order, the embedding and the head among them."""
        first, last = ([] if end is None else [end] for end in (self.embedding, self.head))
        return [*first, *self.layers.values(), *last]

    def example(self, *, after: bool = False) -> Tensor:
        """What it is given for a micro-batch, or gives, as far as shape and type tell."""
        layer = self.parts()[-1 if after else 0]
        lie, name = (
            (layer.leaves, layer.part.output) if after else (layer.arrives, layer.part.input)
        )
        if after and self.head is not None:
            call = layer.call(layer.part.ops[-1])
            lie, name = call.lies[call.reads[0]], call.reads[0]
        shape = [
            layer.part.sizes[dim] // part(cut, layer.grid.sizes, layer.grid.place)[1]
            for dim, cut in zip(layer.part.tensors[name], lie.cuts, strict=True)
        ]
        kind = torch.long if not after and self.embedding is not None else torch.get_default_dtype()
        return torch.empty(shape, dtype=kind, device="meta", requires_grad=kind != torch.long)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """This rank's part of the mean cross-entropy."""
        assert self.head is not None
        return functions.loss(self.head.call(self.plan.head.ops[-1]), logits, target)


def _tie(embedding: Layer, head: Layer) -> None:
    """One parameter for both tables."""
    table = next(iter(embedding.part.ops[0].weights))
    head.ops["project"].turned = True
    setattr(head.ops["project"], key(table), getattr(embedding.ops["lookup"], key(table)))


def batch(plan: Program) -> tuple[Tensor, Tensor]:
    """Tokens of a step and what follows each, the same in every process. Shapes: (micro-batches, sequences, tokens)."""
    sizes = plan.embedding.sizes
    chance = torch.Generator().manual_seed(1)
    shape = (plan.micro_batches, sizes["batch"], sizes["seq"] + 1)
    tokens = torch.randint(0, sizes["vocab"], shape, generator=chance)
    return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()
