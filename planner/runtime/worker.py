"""What one rank does: builds its part of the model, runs one step, and compares gradients with one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from planner.runtime.apply import apply
from planner.runtime.model import Decoder, batch, chunk, loss, whole
from planner.runtime.run import SEQUENCES, TURNS, Ran
from planner.runtime.shrink import Small

SCHEDULES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
KINDS = {
    "all_gather_into_tensor": "all-gather", "reduce_scatter_tensor": "reduce-scatter", "all_reduce": "all-reduce",
}  # fmt: skip


def compared(plan: Small, rank: int) -> Ran:
    """One step of a plan beside one step of the whole model."""
    torch.set_num_threads(1)
    names = ("pp", "replicate", "shard", "tp")
    mesh = init_device_mesh(
        "cpu", (plan.pp, plan.replicate, plan.shard, plan.tp), mesh_dim_names=names
    )
    reference = whole(plan)
    tokens, target = batch(SEQUENCES * (2 if plan.pp > 1 else 1))
    expected = loss(reference(tokens), target)
    expected.backward()
    place = mesh["replicate"].get_local_rank() * plan.shard + mesh["shard"].get_local_rank()
    mine = (tokens.chunk(plan.dp)[place], target.chunk(plan.dp)[place])
    counts: dict[str, int] = {}
    if plan.pp == 1:
        parts = [apply(whole(plan), plan, mesh)]
        found, counts = _step(parts[0], *mine)
    else:
        parts, found = _pipeline(plan, mesh, *mine)
    if plan.level == 0 and plan.dp > 1:
        _reduce(parts, mesh)
    worst, name = _worst(parts, reference)
    held = torch.tensor([worst, float(found)])
    dist.all_reduce(held[:1], op=dist.ReduceOp.MAX)
    dist.all_reduce(held[1:])
    last = plan.dp * plan.tp * (plan.pp if plan.pp == 1 else 1)
    return Ran(
        ranks=plan.ranks, loss=held[1].item() / last, expected=expected.item(), worst=held[0].item(),
        worst_name=name, counts=counts, seconds=0.0,
    )  # fmt: skip


def _step(
    model: Decoder, tokens: torch.Tensor, target: torch.Tensor
) -> tuple[float, dict[str, int]]:
    """One pass forwards and backwards, with the collectives that it issues."""
    forward, both = CommDebugMode(), CommDebugMode()
    with both:
        with forward:
            found = loss(model(tokens), target)
        found.backward()
    first, total = _kinds(forward), _kinds(both)
    counts = {f"forward {kind}": count for kind, count in first.items()}
    counts |= {f"backward {kind}": total[kind] - first.get(kind, 0) for kind in total}
    return found.item(), {key: count for key, count in counts.items() if count}


def _kinds(mode: CommDebugMode) -> dict[str, int]:
    found: dict[str, int] = {}
    for operator, count in mode.get_comm_counts().items():
        kind = next((kind for word, kind in KINDS.items() if word in str(operator)), str(operator))
        found[kind] = found.get(kind, 0) + int(count)
    return found


def _pipeline(
    plan: Small, mesh: DeviceMesh, tokens: torch.Tensor, target: torch.Tensor
) -> tuple[list[Decoder], float]:
    """The rank's chunks, run by torch's own schedule."""
    stage, group = mesh["pp"].get_local_rank(), mesh["pp"].get_group()
    total = len(plan.visits)
    turns = range(total // plan.pp)
    folded = plan.schedule in ("zbv", "dualpipev")
    places = [
        (turn + 1) * plan.pp - 1 - stage if folded and turn % 2 else turn * plan.pp + stage
        for turn in turns
    ]
    parts = [apply(chunk(plan, place), plan, mesh) for place in places]
    stages = [
        PipelineStage(part, place, total, torch.device("cpu"), group=group)
        for part, place in zip(parts, places, strict=True)
    ]
    kind = get_schedule_class(SCHEDULES[plan.schedule])
    several = len(stages) > 1 or plan.schedule == "zb-h1"
    count = 2 * plan.pp if plan.pp > 2 or folded else TURNS
    schedule = kind(stages if several else stages[0], count, loss_fn=loss)
    losses: list[torch.Tensor] = []
    given: tuple[Any, ...] = (tokens,) if 0 in places else ()
    wanted = {"target": target, "losses": losses} if total - 1 in places else {}
    schedule.step(*given, **wanted)
    return parts, torch.stack(losses).mean().item() if losses else 0.0


def _reduce(parts: list[Decoder], mesh: DeviceMesh) -> None:
    """Replicated states: gradients are averaged over the data ranks."""
    group = mesh["replicate"].get_group()
    size = dist.get_world_size(group)
    for parameter in (p for part in parts for p in part.parameters() if p.grad is not None):
        assert parameter.grad is not None
        grad = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        dist.all_reduce(grad, group=group)
        grad /= size


def _worst(parts: list[Decoder], reference: Decoder) -> tuple[float, str]:
    """The gradient that is furthest off, as a share of its largest entry."""
    wanted = {name: p.grad for name, p in reference.named_parameters()}
    worst, where = 0.0, ""
    for name, parameter in (item for part in parts for item in part.named_parameters()):
        grad = parameter.grad
        assert grad is not None, name
        whole_grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
        expected = wanted[name.replace("_checkpoint_wrapped_module.", "")]
        assert expected is not None
        off = ((whole_grad - expected).abs().max() / expected.abs().max()).item()
        if off > worst:
            worst, where = off, name
    return worst, where
