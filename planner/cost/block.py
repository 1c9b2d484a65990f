"""What one block costs on one rank for one micro-batch, for many candidates at once.

Everything is read off the operators' dims, their strategies and layouts; no formula of any architecture stands here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from planner.candidates import Recompute
from planner.cost.collectives import collective
from planner.cost.operator_cost import OperatorCost, operator_cost
from planner.cost.saved import kept_bytes, recomputed, repeated, saved_bytes
from planner.cost.setting import Setting, shards
from planner.cost.strategies import EXPERT, BlockKey, Move, Phase, Structure, roles_of, structure
from planner.cost.working import working_bytes
from planner.graph.operator import Block, Operator
from planner.graph.placement import AxisName, Split
from planner.trainers.trainer import EVERYTHING, WaitsFor
from planner.units import Array

COMMUNICATION: dict[AxisName, str] = {
    "tp": "tp",
    "etp": "tp",
    "cp": "cp",
    "ep": "ep",
    "dp": "tp",
    "edp": "tp",
}
"""Under which heading the plan counts the collectives of an axis inside a block."""
FAMILIES = ("tp", "cp", "ep")
SUMS = ("all-reduce", "reduce-scatter")
UNLAUNCHED = frozenset({"layout", "residual_dropout"})
"""Tags of operators that start no kernel of their own: views, and dropout in the kernel that adds the residual."""
SORTING = frozenset({"choice", "exchange"})
"""Tags of operators that sort tokens: a router's choice of experts, and exchanges with them."""
SORTED = 4.0
"""Launches of those, over another operator's, where no fused router and dispatcher do it: some thirty small kernels
choose and weigh the losses that balance experts; an exchange counts, sorts and indexes tokens in some eighteen on the
way there and six on the way back, gathers the counts of all ranks and sends the routing weights apart. Source:
Megatron-Core, router.py, token_dispatcher.py (all-to-all) and moe_utils.py, with an operator of 106 us against some
12 us for each of these kernels."""
FOUR, APART = 4, 4.0
"""Matrices of scores, of one head and sequence each, of which Megatron's fused softmax takes a multiple, and what torch
launches beside the softmax otherwise: wider numbers, scale, mask, narrower numbers. Source: Megatron-LM,
megatron/model/fused_softmax.py, is_kernel_available and forward_torch_softmax with softmax_in_fp32."""
MANY = 8
"""Ranks of a tensor-parallel group from which on the slowest of their hosts' processes shows."""
WAITING: Mapping[WaitsFor, float] = {"kernels": 2.5, "collectives": 1.0}
"""How many times longer the host takes for what it launches where it waits. For every kernel: for each to start and end
too; source: 69 of BLOOM's layouts that are not among the measured runs (bigscience, chronicles-prequel.md, 12,288 to
14,400 wide), 2.3 to 3.0 with the kernels' number for odd heads that fits them best. For collectives: what it launches
between two of them finds the chip idle, and the chip runs dry before the next."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Communication of one family. Seconds, shape ``(n,)``."""

    exposed_forward: Array
    exposed_backward: Array
    hidden_forward: Array
    hidden_backward: Array


@dataclass(frozen=True, slots=True, eq=False)
class BlockCost:
    """One block on one rank, one micro-batch. Arrays of shape ``(n,)``."""

    forward: Array
    """Seconds of compute."""
    backward: Array
    """Seconds of compute, without recompute."""
    weight: Array
    """The part of the backward seconds in which products make gradients of weights."""
    traffic: Mapping[str, Traffic]
    """By family of ``FAMILIES``."""
    recompute: Mapping[Recompute, Array]
    """Seconds by which each mode lengthens the backward pass, repeated collectives included."""
    saved: Mapping[Recompute, Array]
    """Bytes kept from the forward to the backward pass."""
    kept: Array
    """Bytes that products still need for their weights' gradients once the block's input has its gradient."""
    working: Mapping[Recompute, Array]
    """Bytes alive beside them while the block's layer runs backwards: what is made again, and the gradients of what the
    largest operator reads and writes. What happens at the loss is not counted here."""
    dense: Array
    """Weights on the rank that every data rank holds alike (elements), those that train."""
    expert: Array
    """The same of those that only the ranks of edp hold alike."""
    frozen: Array
    """The same two of weights that do not train; ``(2, n)``."""
    tied: Array
    """How many of ``dense`` and of ``frozen`` are tables that the embedding has too; ``(2, n)``."""
    matrices: Array
    """Elements of the matrices on the rank whose gradients products make, of its experts one's."""

    @property
    def exposed_forward(self) -> Array:
        """Seconds forwards, exposed communication included."""
        return self.forward + sum(t.exposed_forward for t in self.traffic.values())

    @property
    def exposed_backward(self) -> Array:
        """Seconds backwards, exposed communication included, recompute not."""
        return self.backward + sum(t.exposed_backward for t in self.traffic.values())


