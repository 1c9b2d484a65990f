"""Whether the parts of a plan agree: its file may have been edited by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from planner.errors import Fault, PlannerError, listed
from planner.plan.findings import Comparison
from planner.plan.schema import Plan, Term

ENDS = ("embedding", "head")
SAME = 1e-4
"""Share by which two numbers may differ that are one: files are written in full, and rounded by hand."""


def require_agreement(plan: Plan, where: str = "", *, ends: bool = True) -> None:
    """Refuses a plan whose numbers, stages, layers or dims contradict one another.

    Args:
        plan: what is looked at.
        where: its file, if it has one.
        ends: whether embedding and head must be among the blocks; plans that older versions made lack them.

    Raises:
        PlannerError: what disagrees (V04).
    """
    told = [*_numbers(plan), *_chips(plan), *_structure(plan), *(_ends(plan) if ends else ())]
    if told:
        again = f"Price it again:  shardwright price --like {where or 'FILE'}"
        fix = ("Take the file as it was written.", again)
        faults = (Fault("V04", f"the plan disagrees: {one}.", fix, where) for one in told)
        raise PlannerError(*faults)


def require_best_rows(found: Comparison, where: str) -> None:
    """Refuses a comparison whose best rows are not among its rows.

    Raises:
        PlannerError: the places that are none (V04).
    """
    count = len(found.rows)
    places = {"fastest": found.fastest, "cheapest": found.cheapest}
    faults = [
        Fault(
            "V04",
            f"the comparison disagrees: '{key}' is {place}, and there are {count} rows, from 0 on.",
            ("Take the file as it was written.",),
            where,
        )
        for key, place in places.items()
        if place is not None and not 0 <= place < count
    ]
    if faults:
        raise PlannerError(*faults)


def _numbers(plan: Plan) -> Iterator[str]:
    """Totals against what they are the totals of."""
    tokens = plan.recipe.global_batch * plan.recipe.seq
    seconds = sum(term.value for term in plan.time) or plan.step
    yield from _sum("step", plan.step, "time", plan.time)
    for place, stage in enumerate(plan.stages):
        if stage.index != place:
            yield f"'stages[{place}].index' is {stage.index}, and it is stage {place}"
        yield from _sum(
            f"stages[{place}].memory_total",
            stage.memory_total,
            f"stages[{place}].memory",
            stage.memory,
        )
    if not 0 <= plan.memory_stage < len(plan.stages):
        yield f"'memory_stage' is {plan.memory_stage}, and there are {len(plan.stages)} stages"
        return
    fullest = plan.stages[plan.memory_stage].memory_total
    equal = {
        "memory": (plan.memory, fullest, "'memory_total' of its stage"),
        "tokens_per_second": (
            plan.tokens_per_second,
            tokens / seconds,
            "batch × seq over the step",
        ),
    }
    for key, (stated, right, of) in equal.items():
        if not math.isclose(stated, right, rel_tol=SAME):
            yield f"'{key}' is {stated:.6g}, and {of} is {right:.6g}"
    if plan.memory_upper < plan.memory * (1 - SAME):
        yield f"'memory_upper' is {plan.memory_upper:.6g}, less than 'memory', {plan.memory:.6g}"
    room = math.inf if plan.host_limit is None else plan.host_limit
    fits = plan.memory_upper <= plan.memory_limit and plan.host_memory <= room
    if plan.fits != fits and not plan.cluster.pools:
        yield f"'fits' is {str(plan.fits).lower()}, and memory says {str(fits).lower()}"


def _sum(key: str, total: float, place: str, terms: Iterable[Term]) -> Iterator[str]:
    right = sum(term.value for term in terms)
    if not math.isclose(total, right, rel_tol=SAME):
        yield f"'{key}' is {total:.6g}, and the values of '{place}' sum to {right:.6g}"


def _chips(plan: Plan) -> Iterator[str]:
    """Degrees against the chips, the stages and the batch."""
    d, batch = plan.degrees, plan.recipe.global_batch
    ranks = d.dp * d.cp * d.tp * d.pp
    if ranks != d.chips_used:
        yield (
            f"degrees dp {d.dp} × cp {d.cp} × tp {d.tp} × pp {d.pp} make {ranks:,} chips, "
            f"and 'degrees.chips_used' is {d.chips_used:,}"
        )
    if d.chips_used > plan.cluster.num_chips:
        yield (
            f"'degrees.chips_used' is {d.chips_used:,}, and 'cluster.num_chips' is {plan.cluster.num_chips:,}"
        )
    if d.dp * d.micro_batch * d.num_micro_batches != batch:
        yield (
            f"degrees dp {d.dp} × micro_batch {d.micro_batch} × num_micro_batches {d.num_micro_batches} "
            f"is not 'recipe.global_batch', {batch:,}"
        )
    if len(plan.stages) != d.pp:
        yield f"{len(plan.stages)} stages are listed, and 'degrees.pp' is {d.pp}"


def _structure(plan: Plan) -> Iterator[str]:
    for block in plan.blocks:
        used = {dim for dims in block.tensors.values() for dim in dims}
        unknown = sorted(used - set(block.sizes))
        if block.sizes and unknown:
            yield f"tensors of block '{block.name}' have {listed(unknown, 'and')}, its sizes do not"


def _ends(plan: Plan) -> Iterator[str]:
    for end in ENDS:
        count = sum(block.layers == end for block in plan.blocks)
        if count != 1:
            yield f"{count} blocks have the layers '{end}', and a model has one"
