"""Frozen weights and low-rank adapters: a model whose weights stay as they are, with small products beside some.

An adapter is two operators, ``x A`` with few columns and ``(x A) B``, and the addition of their result to that of the
frozen product (LoRA, arXiv 2106.09685, section 4.1). Each weight has its own: where one product stands for two with the
same input, keys and values or a gate and what it multiplies, both have an A and a B, or one alone. That frozen
products have no gradient of their weights, keep no input for it and are never reduced follows from what the operators
say; what splits adapters over the axes follows from their dims as for every other operator.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from planner.errors import PlannerError, listed
from planner.graph.model import Model
from planner.graph.operator import Block, DimName, Operator, Tensor, Use

RANK: DimName = "lora_rank"
GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ("attn.", "cross."),
    "mlp": ("mlp.", "shared."),
    "experts": ("moe.up", "moe.down"),
}
"""Words for the products that adapters are put beside, and what their operators' names begin with."""
PRODUCTS: dict[str, tuple[str, ...]] = {
    "q_proj": ("attn.q",),
    "k_proj": ("attn.kv",),
    "v_proj": ("attn.kv",),
    "o_proj": ("attn.out",),
    "gate_proj": ("mlp.up", "shared.up"),
    "up_proj": ("mlp.up", "shared.up"),
    "down_proj": ("mlp.down", "shared.down"),
    "q_a_proj": ("attn.q_down",),
    "q_b_proj": ("attn.q_up",),
    "kv_a_proj_with_mqa": ("attn.kv_down",),
    "kv_b_proj": ("attn.kv_up",),
}
"""Single products by their names in Hugging Face's decoders, as PEFT's ``target_modules`` has them."""
PAIRED = {"k_proj": "pair", "v_proj": "pair", "gate_proj": "gates", "up_proj": "gates"}
"""Products that are one of the two of a dim."""
UNADAPTED = frozenset({"shared.gate", "attn.gate"})
"""Products that have no adapter although their group has."""


def with_adapters(model: Model, rank: int, targets: Collection[str]) -> Model:
    """The model with all weights frozen, and adapters of a rank beside the products of some groups.

    Args:
        model: whose weights all train.
        rank: columns of A and rows of B.
        targets: words of ``GROUPS`` or ``PRODUCTS``; what the model lacks is passed over.
    """
    done: dict[int, Block] = {}

    def changed(block: Block) -> Block:
        if id(block) not in done:
            done[id(block)] = _adapted(block, rank, targets)
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
    tuned = with_adapters(model, rank, targets)
    if _has_adapters(tuned):
        return tuned
    words = [w for w in (*GROUPS, *PRODUCTS) if _has_adapters(with_adapters(model, 1, (w,)))]
    raise PlannerError.of(
        "U02",
        f"{model.name} has no {listed(sorted(targets))} to put adapters beside: nothing would train.",
        f"targets of lora can be {listed(words)}.",
    )


def _has_adapters(model: Model) -> bool:
    return any(RANK in block.sizes for block in model.blocks)


def _adapted(block: Block, rank: int, targets: Collection[str]) -> Block:
    tensors = {
        name: replace(tensor, kind="frozen") if tensor.kind == "weight" else tensor
        for name, tensor in block.tensors.items()
    }
    operators: list[Operator] = []
    for op in block.operators:
        product = op.kind == "matmul" and bool(op.weights)
        if not product:
            operators.append(replace(op, saves=()) if op.kind == "lookup" else op)
        elif beside := _words(block, op, targets):
            operators += _with_adapter(block, op, tensors, beside)
        else:
            operators.append(_frozen(op))
    sizes = block.sizes | ({RANK: rank} if len(operators) > len(block.operators) else {})
    return replace(block, sizes=sizes, tensors=tensors, operators=tuple(operators))


def _words(block: Block, op: Operator, targets: Collection[str]) -> set[str]:
    """The targets that put an adapter beside a product."""
    if block.sizes.get("gates", 1) == 1:
        targets = set(targets) - {"gate_proj"}
    grouped = {word for word, starts in GROUPS.items() if op.name.startswith(starts)}
    single = {word for word, names in PRODUCTS.items() if op.name in names}
    return set(targets) & (single if op.name in UNADAPTED else grouped | single)


def _frozen(op: Operator) -> Operator:
    """The product without the gradient of its weight: half the backward pass, and no input kept for it."""
    return replace(op, backward=1.0, saves=())


def _with_adapter(
    block: Block, op: Operator, tensors: dict[str, Tensor], words: Collection[str]
) -> list[Operator]:
    """The frozen product, its adapter, and the sum, which has the product's name for its result."""
    (use,), (target,) = op.reads, op.writes
    weight, out = tensors[op.weights[0]], tensors[target]
    both = set(PAIRED.values()) if set(words) - set(PAIRED) or len(words) > 1 else set()
    lacks = set(PAIRED.values()) - both
    lead = tuple(dim for dim in weight.dims if dim in use.dims and dim in out.dims)
    over = tuple(dim for dim in weight.dims if dim in use.dims and dim not in lead)
    into = tuple(dim for dim in weight.dims if dim not in use.dims and dim not in lacks)
    pair = tuple(dim for dim in into if dim in both)
    rest = tuple(dim for dim in use.dims if dim not in over)
    base, narrow, delta = (f"{target}.{part}" for part in ("frozen", "narrow", "delta"))
    first, second = (f"{block.name}.{op.name}.lora_{letter}" for letter in "ab")
    tensors[base] = Tensor(base, out.dims)
    added = tuple(dim for dim in out.dims if dim not in lacks)
    tensors[narrow] = Tensor(narrow, (*rest, *pair, RANK))
    tensors[delta] = Tensor(delta, added)
    tensors[first] = Tensor(first, (*lead, *pair, *over, RANK), "weight")
    tensors[second] = Tensor(second, (*lead, RANK, *into), "weight")
    return [
        replace(_frozen(op), writes=(base,)),
        replace(
            op,
            name=f"{op.name}.lora_a",
            dims=(*rest, *pair, *over, RANK),
            writes=(narrow,),
            weights=(first,),
            saves=(use.tensor,),
        ),
        replace(
            op,
            name=f"{op.name}.lora_b",
            dims=(*rest, RANK, *into),
            reads=(Use(narrow, (*rest, *pair, RANK)),),
            writes=(delta,),
            weights=(second,),
            saves=(narrow,),
        ),
        Operator(
            name=f"{op.name}.lora_add",
            kind="memory",
            backward=0.0,
            dims=out.dims,
            reads=(Use(base, out.dims), Use(delta, added)),
            writes=(target,),
            tags=op.tags,
            view=op.view,
        ),
    ]
