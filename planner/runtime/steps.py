"""One step of a plan on a rank: its chunks, and all micro-batches through them as the schedule says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from planner.runtime.apply import Ranks, apply
from planner.runtime.grid import local
from planner.runtime.lies import lies
from planner.runtime.model import Decoder, share
from planner.runtime.program import Placements, Program
from planner.runtime.record import Record

SCHEDULES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mine:
    """What a rank computes with. Shapes: (micro-batches, sequences, …, tokens)."""

    tokens: Tensor
    ahead: Tensor
    """Tokens that follow, for modules that look further."""
    targets: Tensor
    """What follows those whose loss it computes."""


def part_of_batch(plan: Program, place: Ranks, tokens: Tensor, targets: Tensor) -> Mine:
    """A rank's part of a batch."""
    here = plan.embedding.arrives[plan.embedding.input]
    read = next(iter(plan.head.ops[-1].reads.values()))
    wanted = {axis: where for axis, where in read.items() if "vocab" not in where}

    def cut(whole: Tensor, placed: Placements) -> Tensor:
        dims = ("micro", "batch", *["further"] * (whole.dim() - 3), "seq")
        return local(whole, lies(dims, placed, plan.axes), place.grid)

    return Mine(cut(tokens, here), cut(targets, here), cut(targets, wanted))


def chunks(plan: Program, place: Ranks) -> list[Decoder]:
    """The chunks of a rank, as the plan runs them."""
    if plan.pp == 1:
        return [apply(Decoder(plan, place.grid), place)]
    parts = [Decoder(plan, place.grid, chunk) for chunk in plan.chunks_of(place.grid.place["pp"])]
    share(parts)
    return [apply(part, place) for part in parts]


def stepping(
    parts: list[Decoder], place: Ranks, count: int, record: Record | None = None
) -> Callable[[Mine], float]:
    """What runs so many micro-batches forwards and backwards, and gives the loss as far as it is computed here."""
    if parts[0].plan.pp == 1:
        return lambda mine: _alone(parts[0], mine)
    return _pipeline(parts, place, count, record)


def _alone(model: Decoder, mine: Mine) -> float:
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

    record: Record | None = None

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted("forward", super().get_fwd_send_ops(fwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted("forward", super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted("backward", super().get_bwd_send_ops(bwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._noted("backward", super().get_bwd_recv_ops(bwd_chunk_id))

    def _noted(self, phase: str, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        return ops if self.record is None else self.record.passed(phase, ops)


def _pipeline(
    parts: list[Decoder], place: Ranks, count: int, record: Record | None
) -> Callable[[Mine], float]:
    """The rank's chunks, run by torch's own schedule."""
    plan, total = parts[0].plan, len(parts[0].plan.visits)
    places = plan.chunks_of(place.grid.place["pp"])
    stages = [
        Chunk(part, chunk, total, torch.device(place.device), group=place.grid.groups["pp",],
              input_args=part.example(), output_args=part.example(after=True))
        for part, chunk in zip(parts, places, strict=True)
    ]  # fmt: skip
    for one in stages:
        one.record = record
    kind = get_schedule_class(SCHEDULES[plan.schedule])
    several = len(stages) > 1 or plan.schedule == "zb-h1"
    first, last = 0 in places, total - 1 in places
    end = parts[places.index(total - 1)] if last else parts[0]

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return end.loss(logits, targets) / count

    schedule = kind(
        stages if several else stages[0],
        count,
        loss_fn=loss,
        scale_grads=False,  # it would scale a table that two chunks share twice
    )

    def step(mine: Mine) -> float:
        losses: list[Tensor] = []
        given: tuple[Any, ...] = (mine.tokens.flatten(0, 1),) if first else ()
        wanted: dict[str, Any] = (
            {"target": mine.targets.flatten(0, 1), "losses": losses} if last else {}
        )
        if last and plan.mtp:
            wanted["ahead"] = mine.ahead.flatten(0, 1)
        schedule.step(*given, **wanted)
        return torch.stack(losses).sum().item() if losses else 0.0

    return step
