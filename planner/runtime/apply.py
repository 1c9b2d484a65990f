"""A plan applied to a module: DTensor placements for products, sequence parallelism, FSDP2, checkpointing."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from planner.runtime.model import Decoder
from planner.runtime.shrink import Small

MODULES = {
    "attn.q": ("attention.q",),
    "attn.kv": ("attention.k", "attention.v"),
    "attn.out": ("attention.out",),
    "mlp.up": ("mlp.gate", "mlp.up"),
    "mlp.down": ("mlp.down",),
}
"""Operators of a layer to its modules."""


def apply(model: Decoder, plan: Small, mesh: DeviceMesh) -> Decoder:
    """The module as the plan runs it on one rank of a mesh with the axes pp, replicate, shard and tp."""
    if plan.tp > 1:
        _split(model, plan, mesh["tp"])
    if plan.recompute:
        for name, layer in list(model.layers.items()):
            model.layers[name] = checkpoint_wrapper(layer)
    if plan.level > 0 and plan.shard > 1:
        _shard(model, plan, mesh)
    return model


def _split(model: Decoder, plan: Small, mesh: DeviceMesh) -> None:
    """Products split by columns or rows; one gather at the entry of attention and MLP, not one a product."""
    stream = Shard(1) if plan.sequence_parallel else Replicate()
    for layer in model.layers.values():
        parallelize_module(layer, mesh, _layer_plan(plan, stream, gated=layer.mlp.gate is not None))
    ends: dict[str, Any] = {}
    if model.embedding is not None and plan.cuts["lookup"] == "column":
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    if model.norm is not None and plan.sequence_parallel:
        ends["norm"] = SequenceParallel()
    if model.head is not None and plan.cuts["project"] == "column":
        ends["head"] = ColwiseParallel(input_layouts=stream, output_layouts=Replicate())
    if ends:
        parallelize_module(model, mesh, ends)


def _layer_plan(plan: Small, stream: Placement, *, gated: bool) -> dict[str, Any]:
    styles: dict[str, Any] = {}
    for operator, modules in MODULES.items():
        for module in modules if gated else modules[-2:][-1:] if operator == "mlp.up" else modules:
            if plan.cuts[operator] == "column":
                styles[module] = ColwiseParallel()
            elif plan.cuts[operator] == "row":
                styles[module] = RowwiseParallel(output_layouts=stream)
    if plan.sequence_parallel:
        styles |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    for entry in ("attention", "mlp"):
        styles[entry] = PrepareModuleInput(
            input_layouts=(stream,), desired_input_layouts=(Replicate(),)
        )
    return styles


def _shard(model: Decoder, plan: Small, mesh: DeviceMesh) -> None:
    """States over the data ranks; weights are kept gathered between passes below ZeRO-3."""
    data = mesh["replicate", "shard"] if plan.replicate > 1 else mesh["shard"]
    again = plan.level == 3 and plan.pp == 1
    for layer in model.layers.values():
        fully_shard(layer, mesh=data, reshard_after_forward=again)
    fully_shard(model, mesh=data, reshard_after_forward=again)
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that scales
