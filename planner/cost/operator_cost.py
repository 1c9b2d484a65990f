"""What one operator costs on one rank for one micro-batch, read off its dims, its strategy and the layouts it meets."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from planner.cost import kernels
from planner.cost.collectives import collective
from planner.cost.setting import Setting, followed
from planner.graph.attention import KEYS
from planner.graph.operator import Block, DimName, Operator
from planner.graph.placement import Split
from planner.recipe import QUANTISED
from planner.units import Array


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCost:
    """One operator on one rank, one micro-batch. Arrays of shape ``(n,)``."""

    forward: Array
    """Seconds."""
    backward: Array
    """Seconds."""
    flops: Array
    """Forward FLOPs."""
    size: Array
    """Bytes read and written forwards."""


def operator_cost(s: Setting, block: Block, op: Operator, split: Split) -> OperatorCost:
    """Price one operator under a strategy."""
    chip, precision = s.task.cluster.chip, s.task.recipe.precision
    flops = op.flops * s.elements(block, op.dims, split)
    size = _operator_bytes(s, block, op, split)
    if op.kind == "matmul":
        groups, m, n, k = matmul_shape(s, block, op, split)
        narrow = precision if _quantised(op) or precision not in QUANTISED else "bf16"
        idle = kernels.FEW_ROWS if op.view == "expert" else 0.0
        slow = {"slowed": _slowed(s, op, narrow), "misaligned": _misaligned(s, block, op)}
        slow["cast_bytes"] = kernels.CAST_BYTES * (kernels.UNTURNED if op.backward < 2.0 else 1.0)
        forward = kernels.matmul(chip, narrow, groups, m, n, k, size, idle_rows=idle, **slow)
        backward = op.backward * forward * kernels.BACKWARD_MATMUL
        widened = _widened_seconds(s, block, op, split)
        forward, backward = forward + widened, backward + widened
    elif op.kind == "attention":
        forward = _attention_seconds(s, block, op, split, flops)
        backward = op.backward * forward * kernels.BACKWARD_ATTENTION
    elif op.kind == "loss":
        forward, backward = _loss_seconds(s, s.elements(block, op.dims, split))
    else:
        passes = _passes(s, op)
        forward = kernels.memory_pass(chip, passes * size)
        backward = (op.backward if op.kind == "memory" else 1.0) * forward
    return OperatorCost(forward=forward, backward=backward, flops=flops, size=size)


def _passes(s: Setting, op: Operator) -> float:
    """Bytes that a memory-bound operator moves over what the graph says.

    Where no one kernel sends tokens, they are put in order twice: by rank before an all-to-all, by expert behind it.
    """
    if op.kind != "memory":
        return 2.0 if op.kind == "exchange" and not s.task.trainer.sends_once else 1.0
    overhead = s.task.trainer.overhead
    of_scores = overhead.score_passes if "core" in op.tags else None
    return overhead.memory_passes if of_scores is None else of_scores


def _widened_seconds(s: Setting, block: Block, op: Operator, split: Split) -> Array | float:
    """Making 16-bit weights of frozen 4-bit ones, before the product and again before the one that runs backwards."""
    lora = s.task.recipe.lora
    if lora is None or lora.bits > 4 or "frozen" not in {block.tensors[w].kind for w in op.weights}:
        return 0.0
    elements = s.elements(block, block.tensors[op.weights[0]].dims, split)
    recipe = s.task.recipe
    return kernels.memory_pass(
        s.task.cluster.chip, elements * (recipe.frozen_bytes + recipe.weight_bytes)
    )


def _loss_seconds(s: Setting, logits: Array) -> tuple[Array, Array]:
    """Cross-entropy over a rank's logits, or over all of them where the trainer gathers them on every tp rank."""
    chip, gathered = s.task.cluster.chip, np.zeros_like(s.sequences)
    if s.task.trainer.memory.logit_whole_bytes:
        logits = logits * s.degrees["tp"]
        size = logits * s.task.recipe.activation_bytes
        gathered = collective("all-gather", size, s.members["tp"], s.task.cluster)
    forward, backward = kernels.LOSS[s.task.trainer.loss]
    return (
        kernels.memory_pass(chip, forward * logits) + gathered,
        kernels.memory_pass(chip, backward * logits),
    )


def _quantised(op: Operator) -> bool:
    """Whether a narrow recipe runs a product in narrow rows: those with weights, but for the head.

    Source: Megatron-Core's output layer is no layer of Transformer Engine; the Float8 recipes of torchtitan and of
    llm-foundry leave theirs out as well.
    """
    return bool(op.weights) and "vocab" not in op.dims