def block_structure(s: Setting, block: Block, *, sp: bool) -> Structure:
    """Strategies and collectives of a block under the trainer's roles and the rows' plan of operators."""
    plan = s.task.operators[int(s.rows.operators[0])] if len(s.rows) else {}
    roles = roles_of(s.task.trainer, sp=sp, tied=bool(s.task.model.head.tied))
    return structure(BlockKey(block), roles, plan.get(block.name, ()))


def block_cost(s: Setting, block: Block, *, sp: bool) -> BlockCost:
    """Price a block for all rows of a setting, which have one plan of operators, all with or without sp."""
    form = block_structure(s, block, sp=sp)
    costs = [operator_cost(s, block, op, split) for op, split in _pairs(form)]
    forward = sum((c.forward for c in costs), np.zeros_like(s.sequences))
    backward = sum((c.backward for c in costs), np.zeros_like(s.sequences))
    core = sum(c.forward for op, c in zip(block.operators, costs, strict=True) if "core" in op.tags)
    made = {op.name: _weight_seconds(op, c) for op, c in zip(block.operators, costs, strict=True)}
    traffic, again = _traffic(s, form, np.asarray(core, dtype=np.float64), made)
    sizes = weight_elements(s, form)
    own = [name for name in sizes if not _of_head(s, block, name)]
    tied = block.tied & set(own)

    def held(kind: str, *, of_experts: bool = False, among: Collection[str] = own) -> Array:
        """Elements of one kind on the rank, of experts or of all else."""
        found = (
            sizes[name]
            for name in among
            if block.tensors[name].kind == kind and _is_expert(form, name) == of_experts
        )
        return sum(found, np.zeros_like(s.sequences))

    trainer = s.task.trainer
    modes = {mode: recomputed(s, block, mode) for mode in trainer.recompute}
    saved = _kept(s, form, modes)
    peak = working_bytes(s, form)
    waits = (
        sum(t.exposed_forward for t in traffic.values()),
        sum(t.exposed_backward for t in traffic.values()),
    )
    whole = frozenset({EVERYTHING})
    slowest = np.where(s.degrees["tp"] >= MANY, trainer.overhead.slowest, 1.0)
    host = trainer.overhead.operator * slowest
    launched = host * _launches(s, form, whole, "forward")
    returned = 2.0 * host * _launches(s, form, whole, "backward")
    busy = _launching(s, backward, returned, waits[1])

    def lengthened(tags: frozenset[str]) -> Array:
        """Seconds by which recompute lengthens the backward pass, on the chip or in the host that launches it."""
        run = backward + _recompute(form, costs, tags, again)
        more = returned + host * _launches(s, form, tags, "forward")
        return _launching(s, run, more, waits[1]) - busy

    return BlockCost(
        forward=_launching(s, forward, launched, waits[0]),
        backward=busy,
        weight=sum(made.values(), np.zeros_like(s.sequences)) * busy / np.maximum(backward, 1e-30),
        traffic=traffic,
        recompute={mode: lengthened(tags) for mode, tags in modes.items()},
        saved=saved,
        kept=kept_bytes(s, form),
        working={mode: peak + np.maximum(saved["none"] - saved[mode], 0.0) for mode in modes},
        dense=held("weight"),
        expert=held("weight", of_experts=True),
        frozen=np.stack([held("frozen"), held("frozen", of_experts=True)]),
        tied=np.stack([held("weight", among=tied), held("frozen", among=tied)]),
        matrices=sum(
            (_matrix(form, name, n) for name, n in sizes.items()), np.zeros_like(s.sequences)
        ),
    )


def _kept(
    s: Setting, form: Structure, modes: Mapping[Recompute, frozenset[str]]
) -> dict[Recompute, Array]:
    """Bytes kept for the backward pass by mode: never more than without recompute."""
    found = {mode: saved_bytes(s, form, tags) for mode, tags in modes.items()}
    return {mode: np.minimum(size, found["none"]) for mode, size in found.items()}


def _of_head(s: Setting, block: Block, name: str) -> bool:
    """Whether a module for multi-token prediction shares a weight with the head, beside which it stands."""
    model = s.task.model
    shares = name in model.head.tensors and name in block.tied
    return shares and any(block is module for module in model.mtp)


