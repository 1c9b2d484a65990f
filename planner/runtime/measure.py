"""Twenty steps of an exported plan on the chips at hand: ``torchrun … -m planner.runtime.measure dtensor.json``.

The operators are plain torch, so times are those of eager kernels without fusion. Weights are held in fp32 and computed
with in the recipe's precision: gathered so where states are sharded, copied so where they are not.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from planner.errors import PlannerError
from planner.runtime.apply import finish, finish_tables, ranks
from planner.runtime.model import Decoder, batch, share
from planner.runtime.program import Program, program
from planner.runtime.steps import chunks, part_of_batch, stepping
from planner.units import Json

STEPS = 20
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""What products are computed in; fp8 needs kernels that plain torch does not have here."""
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def main(file: str) -> None:
    """Runs a plan and prints a line a step.

    Raises:
        PlannerError: the processes are not as many as the plan's ranks, or its optimizer is not torch's (W06).
    """
    data: Json = json.loads(Path(file).read_text(encoding="utf-8"))
    plan, recipe = program(data), data.get("recipe") or {}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    warnings.simplefilter("ignore")
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        _checked(plan, recipe)
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        _measured(
            plan,
            device,
            NARROW.get(recipe.get("precision", "bf16")),
            recipe.get("optimizer", "adamw"),
        )
    finally:
        dist.destroy_process_group()


def _checked(plan: Program, recipe: dict[str, str]) -> None:
    if dist.get_world_size() != plan.ranks:
        what = (
            f"The plan has {plan.ranks} ranks, and {dist.get_world_size()} processes were started."
        )
        raise PlannerError.of("W06", what, f"NODES=… PER_NODE=… with the product {plan.ranks}")
    if recipe.get("optimizer", "adamw") not in OPTIMIZERS:
        what = f"The optimizer {recipe['optimizer']} is not run."
        raise PlannerError.of("W06", what, "shardwright plan … --optimizer adamw")


def _measured(plan: Program, device: str, narrow: torch.dtype | None, optimizer: str) -> None:
    place = ranks(plan, device, narrow)
    mine = part_of_batch(plan, place, *batch(plan))
    held = torch.get_default_dtype()
    sharded = plan.level > 0 and plan.data > 1
    torch.set_default_dtype(held if narrow is None or sharded else narrow)
    with torch.device("meta"):
        parts = chunks(plan, place)
    for part in parts:
        _filled(part, device)
    share(parts)  # what came from the meta device is several again
    torch.set_default_dtype(narrow or held)
    torch.set_default_device(device)
    mine = type(mine)(mine.tokens.to(device), mine.ahead.to(device), mine.targets.to(device))
    weights = list({id(p): p for part in parts for p in part.parameters()}.values())
    masters = [p if p.dtype == held else p.detach().to(held) for p in weights]
    update = OPTIMIZERS[optimizer](masters, lr=1e-5)
    step = stepping(parts, place, len(mine.tokens))
    for number in range(STEPS):
        _waited(device)
        began = time.perf_counter()
        step(mine)
        finish(parts, place)
        finish_tables(parts, place)
        _updated(update, weights, masters)
        _waited(device)
        _told(number, time.perf_counter() - began, device)


def _filled(part: Decoder, device: str) -> None:
    """Small random weights where there were only shapes; norms begin with ones."""
    part.to_empty(device=device)
    for parameter in part.parameters():
        whole = parameter.dim() > 1
        nn.init.normal_(parameter, std=0.02) if whole else nn.init.ones_(parameter)


def _updated(
    update: torch.optim.Optimizer, weights: Sequence[nn.Parameter], masters: Sequence[torch.Tensor]
) -> None:
    """One step of the optimizer, on copies in full precision where the weights are narrow."""
    for weight, master in zip(weights, masters, strict=True):
        if master is not weight and weight.grad is not None:
            master.grad = weight.grad.to(master.dtype)
    update.step()
    with torch.no_grad():
        for weight, master in zip(weights, masters, strict=True):
            if master is not weight:
                weight.copy_(master)
            weight.grad = master.grad = None


def _waited(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def _told(number: int, seconds: float, device: str) -> None:
    """The slowest rank's time and the fullest one's memory, by the first rank."""
    peak = (
        torch.cuda.max_memory_allocated() / 2**30
        if device == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    )
    most = torch.tensor([seconds, peak], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        sys.stdout.write(f"step {number} took {most[0]:.4f} s, peak {most[1]:.3f} GiB\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except PlannerError as wrong:
        sys.exit(str(wrong))
