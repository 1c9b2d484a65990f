"""Frozen weights and low-rank adapters: a model whose weights stay as they are, with small products beside some.

An adapter is two operators, ``x A`` with few columns and ``(x A) B``, and the addition of their result to that of the
frozen product (LoRA, arXiv 2106.09685, section 4.1). That frozen products have no gradient of their weights, keep no
input for it and are never reduced follows from what the operators say; what splits adapters over the axes follows from
their dims as for every other operator.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from planner.errors import PlannerError, listed
from planner.graph.model import Model
from planner.graph.operator import Block, DimName, Operator, Tensor, Use

RANK: DimName = "lora_rank"
GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ("attn.",),
    "mlp": ("mlp.", "shared."),
    "experts": ("moe.up", "moe.down"),
}
"""Words for the products that adapters are put beside, and what their operators' names begin with."""
UNADAPTED = frozenset({"shared.gate", "attn.gate"})
"""Products that have no adapter although their group has."""


def with_adapters(model: Model, rank: int, targets: Collection[str]) -> Model:
    """The model with all weights frozen, and adapters of a rank beside the products of some groups.

    Args:
        model: whose weights all train.
        rank: columns of A and rows of B.
        targets: words of ``GROUPS``; what the model lacks is passed over.
    """
    beginnings = tuple(start for word in targets for start in GROUPS[word])
    done: dict[int, Block] = {}

    def changed(block: Block) -> Block:
        if id(block) not in done:
            done[id(block)] = _adapted(block, rank, beginnings)
        return done[id(block)]

    return replace(
        model,
        blocks=tuple(changed(block) for block in model.blocks),
        embedding=changed(model.embedding),
        head=changed(model.head),
        mtp=tuple(changed(block) for block in model.mtp),
    )


def trained_by_adapters(model: Model, rank: int, targets: Collection[str]) -> Model:
    """As ``with_adapters``, of a model that has products of one of the groups at least.

    Raises:
        PlannerError: it has none, so nothing would train (U02).
    """
    can = [word for word in GROUPS if _has_adapters(with_adapters(model, 1, (word,)))]
    if not set(can) & set(targets):
        raise PlannerError.of(
            "U02",
            f"{model.name} has no {listed(sorted(targets))} to put adapters beside: nothing would train.",
            f"targets of lora can be {listed(can)}.",
        )
    return with_adapters(model, rank, targets)


def _has_adapters(model: Model) -> bool:
    return any(RANK in block.sizes for block in model.blocks)


def _adapted(block: Block, rank: int, beginnings: tuple[str, ...]) -> Block:
    tensors = {
        name: replace(tensor, kind="frozen") if tensor.kind == "weight" else tensor
        for name, tensor in block.tensors.items()
    }
    operators: list[Operator] = []
    for op in block.operators:
        product = op.kind == "matmul" and bool(op.weights)
        if not product:
            operators.append(replace(op, saves=()) if op.kind == "lookup" else op)
        elif op.name.startswith(beginnings) and op.name not in UNADAPTED and beginnings:
            operators += _with_adapter(block, op, tensors)
        else:
            operators.append(_frozen(op))
    sizes = block.sizes | ({RANK: rank} if len(operators) > len(block.operators) else {})
    return replace(block, sizes=sizes, tensors=tensors, operators=tuple(operators))


def _frozen(op: Operator) -> Operator:
    """The product without the gradient of its weight: half the backward pass, and no input kept for it."""
    return replace(op, backward=1.0, saves=())


def _with_adapter(block: Block, op: Operator, tensors: dict[str, Tensor]) -> list[Operator]:
    """The frozen product, its adapter, and the sum, which has the product's name for its result."""
    (use,), (target,) = op.reads, op.writes
    weight, out = tensors[op.weights[0]], tensors[target]
    lead = tuple(dim for dim in weight.dims if dim in use.dims and dim in out.dims)
    over = tuple(dim for dim in weight.dims if dim in use.dims and dim not in lead)
    into = tuple(dim for dim in weight.dims if dim not in use.dims)
    rest = tuple(dim for dim in use.dims if dim not in over)
    base, narrow, delta = (f"{target}.{part}" for part in ("frozen", "narrow", "delta"))
    first, second = (f"{block.name}.{op.name}.lora_{letter}" for letter in "ab")
    tensors[base] = Tensor(base, out.dims)
    tensors[narrow] = Tensor(narrow, (*rest, RANK))
    tensors[delta] = Tensor(delta, out.dims)
    tensors[first] = Tensor(first, (*lead, *over, RANK), "weight")
    tensors[second] = Tensor(second, (*lead, RANK, *into), "weight")
    return [
        replace(_frozen(op), writes=(base,)),
        replace(
            op,
            name=f"{op.name}.lora_a",
            dims=(*rest, *over, RANK),
            writes=(narrow,),
            weights=(first,),
            saves=(use.tensor,),
        ),
        replace(
            op,
            name=f"{op.name}.lora_b",
            dims=(*rest, RANK, *into),
            reads=(Use(narrow, (*rest, RANK)),),
            writes=(delta,),
            weights=(second,),
            saves=(narrow,),
        ),
        Operator(
            name=f"{op.name}.lora_add",
            kind="memory",
            backward=0.0,
            dims=out.dims,
            reads=(Use(base, out.dims), Use(delta, out.dims)),
            writes=(target,),
            tags=op.tags,
            view=op.view,
        ),
    ]
