"""What the time of an operator rests on: the first word of the source of its efficiency."""

from __future__ import annotations

from planner.plan.schema import OperatorPlan, Plan

EFFICIENCIES = {"matmul": "matmul_efficiency", "attention": "attention_efficiency"}
"""Of kinds of operators; all others wait for memory."""
WORDS = {
    "fitted": "the efficiency was fitted on measured training runs of this chip",
    "measured": "kernels or steps were measured on this chip",
    "borrowed": "the efficiency is that of a related chip",
    "assumed": "nobody measured it",
    "calibrated": "the efficiency was fitted on runs of your own",
    "stated": "the efficiency is as it was asked for",
}
"""First words of sources, and what they mean."""


def basis_of(plan: Plan, op: OperatorPlan) -> str:
    """A word of :data:`WORDS`; empty in plans that do not say, and for sources of another form."""
    word = source_of(plan, op).split(" ", 1)[0].rstrip(":")
    return word if word in WORDS else ""


def source_of(plan: Plan, op: OperatorPlan) -> str:
    """Where the efficiency comes from."""
    key = EFFICIENCIES.get(op.kind, "memory_efficiency")
    return plan.cluster.efficiency_sources.get(key, "")


def bases(plan: Plan) -> list[str]:
    """The words that a plan's operators rest on, each once."""
    found = (basis_of(plan, op) for block in plan.blocks for op in block.operators)
    return [word for word in dict.fromkeys(found) if word]
