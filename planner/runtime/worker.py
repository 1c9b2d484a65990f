"""What one rank does: builds its part of the model, runs one step, and compares gradients with one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from planner.runtime.apply import Ranks, finish, finish_tables, ranks, weights
from planner.runtime.grid import alone, gathered
from planner.runtime.lies import lies
from planner.runtime.model import Decoder, batch
from planner.runtime.program import Program
from planner.runtime.record import Record
from planner.runtime.run import Ran
from planner.runtime.steps import chunks, part_of_batch, stepping


def compared(plan: Program) -> Ran:
    """One step of a plan beside one step of the whole model."""
    torch.set_num_threads(1)
    reference, expected = _alone(plan)
    place = ranks(plan)
    mine = part_of_batch(plan, place, *batch(plan))
    with Record(place.names()) as record:
        parts = chunks(plan, place)
        found = stepping(parts, place, len(mine.tokens), record)(mine)
        record.late = True
        finish(parts, place)
        finish_tables(parts, place)
    worst, name = _worst(parts, reference, place)
    held = torch.tensor([worst, found])
    dist.all_reduce(held[:1], op=dist.ReduceOp.MAX)
    dist.all_reduce(held[1:])
    return Ran(
        ranks=plan.ranks, loss=held[1].item() / _copies(plan), expected=expected,
        worst=held[0].item(), worst_name=name, issued=record.issued, seconds=0.0,
    )  # fmt: skip


def _alone(plan: Program) -> tuple[Decoder, float]:
    """The whole model on one rank, after one step."""
    model = Decoder(plan, alone(tuple(plan.axes)))
    total = 0.0
    for tokens, targets in zip(*batch(plan), strict=True):
        loss = model.loss(model(tokens, targets), targets) / plan.micro_batches
        loss.backward()
        total += loss.item()
    return model, total


def _copies(plan: Program) -> float:
    """How many ranks add the same part of the loss: those of axes that do not cut its tokens."""
    lie = lies(plan.head.tensors["loss"], next(iter(plan.head.ops[-1].writes.values())), plan.axes)
    cut = {axis for axes in lie.cuts for axis in axes} | {"pp"}
    whole = [n for axis, n in plan.axes.items() if axis not in cut | {"edp", "ep", "etp"}]
    return float(torch.tensor([1, *whole]).prod())


def _worst(parts: list[Decoder], reference: Decoder, place: Ranks) -> tuple[float, str]:
    """The gradient that is furthest off, as a share of its largest entry."""
    wanted = {name: p.grad for name, p in reference.named_parameters(remove_duplicate=False)}
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
            own = grad.full_tensor() if isinstance(grad, DTensor) else grad
            found = gathered(own, module.lies(weight), place.grid)
            expected = wanted[name]
            assert expected is not None
            off = ((found - expected).abs().max() / expected.abs().max()).item()
            if off > worst:
                worst, where = off, name
    return worst, where