def _slowed(s: Setting, op: Operator, precision: str) -> float:
    """How many times slower a product runs because it is grouped; narrow rows are one kernel's for all experts."""
    if op.view != "expert" or precision in QUANTISED:
        return 1.0
    return kernels.GROUPED.get(s.task.cluster.chip.family, 1.0)


def _misaligned(s: Setting, block: Block, op: Operator) -> float:
    """How many times slower a product sums because its heads do not fit the units."""
    heads = [block.sizes[dim] for dim in ("head_dim", "value_dim") if dim in op.dims]
    unfit = not op.weights and any(size % kernels.ALIGNED for size in heads)
    return kernels.MISALIGNED if unfit and s.task.recipe.precision != "fp32" else 1.0


def _attended(block: Block, op: Operator) -> float:
    """Share of the score matrix that the mask leaves, read off the FLOPs of a point."""
    value = block.sizes.get("value_dim", block.sizes["head_dim"])
    return op.flops / (2.0 * (1.0 + value / block.sizes["head_dim"]))


def _attention_seconds(s: Setting, block: Block, op: Operator, split: Split, flops: Array) -> Array:
    """Fused attention; where an axis splits the queries, keys come around a ring in pieces, one kernel each.

    How long the sums over keys are for the kernel's rate follows from what the mask leaves: a causal one leaves half of
    them on average, a window its width.
    """
    steps = prod(
        (s.degrees[axis] for axis, dim in split.items() if dim == "seq"),
        start=np.ones_like(s.sequences),
    )
    pieces = np.where(steps > 1, s.task.trainer.ring_chunks * steps, 1.0)
    over = next(dim for dim in op.dims if dim in KEYS)
    cut = tuple(axis for axis, dim in split.items() if dim == over)
    keys = s.local(over, block.sizes[over], cut) / pieces
    chip, precision = s.task.cluster.chip, s.task.recipe.precision
    reach = np.minimum(keys, 2.0 * _attended(block, op) * block.sizes[over])
    one = kernels.attention(
        chip, precision, flops, reach, block.sizes["head_dim"], s.task.trainer.kernel
    )
    return one + (pieces - 1.0) * chip.matmul_latency


def matmul_shape(
    s: Setting, block: Block, op: Operator, split: Split
) -> tuple[Array, Array, Array, Array]:
    """Groups, rows, columns and length of sums of a product, read off the dims of its three tensors."""
    left = set(op.reads[0].dims)
    right = set(block.tensors[op.weights[0]].dims) if op.weights else set(op.reads[1].dims)
    out = set(block.tensors[op.writes[0]].dims)
    parts = (left & right & out, (left & out) - right, (right & out) - left, (left & right) - out)
    groups, m, n, k = (s.elements(block, _ordered(op, dims), split) for dims in parts)
    return groups, m, n, k


def _ordered(op: Operator, dims: set[DimName]) -> list[DimName]:
    return [dim for dim in op.dims if dim in dims]


def _operator_bytes(s: Setting, block: Block, op: Operator, split: Split) -> Array:
    """Bytes that an operator reads and writes on one rank, weights included."""
    total = stream_bytes(s, block, op, split)
    if op.kind in ("lookup", "exchange"):
        return total
    for tensor in (block.tensors[name] for name in op.weights):
        cut = followed(tensor.dims, split)
        total = total + s.elements(block, tensor.dims, cut) * s.element_bytes(tensor)
    return total


def stream_bytes(s: Setting, block: Block, op: Operator, split: Split) -> Array:
    """Bytes of the tensors that an operator reads and writes on one rank, and of their gradients.

    An exchange moves only the routed rows, twice.
    """
    total = np.zeros_like(s.sequences)
    if op.kind == "exchange":
        routed = next(
            block.tensors[n]
            for n in (*op.writes, *(use.tensor for use in op.reads))
            if "capacity" in block.tensors[n].dims
        )
        cut = dict.fromkeys(("edp", "ep", "etp"), "capacity")
        return 2.0 * s.elements(block, routed.dims, cut) * s.element_bytes(routed)
    uses = [(use.tensor, use.dims) for use in op.reads]
    for name, dims in (*uses, *((name, block.tensors[name].dims) for name in op.writes)):
        size = s.elements(block, dims, followed(dims, split))
        total = total + size * s.element_bytes(block.tensors[name])
    return total
