"""States sharded over the data ranks by FSDP2, layers computed again, and gradients summed where a plan leaves sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from planner.runtime.grid import Grid, grid, ranks_of
from planner.runtime.model import Decoder, Weights, key
from planner.runtime.program import DENSE, EXPERT, Program


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The meshes of a plan."""

    grid: Grid
    data: DeviceMesh | None
    """Ranks that hold the same weights: ``replicas`` outside, ``data`` inside, over which states are sharded."""
    edp: DeviceMesh | None
    """Ranks that hold the same experts."""
    ends: dist.ProcessGroup | None = None
    """A rank of the first stage and the one of the last at its place, where they share a table."""
    device: str = "cpu"
    """Where it computes."""
    narrow: torch.dtype | None = None
    """In what sharded weights are gathered, where not as they are held."""

    def names(self) -> dict[str, str]:
        """Axes by the names of their groups."""
        found = self.grid.names()
        for mesh in (self.data, self.edp):
            if mesh is not None:
                names = mesh.mesh_dim_names or ()
                found |= {mesh.get_group(axis).group_name: axis for axis in names}
        if self.ends is not None:
            found[self.ends.group_name] = "ends"
        return found


def ranks(plan: Program, device: str = "cpu", narrow: torch.dtype | None = None) -> Ranks:
    """The meshes of a plan, made by all ranks together."""
    order = [axis for axis in plan.axes if axis not in EXPERT]
    if not set(DENSE) <= set(order):
        mesh = grid((order, ranks_of(plan.axes, order, order)), joint=True)
        return Ranks(mesh, None, None, device=device, narrow=narrow)
    fixed = ("pp", *DENSE)
    by_stage = ranks_of(plan.axes, order, fixed)
    experts = by_stage.reshape(plan.pp, *(plan.axes[axis] for axis in EXPERT))
    shard = plan.shard if plan.level else plan.data
    data = by_stage.permute(0, 3, 1, 2).reshape(-1, plan.data // shard, shard)
    edp = experts.permute(0, 2, 3, 1).reshape(-1, plan.axes["edp"])
    apart = plan.expert_parallel
    return Ranks(
        grid((fixed, by_stage), *[(("stage", *EXPERT), experts)] * plan.has_experts),
        _mesh(device, data, "rest", "replicas", "data")["replicas", "data"]
        if plan.data > 1
        else None,
        _mesh(device, edp, "rest", "edp")["edp"] if apart and plan.axes["edp"] > 1 else None,
        _ends(by_stage) if plan.tied and plan.pp > 1 and not plan.folded else None,
        device,
        narrow,
    )


def _ends(by_stage: Tensor) -> dist.ProcessGroup | None:
    pairs = torch.stack([by_stage[0].flatten(), by_stage[-1].flatten()], 1).tolist()
    made = [(pair, dist.new_group(pair)) for pair in pairs]
    return next((group for pair, group in made if dist.get_rank() in pair), None)


def _mesh(device: str, ranks: Tensor, *names: str) -> DeviceMesh:
    return DeviceMesh(device, ranks, mesh_dim_names=names)


def apply(model: Decoder, ranks: Ranks) -> Decoder:
    """The model as the plan runs it: recompute and state sharding."""
    plan = model.plan
    for several in (model.layers, model.mtp):
        for name, layer in several.named_children():
            if layer.part.recomputed:
                setattr(several, name, checkpoint_wrapper(layer))
    if plan.level > 0 and (ranks.data is not None or ranks.edp is not None):
        _shard(model, ranks)
    return model


def _shard(model: Decoder, ranks: Ranks) -> None:
    """States over the data ranks; weights are kept gathered between passes below ZeRO-3."""
    again = model.plan.level == 3
    policy = MixedPrecisionPolicy(
        param_dtype=ranks.narrow, reduce_dtype=ranks.narrow and torch.float32
    )
    data = ranks.data
    if data is not None and data["replicas"].size() == 1:
        data = data["data"]
    apart: set[nn.Parameter] = set()
    for part in _together(model):
        inside = (module for one in part for module in one.modules())
        apart_too = model.plan.expert_parallel
        experts = [m for m in inside if apart_too and isinstance(m, Weights) and _is_expert(m)]
        if experts and ranks.edp is not None:
            _shard_over(experts, ranks.edp, again, policy)
        else:
            apart |= {p for m in experts for p in m.parameters()}
        if data is not None:
            _shard_over(part, data, again, policy, apart)
    _shard_over(model, data or ranks.edp, again, policy, apart)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that scales
            module.set_gradient_divide_factor(1.0)


def _shard_over(
    modules: nn.Module | list[Any],
    mesh: DeviceMesh | None,
    again: bool,
    policy: MixedPrecisionPolicy,
    apart: set[nn.Parameter] | None = None,
) -> None:
    """FSDP2 along the first dim that the ranks divide, so that nothing is padded."""
    assert mesh is not None
    ranks = mesh.size(-1)

    def dim(parameter: nn.Parameter) -> Shard | None:
        return next((Shard(n) for n, size in enumerate(parameter.shape) if size % ranks == 0), None)

    fully_shard(
        modules, mesh=mesh, reshard_after_forward=again, mp_policy=policy, ignored_params=apart,
        shard_placement_fn=dim,
    )  # fmt: skip


def _together(model: Decoder) -> list[list[nn.Module]]:
    """Parts by whose states are gathered at once: each by itself, but those that share a table."""
    ends = [end for end in (model.embedding, model.head, *model.mtp) if end is not None]
    sharing = [end for end in ends if model.plan.tables.keys() & set(end.part.weights)]
    if len(sharing) < 2:
        return [[part] for part in model.parts()]
    return [sharing, *([part] for part in model.parts() if part not in sharing)]


def _is_expert(module: Weights) -> bool:
    return bool(module.call.op.weights) and any(
        "ep" in placements for placements in module.call.op.weights.values()
    )


def finish(models: Sequence[Decoder], ranks: Ranks) -> None:
    """Sums the gradients that are still sums over some ranks: all of a layer's over the same ranks at once."""
    seen: set[nn.Parameter] = set()
    for model in models:
        _finish(model, ranks, seen)


def _finish(model: Decoder, ranks: Ranks, seen: set[nn.Parameter]) -> None:
    done = {"dp", "cp", "data", "edp"} if isinstance(model, FSDPModule) else {"dp", "cp"}
    for part in model.parts():
        together: dict[tuple[str, ...], list[Tensor]] = {}
        for module, name, parameter in weights(part):
            if parameter in seen:
                continue
            seen.add(parameter)
            axes = set(module.partial(name))
            if "edp" in axes and not model.plan.expert_parallel:
                axes = {"data"}
            if axes & {"dp", "cp"}:
                axes.add("data")
            left = sorted(axes - done)
            if ranks.grid.joint and left:
                _sum([gradient(parameter)], tuple(left), ranks)
                continue
            for axis in left:
                together.setdefault((axis,), []).append(gradient(parameter))
        for some, grads in sorted(together.items()):
            _sum(grads, some, ranks)


def finish_tables(models: Sequence[Decoder], ranks: Ranks) -> None:
    """Sums the gradients of tables of which the first and the last stage have a copy each; in a V they are one."""
    plan = models[0].plan
    held = {
        (name, model.embedding is None): parameter
        for model in models
        for part in model.parts()
        for _, name, parameter in weights(part)
        if name in plan.tables and name in plan.embedding.weights
    }
    if plan.pp == 1 or plan.folded:
        return
    for parameter in held.values():
        grad = gradient(parameter)
        dist.all_reduce(grad, group=ranks.ends)


def gradient(parameter: nn.Parameter) -> Tensor:
    """What a rank holds of a gradient."""
    assert parameter.grad is not None
    return parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad


def _sum(grads: list[Tensor], axes: tuple[str, ...], ranks: Ranks) -> None:
    flat = torch.cat([grad.flatten() for grad in grads])
    data = ranks.data.get_group("data") if axes == ("data",) and ranks.data is not None else None
    dist.all_reduce(flat, group=data or ranks.grid.groups[axes])
    for grad, found in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(found.view_as(grad))


def weights(part: nn.Module) -> list[tuple[Weights, str, nn.Parameter]]:
    """All weights of a part, with the module that holds it and its name in the plan."""
    return [
        (module, name, getattr(module, key(name)))
        for module in part.modules()
        if isinstance(module, Weights)
        for name in module.call.op.weights
    ]
