"""What one rank does: builds its part of the model, runs one step, and compares gradients with one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import DTensor

from planner.runtime.apply import Ranks, apply, finish, finish_tables, ranks, weights
from planner.runtime.grid import alone, gathered, local
from planner.runtime.lies import lies
from planner.runtime.model import Decoder, batch, share
from planner.runtime.program import Placements, Program
from planner.runtime.record import Record
from planner.runtime.run import Ran

SCHEDULES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip


def compared(plan: Program) -> Ran:
    """One step of a plan beside one step of the whole model."""
    torch.set_num_threads(1)
    reference, expected = _alone(plan)
    place = ranks(plan)
    mine = _mine(plan, place, *batch(plan))
    with Record(place.names()) as record:
        if plan.pp == 1:
            parts = [apply(Decoder(plan, place.grid), place)]
            found = _step(parts[0], mine)
        else:
            parts, found = _pipeline(plan, place, record, mine)
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


@dataclass(frozen=True, slots=True)
class Mine:
    """What a rank computes with. Shapes: (micro-batches, sequences, …, tokens)."""

    tokens: Tensor
    ahead: Tensor
    """Tokens that follow, for modules that look further."""
    targets: Tensor
    """What follows those whose loss it computes."""


def _mine(plan: Program, place: Ranks, tokens: Tensor, targets: Tensor) -> Mine:
    """A rank's part of a batch."""
    here = plan.embedding.arrives[plan.embedding.input]
    read = next(iter(plan.head.ops[-1].reads.values()))
    wanted = {axis: where for axis, where in read.items() if "vocab" not in where}

    def cut(whole: Tensor, placed: Placements) -> Tensor:
        dims = ("micro", "batch", *["further"] * (whole.dim() - 3), "seq")
        return local(whole, lies(dims, placed, plan.axes), place.grid)

    return Mine(cut(tokens, here), cut(targets, here), cut(targets, wanted))


def _step(model: Decoder, mine: Mine) -> float:
    """All micro-batches forwards and backwards."""
    total, count = 0.0, len(mine.tokens)
    for n in range(count):
        if isinstance(model, FSDPModule) and model.plan.level < 3:
            model.set_requires_gradient_sync(n + 1 == count)
            model.set_reshard_after_backward(n + 1 == count)
        loss = model.loss(model(mine.tokens[n], mine.ahead[n]), mine.targets[n]) / count
        loss.backward()
        total += loss.item()
    return total


class Chunk(PipelineStage):
    """A chunk of the model that notes what is sent between stages."""

    record: Record

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self.record.passed("forward", super().get_fwd_send_ops(fwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self.record.passed("forward", super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self.record.passed("backward", super().get_bwd_send_ops(bwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self.record.passed("backward", super().get_bwd_recv_ops(bwd_chunk_id))


def _pipeline(
    plan: Program, place: Ranks, record: Record, mine: Mine
) -> tuple[list[Decoder], float]:
    """The rank's chunks, run by torch's own schedule."""
    stage, total = place.grid.place["pp"], len(plan.visits)
    places = plan.chunks_of(stage)
    parts = [Decoder(plan, place.grid, chunk) for chunk in places]
    share(parts)
    parts = [apply(part, place) for part in parts]
    stages = [
        Chunk(part, chunk, total, torch.device("cpu"), group=place.grid.groups["pp",],
              input_args=part.example(), output_args=part.example(after=True))
        for part, chunk in zip(parts, places, strict=True)
    ]  # fmt: skip
    for one in stages:
        one.record = record
    kind = get_schedule_class(SCHEDULES[plan.schedule])
    several = len(stages) > 1 or plan.schedule == "zb-h1"
    first, last = 0 in places, total - 1 in places
    end = parts[places.index(total - 1)] if last else parts[0]
    count = len(mine.tokens)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return end.loss(logits, targets) / count

    schedule = kind(
        stages if several else stages[0],
        count,
        loss_fn=loss,
        scale_grads=False,  # it would scale a table that two chunks share twice
    )
    losses: list[Tensor] = []
    given: tuple[Any, ...] = (mine.tokens.flatten(0, 1),) if first else ()
    wanted: dict[str, Any] = (
        {"target": mine.targets.flatten(0, 1), "losses": losses} if last else {}
    )
    if last and plan.mtp:
        wanted["ahead"] = mine.ahead.flatten(0, 1)
    schedule.step(*given, **wanted)
    return parts, torch.stack(losses).sum().item() if losses else 0.0


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
