"""The plan on the fewest chips of a cluster that fit; among those, the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.plan.cluster import kind_of
from planner.plan.schema import NoPlan, Plan
from planner.planning import plan as plan_on
from planner.question import Question, understand
from planner.search.counts import doublings, narrowed
from planner.search.engine import Progress, search


def plan_smallest(
    question: Question,
    progress: Callable[[Progress], None] | None = None,
    *,
    remedies: bool = True,
) -> Plan | NoPlan:
    """The fastest plan on the fewest chips that fit, at most those of the cluster; or why there is none.

    Numbers of chips are doubled until a plan fits; below that whole hosts are looked at, or single chips of one host.
    The global batch stays that of the whole cluster, so that the question does not change with the answer.

    Args and errors: as :func:`planner.asking.plan`.
    """
    known = understand(question)
    most, host = known.task.cluster.num_chips, known.task.cluster.chips_per_host
    deadline = time.monotonic() + question.time_limit
    tried = _Tried(replace(question, global_batch=known.task.recipe.global_batch), deadline)
    first = next((n for n in doublings(1, most) if tried.fits(n)), None)
    if first is None:
        last = replace(question, time_limit=0.0) if tried.stopped else question
        return plan_on(last, progress, remedies=remedies)
    left, chips, _ = narrowed(first, host, tried.fits)
    chips = next((n for n in left if tried.fits(n)), chips)
    left_s = 0.0 if tried.stopped else max(0.0, deadline - time.monotonic())
    last = replace(tried.on(chips), time_limit=left_s)
    found = plan_on(last, progress, remedies=remedies)
    if isinstance(found, NoPlan):
        return found
    below = max((n for n, fit in tried.known.items() if n < chips and not fit), default=0)
    told = f"fewest-chips: {chips:,} of at most {most:,}"
    batch = tuple(each for each in known.assumptions if each.key == "global_batch")
    proof = found.proof.model_copy(update={"stopped": found.proof.stopped or tried.stopped})
    return found.model_copy(
        update={
            "objective": f"{told}; nothing fits on {below:,}" if below else told,
            "assumptions": (*batch, *found.assumptions),
            "proof": proof,
        }
    )


@dataclass(slots=True)
class _Tried:
    """Numbers of chips, and whether anything fits on them."""

    question: Question
    deadline: float
    """Monotonic seconds after which no more are looked at."""
    known: dict[int, bool] = field(default_factory=dict)
    stopped: bool = False
    """Time ran out, or the user interrupted: fewer chips may do."""

    def on(self, chips: int) -> Question:
        """The question on so many chips."""
        return replace(self.question, cluster=f"{kind_of(self.question.cluster)}:{chips}")

    def fits(self, chips: int) -> bool:
        """Whether anything does; once stopped only what was looked at."""
        left = self.deadline - time.monotonic()
        self.stopped = self.stopped or left <= 0
        if chips not in self.known and not self.stopped:
            asked = understand(self.on(chips))
            found = search(asked.task, asked.pins, top=1, time_limit=left)
            self.stopped = found.stopped
            if found.best is not None or not found.stopped:
                self.known[chips] = found.best is not None
        return self.known.get(chips, False)