def _weight_seconds(op: Operator, cost: OperatorCost) -> Array:
    """Seconds in which an operator makes the gradients of its weights: one of the products that run backwards."""
    product = op.kind == "matmul" and op.weights and op.backward > 1.0
    return cost.backward / op.backward if product else np.zeros_like(cost.backward)


def move_bytes(s: Setting, block: Block, move: Move, form: Structure) -> Array:
    """Bytes of a move as nccl-tests counts them: the full buffer, or one rank's send buffer of an all-to-all."""
    tensor = block.tensors[move.tensor]
    size = s.elements(block, tensor.dims, dict(move.others)) * s.element_bytes(tensor)
    return size / s.degrees[move.axis] if move.kind == "all-to-all" else size


def weight_elements(s: Setting, form: Structure) -> dict[str, Array]:
    """Elements of every weight on one rank, by name."""
    return {
        w.tensor.name: s.elements(form.block, w.tensor.dims, shards(w.layout)) for w in form.weights
    }


def move_seconds(s: Setting, form: Structure, move: Move) -> Array:
    """Seconds of one collective of a block."""
    copies = 1.0
    if move.kind == "all-to-all" and move.axis in EXPERT and s.task.trainer.sends_once:
        copies = max(1.0, form.block.sizes["experts"] * form.block.per_token["experts"])
    tensor, cut = form.block.tensors[move.tensor], dict(move.others)
    points = s.elements(form.block, tensor.dims, cut)  # kept by the setting, so that it has a name
    key = move.kind, move.axis, id(points), s.element_bytes(tensor), copies
    if key not in s.moves:
        size = move_bytes(s, form.block, move, form)
        members = s.members[move.axis]
        s.moves[key] = collective(move.kind, size, members, s.task.cluster, copies)
    return s.moves[key]


def exposed_share(s: Setting, move: Move) -> float:
    """Share of a move's time that stays on the critical path, before compute runs short.

    What is gathered again for the backward pass runs beside the input gradient's product and is hidden; sums of input
    gradients may run beside the weight gradient's.
    """
    family, overlap = COMMUNICATION[move.axis], s.task.trainer.overlap
    if move.again and family == "tp":
        return overlap.tp_again
    return float(getattr(overlap, family)) * (
        overlap.tp_gradients if _beside_weights(s, move) else 1.0
    )


def _beside_weights(s: Setting, move: Move) -> bool:
    """Whether a move sums an input's gradient over tp while the trainer makes the gradients of weights."""
    summed = COMMUNICATION[move.axis] == "tp" and move.phase == "backward" and move.kind in SUMS
    return summed and s.task.trainer.overlap.tp_gradients < 1.0


def _room(block: Block, move: Move, made: Mapping[str, Array]) -> Array | float:
    """Seconds of the products that make the gradients of the weights that a tensor meets."""
    readers = [op.name for op in block.operators if move.tensor in {u.tensor for u in op.reads}]
    return sum((made[name] for name in readers), start=np.float64(0.0))


def _matrix(form: Structure, name: str, elements: Array) -> Array:
    """Elements of a weight whose gradient a product makes, of one expert."""
    tensor = form.block.tensors[name]
    made = any(name in op.weights[:1] for op in form.block.operators if op.kind == "matmul")
    if not made or tensor.kind == "frozen":
        return np.zeros_like(elements)
    return elements / form.block.sizes["experts"] if "experts" in tensor.dims else elements


def _pairs(form: Structure) -> list[tuple[Operator, Split]]:
    return list(zip(form.block.operators, form.splits, strict=True))


def _launches(s: Setting, form: Structure, tags: frozenset[str], phase: Phase) -> Array:
    """Operators, of those with these tags, and collectives that the host launches in a phase.

    Backwards an operator counts as launching twice what it does forwards; see :func:`_launched`.
    """
    again = repeated(form.block, tags)
    joined = _joined(BlockKey(form.block)) if s.task.trainer.overhead.engine else frozenset()
    started = (
        again[op.name] * _launched(s, op, phase)
        for op in form.block.operators
        if not op.tags & UNLAUNCHED and op.name not in joined
    )
    count = np.full_like(s.sequences, sum(started)) + _apart(s, form.block, again, phase)
    for move in form.moves if EVERYTHING in tags else ():
        if move.phase == phase:
            count = count + (s.degrees[move.axis] > 1)
    return count


