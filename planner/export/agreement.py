"""Whether the parts of a plan agree: its file may have been edited by hand."""

from __future__ import annotations

from planner.errors import Fault, PlannerError, listed
from planner.plan.schema import Plan

ENDS = ("embedding", "head")


def require_agreement(plan: Plan) -> None:
    """Refuses a plan whose stages, layers or dims contradict one another.

    Raises:
        PlannerError: what disagrees (V04).
    """
    told = []
    if len(plan.stages) != plan.degrees.pp:
        told.append(f"{len(plan.stages)} stages are listed, and degrees.pp is {plan.degrees.pp}")
    for end in ENDS:
        count = sum(block.layers == end for block in plan.blocks)
        if count != 1:
            told.append(f"{count} blocks have the layers '{end}', and a model has one")
    for block in plan.blocks:
        used = {dim for dims in block.tensors.values() for dim in dims}
        unknown = sorted(used - set(block.sizes))
        if block.sizes and unknown:
            told.append(
                f"tensors of block '{block.name}' have {listed(unknown, 'and')}, its sizes do not"
            )
    if told:
        fix = ("Take the file as it was written, or make it anew: shardwright plan --like FILE",)
        faults = (Fault("V04", f"the parts of the plan disagree: {each}.", fix) for each in told)
        raise PlannerError(*faults)
