"""What a plan says, for the trainers' own code to be held against: degrees, batches, stages, ranks, parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from planner.export.view import View

Facts = dict[str, tuple[Any, Any]]
"""By name what a trainer's own code derived, and what the plan says."""


def stages(view: View) -> list[list[int]]:
    """Layers of every chunk in the order in which a token meets them."""
    return [list(visit) for visit in view.visits]


def group(view: View, rank: int, axis: str) -> list[int]:
    """The ranks that differ from one in an axis alone."""
    d, stride = view.degrees, 1
    for other in d.order:
        size = getattr(d, other)
        if other == axis:
            first = rank - rank // stride % size * stride
            return [first + n * stride for n in range(size)]
        stride *= size
    raise KeyError(axis)


def meshes(view: View, rank: int) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Ranks that differ from one in an axis alone, for every axis that has others; and in any set of axes."""
    alone = {axis: group(view, rank, axis) for axis in view.degrees.order}
    several = [
        tuple(sorted(rank + sum(step) for step in product(*([r - rank for r in alone[axis]] for axis in axes))))
        for count in range(len(alone) + 1)
        for axes in combinations(alone, count)
    ]  # fmt: skip
    return {tuple(ranks) for ranks in alone.values() if len(ranks) > 1}, set(several)


def weights(view: View, stage: int) -> float:
    """Parameters that a rank of a stage holds: bytes of its weights, two each."""
    terms = view.plan.stages[stage].memory
    return next(term.value for term in terms if term.name == "memory.weights") / 2


def shards(view: View, stage: int) -> float:
    """Parameters whose states a rank of a stage holds: a master and two moments of each, twelve bytes."""
    terms = view.plan.stages[stage].memory
    return next(term.value for term in terms if term.name == "memory.optimizer") / 12


def degrees(view: View) -> list[int]:
    """As trainers' own are listed: dp, tp, pp, cp, ep and chunks."""
    d = view.degrees
    return [d.dp, d.tp, d.pp, d.cp, d.ep, d.vpp]


def batches(view: View) -> list[int]:
    """Micro-batch, how many, global batch, length."""
    d, recipe = view.degrees, view.plan.recipe
    return [d.micro_batch, d.num_micro_batches, recipe.global_batch, recipe.seq]


@contextlib.contextmanager
def fake_group(world: int, rank: int) -> Iterator[None]:
    """A process group of one rank of a world that is not there."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
