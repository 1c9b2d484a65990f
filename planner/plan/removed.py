"""What was removed from the space of a search, the memory limit included."""

from __future__ import annotations

from planner.plan.schema import NoPlan, Plan, Removed

MEMORY = "memory"
"""Id of the limit that removes what does not fit; it is no rule of a trainer."""


def everything_removed(answer: Plan | NoPlan) -> tuple[Removed, ...]:
    """What the rules removed, and memory: layouts that the rules allow and whose least memory is over the limit."""
    if isinstance(answer, Plan):
        over = answer.proof.allowed - answer.proof.fitting
    else:
        stopped = answer.memory <= answer.memory_limit
        over = 0 if stopped else answer.searched - sum(rule.count for rule in answer.removed)
    sentence = "The fullest chip stays under the memory limit."
    memory = Removed(rule=MEMORY, family="memory", sentence=sentence, count=over)
    return (*answer.removed, memory) if over > 0 else answer.removed
