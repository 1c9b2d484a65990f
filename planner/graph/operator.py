"""Operators as named iteration spaces (design: an operator is a space plus the tensors that it touches).

A *dim* is a named dimension of a tensor or of an iteration space. From the dims of an operator and of its tensors
alone follow FLOPs, bytes, legal strategies, layouts and collectives; nothing here knows a transformer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal, TypeAlias

DimName: TypeAlias = str
"""Name of a dimension of a tensor or of an iteration space: ``batch``, ``seq``, ``embed``, ``heads``, …"""

TensorKind: TypeAlias = Literal["activation", "weight", "frozen", "statistic", "mask", "index"]
"""What a tensor holds; decides the bytes of an element: activations and weights by precision, frozen weights as
they are stored, statistics 4, masks 1, indices 8."""

OperatorKind: TypeAlias = Literal["matmul", "attention", "memory", "lookup", "exchange", "loss"]
"""How an operator is timed: a (grouped) matrix product; fused attention; a pass over memory; a table look-up; a
change of token order between ranks; the loss over logits."""

View: TypeAlias = Literal["dense", "expert"]
"""Which factoring of the ranks of a stage an operator's axes belong to: ``dense`` (dp, cp, tp) or ``expert``
(edp, ep, etp). Both factor the same ranks."""

PER_SEQUENCE: frozenset[DimName] = frozenset({"batch", "capacity"})
"""Dims that grow with the number of sequences in a micro-batch: ``sizes`` holds them for one sequence (``batch`` is 1,
``capacity`` the rows that one sequence sends to one expert)."""


SOURCE_DIMS: dict[DimName, DimName] = {"seq": "source"}
"""What a dim of the stream is called in a tensor that a decoder has from its encoder: as long as the source is."""
FOLLOWS: dict[DimName, DimName] = {"kv_heads": "heads"}
"""Dims that are cut together with another: an axis that splits ``heads`` splits ``kv_heads`` too, and copies them where
it is larger than they are."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor of a block."""

    name: str
    dims: tuple[DimName, ...]
    kind: TensorKind = "activation"


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor as one operator reads it: the same positions, perhaps under other dim names.

    Attention reads the keys that were written along ``seq`` along its own dim ``keys``.
    """

    tensor: str
    dims: tuple[DimName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator: its iteration space, what it reads, writes and keeps."""

    name: str
    kind: OperatorKind
    dims: tuple[DimName, ...]
    """The iteration space. A dim that is split but not written is summed (``Partial``)."""
    reads: tuple[Use, ...]
    """Activations read."""
    writes: tuple[str, ...]
    """Tensors written; their dims are those of the block's tensors."""
    weights: tuple[str, ...] = ()
    flops: float = 0.0
    """Forward FLOPs a point of the iteration space."""
    backward: float = 2.0
    """Backward over forward, FLOPs or passes over memory: 2 for a product with a weight, 2.5 for fused attention,
    1.5 for a softmax (reads its result and a gradient, writes one), 1 for dropout."""
    saves: tuple[str, ...] = ()
    """Tensors kept for the backward pass: among those read or written."""
    whole: frozenset[DimName] = frozenset()
    """Dims that no axis may split (a normalisation's feature dim)."""
    tags: frozenset[str] = frozenset()
    """Words by which trainers choose what is recomputed: ``norm``, ``activation``, ``core``, …"""
    view: View = "dense"


@dataclass(frozen=True, slots=True)
class Block:
    """A layer kind: operators in order over named tensors. Equal layers share one block."""

    name: str
    sizes: dict[DimName, float]
    """Global size of every dim, of ``batch`` and ``capacity`` a sequence; integers but for ``capacity``. Read-only."""
    tensors: dict[str, Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    """Tensors that come from the layer before; the first is the residual stream."""
    outputs: tuple[str, ...]
    tied: frozenset[str] = frozenset()
    """Weights that are the same parameters as a weight of that name in an earlier block."""
    per_token: dict[DimName, float] = field(default_factory=dict)
    """Fractions for dims that only part of the tokens reach (``experts``: top-k over experts). Read-only."""

    def weights(self) -> tuple[Tensor, ...]:
        """The block's weights in order of first use."""
        names = dict.fromkeys(name for op in self.operators for name in op.weights)
        return tuple(self.tensors[name] for name in names)

    def then(self, other: Block) -> Block:
        """This block and one that reads its output, as one: what is tied between them is one weight of it."""
        shared = {t.name for t in other.weights()}
        names = {name: name if name in shared else f"{other.name}.{name}" for name in other.tensors}
        names |= dict(zip(other.inputs[:1], self.outputs[:1], strict=True))
        tensors = {names[t.name]: replace(t, name=names[t.name]) for t in other.tensors.values()}
        operators = tuple(
            replace(
                op,
                name=f"{other.name}.{op.name}",
                reads=tuple(replace(use, tensor=names[use.tensor]) for use in op.reads),
                writes=tuple(names[name] for name in op.writes),
                saves=tuple(names[name] for name in op.saves),
            )
            for op in other.operators
        )
        return Block(
            name=f"{self.name} and {other.name}",
            sizes={**other.sizes, **self.sizes},
            tensors={**tensors, **self.tensors},
            operators=(*self.operators, *operators),
            inputs=(*self.inputs, *(names[name] for name in other.inputs[1:])),
            outputs=tuple(names[name] for name in other.outputs),
            tied=self.tied | (other.tied - {t.name for t in self.weights()}),
            per_token={**other.per_token, **self.per_token},
        )

    def elements(self, dims: tuple[DimName, ...]) -> float:
        """Number of elements over these dims for one sequence; an exact integer for weights."""
        return prod(self.sizes[dim] for dim in dims)

    @property
    def num_params(self) -> int:
        """Parameters of one such layer, tied ones not counted again."""
        return int(sum(self.elements(w.dims) for w in self.weights() if w.name not in self.tied))

    @property
    def num_active_params(self) -> float:
        """Parameters that one token meets."""
        return sum(
            self.elements(w.dims) * prod(self.per_token.get(dim, 1.0) for dim in w.dims)
            for w in self.weights()
            if w.name not in self.tied
        )

    @property
    def num_trained(self) -> int:
        """Parameters of one such layer that training changes."""
        own = (w for w in self.weights() if w.name not in self.tied and w.kind == "weight")
        return int(sum(self.elements(w.dims) for w in own))

    def frozen_flops(self) -> float:
        """FLOPs of one sequence that gradients of the layer's frozen weights would take."""
        return sum(
            op.flops * self.elements(op.dims)
            for op in self.operators
            if op.kind == "matmul" and op.weights and self.tensors[op.weights[0]].kind == "frozen"
        )

    def flops(self) -> float:
        """Forward FLOPs of one sequence through one such layer."""
        return sum(op.flops * self.elements(op.dims) for op in self.operators)
