"""What the forward pass keeps for the backward pass, under each mode of recomputing."""

from __future__ import annotations

import numpy as np

from planner.candidates import Recompute
from planner.cost.setting import Setting, followed
from planner.cost.strategies import Structure
from planner.graph.operator import Block, Operator
from planner.graph.placement import Split
from planner.recipe import QUANTISED
from planner.trainers.trainer import EVERY_SECOND, EVERYTHING
from planner.units import Array

KEEPS_OUTPUT = frozenset({"core"})
"""Tags of recomputed operators whose result stays with the operator that reads it; the results of the others are
discarded too and made again (Megatron-Core's checkpoint without output)."""
PASSES = frozenset({"memory"})
"""Kinds of operator whose results are made again where every second product is."""
JOINED = ("pair", "gates")
"""Dims along which one product of the graph stands for two of the model's: key and value, gate and up."""


def recomputed(s: Setting, block: Block, mode: Recompute) -> frozenset[str]:
    """Tags of the operators of a block that a mode recomputes; none of embedding and head: layers are checkpointed."""
    model = s.task.model
    if block is model.embedding or block is model.head:
        return frozenset()
    return s.task.trainer.recomputed(mode, fused=s.task.recipe.fused_attention)


def repeated(block: Block, tags: frozenset[str]) -> dict[str, float]:
    """Share of each operator that runs a second time when operators with these tags are recomputed.

    A tag may also be the name or the kind of an operator; ``!`` and a name exempts that operator. Under
    ``EVERY_SECOND`` passes over memory run again, and of the products with weights the second, fourth, … of the block
    in order of execution.
    """
    found: dict[str, float] = {}
    before = 0
    for op in block.operators:
        words = op.tags | {op.name, op.kind, EVERYTHING}
        share = float(bool(words & tags) and f"!{op.name}" not in tags)
        if EVERY_SECOND in tags and op.kind in PASSES:
            share = 1.0
        elif EVERY_SECOND in tags and op.kind == "matmul" and op.weights:
            count = _products(block, op)
            share = ((before + count) // 2 - before // 2) / count
            before += count
        found[op.name] = share
    return found


def _products(block: Block, op: Operator) -> int:
    dims = block.tensors[op.weights[0]].dims
    return 2 if any(dim in dims for dim in JOINED) else 1


def keeps(s: Setting, op: Operator) -> bool:
    """Whether an operator keeps for the backward pass what the graph says that it saves."""
    return op.kind != "exchange" or not s.task.trainer.memory.weighs_inside


def saved_tensors(s: Setting, form: Structure, tags: frozenset[str]) -> dict[str, float]:
    """Tensors kept for the backward pass, and which share of each, when operators with these tags are recomputed.

    What a recomputed operator wrote is not kept, unless it runs again for a tag in ``KEEPS_OUTPUT`` and an operator
    that is not recomputed reads it; what it reads from outside is, but for what one layer hands to all that follow (an
    encoder's result), which that layer keeps. Logits are counted at the loss, once, not here.
    """
    again = repeated(form.block, tags)
    passed = {n for n in form.block.inputs[1:] if form.block.tensors[n].kind == "activation"}
    writer = {name: op for op in form.block.operators for name in op.writes}
    kept: dict[str, float] = {}
    for op in form.block.operators:
        if op.kind == "loss":
            continue
        own = op.saves if keeps(s, op) else ()
        wanted = [*own, *((use.tensor for use in op.reads) if again[op.name] else ())]
        for name in (n for n in wanted if n not in passed):
            source = writer.get(name)
            share = 1.0 - again[source.name] if source else 1.0
            stays = again[op.name] == 0 and source is not None and source.tags & tags & KEEPS_OUTPUT
            share = 1.0 if stays else share
            if share > 0:
                kept[name] = max(kept.get(name, 0.0), share)
    return kept


def scattered_bytes(s: Setting, form: Structure, tags: frozenset[str]) -> dict[str, Array]:
    """Bytes on one rank of what is kept although its operator runs again, since ranks have reduced it; by tensor.

    Source: torchtitan 0.3.0, activation_checkpoint._get_default_save_ops: results of reduce-scatters.
    """
    if EVERY_SECOND not in tags:
        return {}
    again = repeated(form.block, tags)
    made = {name: again[op.name] for op in form.block.operators for name in op.writes}
    return {
        m.tensor: made[m.tensor] * saved_tensor_bytes(s, form, m.tensor) * (s.degrees[m.axis] > 1)
        for m in form.moves
        if (m.kind, m.phase) == ("reduce-scatter", "forward") and m.tensor in made
    }


def saved_bytes(s: Setting, form: Structure, tags: frozenset[str]) -> Array:
    """Bytes kept from forward to backward on one rank, in the layouts in which tensors stand.

    In fp8 and fp4 training what only products with weights keep is kept as it was quantised (TransformerEngine).
    """
    total = np.zeros_like(s.sequences)
    for name, share in saved_tensors(s, form, tags).items():
        total = total + share * saved_tensor_bytes(s, form, name)
    total = sum(scattered_bytes(s, form, tags).values(), total)
    again = repeated(form.block, tags)
    for op, split in zip(form.block.operators, form.splits, strict=True):
        total = total + (1.0 - again[op.name]) * extra_bytes(s, form.block, op, split)
    return total


def extra_bytes(s: Setting, block: Block, op: Operator, split: Split) -> Array:
    """Bytes that an operator keeps on one rank in code that is not fused, beyond the tensors of the graph."""
    each = sum(s.task.trainer.memory.kept.get(tag, 0.0) for tag in op.tags)
    if not each:
        return np.zeros_like(s.sequences)
    dims = block.tensors[op.writes[0]].dims
    return each * s.elements(block, dims, followed(dims, split))


def kept_bytes(s: Setting, form: Structure) -> Array:
    """Bytes on one rank that gradients of weights need: what their products read, and the gradients of the results.

    Source: Qi et al. 2024, Zero Bubble Pipeline Parallelism, table 1: of the 34 bytes a token and channel that a GPT
    layer keeps without attention scores, 32.
    """
    products = [
        op
        for op in form.block.operators
        if op.kind == "matmul" and op.weights and op.backward > 1.0
    ]
    read = {use.tensor for op in products for use in op.reads}
    written = {name for op in products for name in op.writes}
    total = np.zeros_like(s.sequences)
    for name in sorted(read) + sorted(written):
        total = total + saved_tensor_bytes(s, form, name)
    return total


def saved_tensor_bytes(s: Setting, form: Structure, name: str) -> Array:
    """Bytes of one kept tensor on one rank."""
    block, tensor = form.block, form.block.tensors[name]
    size = s.tensor_bytes(block, tensor, form.layouts[name])
    if s.task.trainer.memory.keeps_gathered:
        for op, split in zip(block.operators, form.splits, strict=True):
            if op.kind == "matmul" and name in op.saves:
                whole = s.elements(block, tensor.dims, followed(tensor.dims, split))
                size = np.maximum(size, whole * s.element_bytes(tensor))
    narrow = QUANTISED.get(s.task.recipe.precision)
    if narrow is None:
        return size
    keepers = [op for op in form.block.operators if name in op.saves]
    quantised = keepers and all(op.kind == "matmul" and op.weights for op in keepers)
    return narrow * size / s.element_bytes(tensor) if quantised else size
