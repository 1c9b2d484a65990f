"""What is alive beside kept activations while a layer runs: gradients backwards, copies of routed tokens forwards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.operator_cost import stream_bytes
from planner.cost.saved import keeps, saved_tensor_bytes
from planner.cost.setting import Setting
from planner.cost.strategies import BlockKey, Structure
from planner.graph.operator import Block, Operator
from planner.units import Array

ROUTED = 4.0
"""Copies of the routed tokens that are alive when an all-to-all has brought the experts' results back: tokens as they
arrived, before they were sorted by expert, results by expert, results by rank, and results as they came back.
Source: Megatron-Core, moe_layer.py, which holds on to what was dispatched, and token_dispatcher.py."""
ROUTED_ONCE = 2.0
"""The same where one kernel sorts and sends."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """One operator that runs backwards."""

    index: int
    waiting: tuple[str, ...]
    """Tensors whose gradients wait for operators before it."""
    freed: tuple[str, ...]
    """Kept tensors that nothing needs any more once it has run."""
    makes: bool
    """Its gradients are tensors of their own: those of a sum are the gradient of its result."""


def working_bytes(s: Setting, form: Structure) -> Array:
    """Bytes on one rank at the worst moment of a layer, beyond what it keeps without recompute.

    Backwards an operator needs the gradients of what it reads and writes, and those that wait for earlier operators;
    what only later operators kept is gone. What happens at the loss is not counted here.
    """
    block, peak, gone = form.block, np.zeros_like(s.sequences), np.zeros_like(s.sequences)
    for moment in _backwards(BlockKey(block)):
        op = block.operators[moment.index]
        if moment.makes:
            alive = stream_bytes(s, block, op, form.splits[moment.index])
            for name in moment.waiting:
                alive = alive + s.tensor_bytes(block, block.tensors[name], form.layouts[name])
            peak = np.maximum(peak, alive - gone)
        for name in moment.freed if keeps(s, op) else ():
            gone = gone + saved_tensor_bytes(s, form, name)
    copies = ROUTED_ONCE if s.task.trainer.sends_once else ROUTED
    for op, split in zip(block.operators, form.splits, strict=True):
        if op.kind == "exchange":
            peak = np.maximum(peak, copies / 2.0 * stream_bytes(s, block, op, split))
    return peak


@lru_cache(maxsize=256)
def _backwards(key: BlockKey) -> tuple[_Moment, ...]:
    """The operators of a block in the order in which they run backwards, without those at the logits."""
    block = key.block
    same = _summed(block)
    last = {same[use.tensor]: i for i, op in enumerate(block.operators) for use in op.reads}
    made = dict.fromkeys(block.inputs, -1)
    made |= {name: i for i, op in enumerate(block.operators) for name in op.writes}
    first: dict[str, int] = {}
    for i, op in enumerate(block.operators):
        for name in op.saves if op.kind != "loss" else ():
            first.setdefault(name, i)
    moments = []
    for i in reversed(range(len(block.operators))):
        op = block.operators[i]
        own = {same[name] for name in (*op.writes, *(use.tensor for use in op.reads))}
        waiting = {
            same[name]: name
            for name, at in made.items()
            if at < i < last.get(same[name], -1)
            and same[name] not in own
            and block.tensors[name].kind == "activation"
        }
        moments.append(
            _Moment(
                index=i,
                waiting=tuple(waiting.values()),
                freed=tuple(name for name, at in first.items() if at == i),
                makes=not _adds(block, op) and "vocab" not in op.dims,
            )
        )
    return tuple(moments)


def _summed(block: Block) -> dict[str, str]:
    """For every tensor one that has the same gradient: sums hand theirs on."""
    same = {name: name for name in block.tensors}
    for op in block.operators:
        if _adds(block, op):
            own = {same[use.tensor] for use in op.reads} | {same[name] for name in op.writes}
            same = {name: op.writes[0] if at in own else at for name, at in same.items()}
    return same


def _adds(block: Block, op: Operator) -> bool:
    """Whether an operator only adds up tensors of one shape."""
    dims = {block.tensors[name].dims for name in (*op.writes, *(use.tensor for use in op.reads))}
    return op.kind == "memory" and len(op.reads) > 1 and not op.saves and len(dims) == 1
