"""What one rank does: builds its part of the model, runs one step, and compares gradients with one process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from planner.runtime.apply import Ranks, finish, finish_tables, ranks, weights
from planner.runtime.grid import alone, local
from planner.runtime.lies import lies
from planner.runtime.model import Decoder, batch
from planner.runtime.program import Program
from planner.runtime.record import Record
from planner.runtime.run import Ran
from planner.runtime.steps import chunks, part_of_batch, stepping

Whole: TypeAlias = "tuple[dict[str, Tensor], float]"
"""Gradients by name, and the loss."""


def compared(plan: Program, turn: int) -> Ran:
    """One step of a plan beside one step of the whole model, which one rank computes for all: another every turn."""
    torch.set_num_threads(1)
    whole = _whole(plan, turn % plan.ranks)
    place = ranks(plan)
    mine = part_of_batch(plan, place, *batch(plan))
    record = Record(place.names())  # it sees every operator, which takes time: one rank is enough
    with record if dist.get_rank() == 0 else nullcontext():
        parts = chunks(plan, place)
        found = stepping(parts, place, len(mine.tokens), record)(mine)
        record.late = True
        finish(parts, place)
        finish_tables(parts, place)
    worst, name = _worst(parts, whole[0], place)
    held = torch.tensor([worst, found])
    dist.all_reduce(held[:1], op=dist.ReduceOp.MAX)
    dist.all_reduce(held[1:])
    return Ran(
        ranks=plan.ranks, loss=held[1].item() / _copies(plan), expected=whole[1],
        worst=held[0].item(), worst_name=name, issued=record.issued, seconds=0.0,
    )  # fmt: skip


def _whole(plan: Program, rank: int) -> Whole:
    """What one step of the whole model gives, on every rank."""
    found = [_alone(plan) if dist.get_rank() == rank else None]
    dist.broadcast_object_list(found, src=rank)
    assert found[0] is not None
    return found[0]


def _alone(plan: Program) -> Whole:
    """One step of the whole model on one rank."""
    model = Decoder(plan, alone(tuple(plan.axes)))
    total = 0.0
    for tokens, targets in zip(*batch(plan), strict=True):
        loss = model.loss(model(tokens, targets), targets) / plan.micro_batches
        loss.backward()
        total += loss.item()
    named = model.named_parameters(remove_duplicate=False)
    return {name: p.grad for name, p in named if p.grad is not None}, total


def _copies(plan: Program) -> float:
    """How many ranks add the same part of the loss: those of axes that do not cut its tokens."""
    lie = lies(plan.head.tensors["loss"], next(iter(plan.head.ops[-1].writes.values())), plan.axes)
    cut = {axis for axes in lie.cuts for axis in axes} | {"pp"}
    whole = [n for axis, n in plan.axes.items() if axis not in cut | {"edp", "ep", "etp"}]
    return float(torch.tensor([1, *whole]).prod())


def _worst(parts: list[Decoder], wanted: dict[str, Tensor], place: Ranks) -> tuple[float, str]:
    """The gradient whose part on this rank is furthest off, as a share of the whole one's largest entry."""
    worst, where = 0.0, ""
    for part in parts:
        names = {
            id(p): name.replace("_checkpoint_wrapped_module.", "")
            for name, p in part.named_parameters(remove_duplicate=False)
        }
        for module, weight, parameter in weights(part):
            grad = parameter.grad
            assert grad is not None, weight
            name = names[id(parameter)]
            expected = local(wanted[name], module.lies(weight), place.grid)
            if isinstance(grad, DTensor):
                mesh, placements = grad.device_mesh, grad.placements
                cut = distribute_tensor(expected, mesh, placements, src_data_rank=None)
                grad, expected = grad.to_local(), cut.to_local()
            off = ((grad - expected).abs().max() / wanted[name].abs().max()).item()
            if off > worst:
                worst, where = off, name
    return worst, where