@lru_cache(maxsize=256)
def _joined(key: BlockKey) -> frozenset[str]:
    """Operators that Transformer Engine runs in the module of another: norms before products, keys beside queries."""
    block, found = key.block, {"attn.kv"}
    for op in block.operators:
        readers = [o for o in block.operators if set(op.writes) & {u.tensor for u in o.reads}]
        if "norm" in op.tags and readers and all(o.kind == "matmul" for o in readers):
            found.add(op.name)
    return frozenset(found)


def _launched(s: Setting, op: Operator, phase: Phase) -> float:
    """Launches of an operator: backwards half where a weight is frozen, none where nothing runs backwards."""
    sorts = bool(op.tags & SORTING) and not s.task.trainer.sends_once
    count = SORTED if sorts else 1.0
    if phase == "forward":
        return count
    return op.backward / 2.0 if op.kind == "matmul" else count * float(op.backward > 0.0)


def _apart(s: Setting, block: Block, again: Mapping[str, float], phase: Phase) -> Array | float:
    """What is launched beside the softmax where no kernel fuses it with what stands around it."""
    softmax = [again[op.name] for op in block.operators if op.name == "attn.softmax"]
    fused = s.task.trainer.overhead.softmax
    if not softmax or fused == "always":
        return 0.0
    more = sum(softmax) * (APART if phase == "forward" else APART / 2.0)
    matrices = s.rows.micro_batch * block.sizes["heads"] / s.degrees["tp"]
    return np.where((matrices % FOUR == 0) & (fused == "by four"), 0.0, more)


def _launching(s: Setting, chip: Array, host: Array, wait: Array | float) -> Array:
    """Seconds in which the chip computes and the host launches: beside it and beside communication, or in turn."""
    waits_for = s.task.trainer.overhead.waits_for
    if waits_for == "nothing":
        return np.maximum(chip, host - wait)
    in_turn = chip + WAITING[waits_for] * host
    if waits_for == "kernels":
        return in_turn
    return np.where(np.asarray(wait) > 0, in_turn, np.maximum(chip, host))


def _is_expert(form: Structure, name: str) -> bool:
    return "experts" in form.block.tensors[name].dims and any(
        op.view == "expert" and name in op.weights for op in form.block.operators
    )


def _traffic(
    s: Setting, form: Structure, core: Array, made: Mapping[str, Array]
) -> tuple[dict[str, Traffic], Array]:
    """Communication by family, and the exposed seconds of the forward pass that full recompute repeats.

    Key/value exchange hides behind attention: beyond its exposed share only what exceeds the core's time shows. So do
    sums of input gradients where they run beside the products that make the weights' gradients (``made``, seconds).
    """
    zero = np.zeros_like(s.sequences)
    sums = {(f, phase): [zero, zero] for f in FAMILIES for phase in ("forward", "backward")}
    for move in form.moves:
        seconds = move_seconds(s, form, move)
        shown = exposed_share(s, move) * seconds
        if _beside_weights(s, move):
            shown = np.maximum(shown, seconds - _room(form.block, move, made))
        entry = sums[COMMUNICATION[move.axis], move.phase]
        entry[0] = entry[0] + shown
        entry[1] = entry[1] + seconds - shown
    for phase, room in (("forward", core), ("backward", 2.5 * core)):
        exposed, hidden = sums["cp", phase]
        spill = np.maximum(hidden - room, 0.0)
        sums["cp", phase] = [exposed + spill, hidden - spill]
    traffic = {
        f: Traffic(
            exposed_forward=sums[f, "forward"][0],
            exposed_backward=sums[f, "backward"][0],
            hidden_forward=sums[f, "forward"][1],
            hidden_backward=sums[f, "backward"][1],
        )
        for f in FAMILIES
    }
    return traffic, sum((t.exposed_forward for t in traffic.values()), zero)


def _recompute(
    form: Structure, costs: list[OperatorCost], tags: frozenset[str], traffic: Array
) -> Array:
    """Seconds of the operators that run again; recomputing everything repeats the collectives as well."""
    again = repeated(form.block, tags)
    total = np.zeros_like(traffic)
    for op, cost in zip(form.block.operators, costs, strict=True):
        total = total + again[op.name] * cost.forward
    return total + traffic if EVERYTHING in tags else total


def head_logits(s: Setting, block: Block, *, sp: bool) -> Array:
    """Logits on one rank (elements), for the copies that a trainer keeps at the loss."""
    form = block_structure(s, block, sp=sp)
    found = [s.elements(block, op.dims, split) for op, split in _pairs(form) if op.kind == "loss"]
    return np.asarray(prod(found, start=np.float64(1.0))) if found else np.zeros_like(s.sequences)
