"""How many chips: the fewest that fit, or that meet a step time, a deadline or a price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from planner.errors import PlannerError
from planner.frontends.pools_file import read_pools
from planner.plan.findings import Compared, Sizing, Target
from planner.question import Question, understand
from planner.search.answer import model_facts, recipe_facts
from planner.search.counts import doublings, narrowed
from planner.studies.compare import Point, compared
from planner.studies.parallel import answers
from planner.studies.specs import with_chips
from planner.trainers.trainer import Task

MOST_CHIPS = 2**17
"""Chips beyond which nothing is looked at unless the cluster names more."""
BEYOND = 3
"""Doublings of the answer that the curve shows."""
IDLE = 2
"""Doublings without a faster step after which more chips are no hope."""


def fewest(
    question: Question,
    *,
    target: Target | None = None,
    jobs: int | None = None,
    backend: str = "local",
    done: Callable[[int, int], None] | None = None,
) -> Sizing:
    """The fewest chips that fit and meet a target.

    Numbers of chips are doubled until one does; below it whole hosts are looked at, all of them once they are few.
    Numbers too small for the time even at the chips' peak are skipped.

    Args:
        question: what is asked; a number of chips in its cluster is the most that may be used.
        target: what to meet besides fitting.
        jobs: processes (:func:`planner.studies.parallel.answers`).
        backend: where they run.
        done: called with the number of plans so far and of all that are known to be needed.

    Raises:
        PlannerError: wrong input, or a target that cannot be judged (A03).
        KeyboardInterrupt: Ctrl-C before the first plan; after it the plans that there are make the answer.
    """
    target = target or Target()
    if read_pools(question.cluster, question.folders) is not None:
        raise PlannerError.of(
            "C06",
            f"--cluster {question.cluster} has pools: the fewest chips are found of one kind of chip.",
            "Ask about one pool at a time, give --largest, or compare several sizes: "
            "shardwright compare … --cluster 'A:8 + B:4' --cluster 'A:16 + B:8'",
        )
    known = understand(question)
    _check(target, known.task)
    batch = (
        question.global_batch
        if question.global_batch is not None
        else known.task.recipe.global_batch
    )
    sizer = _Sizer(
        replace(question, global_batch=batch, objective="step-time"),
        known.task,
        target,
        jobs,
        backend,
        done,
    )
    try:
        first = sizer.doubled()
        if first is None:
            return sizer.found(None, 1)
        chips, grain = sizer.refined(first)
        last = min(chips << BEYOND, sizer.most)
        sizer.ask([n for n in doublings(chips, last) if n not in sizer.rows])
    except KeyboardInterrupt:
        return sizer.so_far()
    return sizer.found(chips, grain)


def _check(target: Target, task: Task) -> None:
    if (target.days is not None or target.dollars is not None) and target.tokens is None:
        raise PlannerError.of(
            "A03", "--days and --dollars need --tokens.", "Write it like --tokens 15T"
        )
    if target.days is not None and not 0 < target.days < math.inf:
        raise PlannerError.of("A03", f"--days {target.days:g} is no deadline.", "Write it like 60")
    if target.dollars is not None and task.cluster.chip.price is None:
        raise PlannerError.of(
            "A03",
            f"--dollars needs a price, and {task.cluster.chip.name} has none.",
            "Give it: --what-if chip.price=2.50",
        )


def missed(row: Compared, target: Target) -> str:
    """Why a row does not meet a target; empty where it does."""
    if not row.fits or row.step is None:
        return row.note or "does not fit"
    if target.step is not None and row.step > target.step:
        return "step"
    days, cost = days_of(row, target), dollars_of(row, target)
    if target.days is not None and (days is None or days > target.days):
        return "days"
    if target.dollars is not None and (cost is None or cost > target.dollars):
        return "dollars"
    return ""


def days_of(row: Compared, target: Target) -> float | None:
    """Days that a row takes for all tokens."""
    if target.tokens is None or not row.tokens_per_second:
        return None
    return target.tokens / row.tokens_per_second / 86400.0


def dollars_of(row: Compared, target: Target) -> float | None:
    """What all tokens cost on a row."""
    if target.tokens is None or row.price_per_million_tokens is None:
        return None
    return target.tokens / 1e6 * row.price_per_million_tokens


@dataclass(slots=True)
class _Sizer:
    """Rows by their number of chips."""

    question: Question
    task: Task
    target: Target
    jobs: int | None
    backend: str
    done: Callable[[int, int], None] | None
    rows: dict[int, Compared] = field(default_factory=dict)
    note: str = ""

    @property
    def most(self) -> int:
        """The most chips that may be used."""
        name, colon, count = self.question.cluster.rpartition(":")
        stated = bool(name and colon and count[:1].isdigit())
        limit = self.task.cluster.levels[-1].size or MOST_CHIPS
        return self.task.cluster.num_chips if stated else limit

    def ask(self, counts: Iterable[int]) -> None:
        """Find the best plans on several numbers of chips."""
        counts = list(counts)
        points = [
            Point(
                question=replace(
                    self.question, cluster=with_chips(self.question.cluster, n), top=1
                ),
                chips=n,
            )
            for n in counts
        ]
        so_far = len(self.rows)

        def told(done: int, _: int) -> None:
            if self.done is not None:
                self.done(so_far + done, so_far + len(counts))

        found = answers(compared, points, jobs=self.jobs, backend=self.backend, done=told)
        self.rows |= dict(zip(counts, found, strict=False))
        if len(found) < len(counts):
            raise KeyboardInterrupt

    def meets(self, chips: int) -> bool:
        """Whether a number of chips does it."""
        if chips not in self.rows:
            self.ask([chips])
        return not missed(self.rows[chips], self.target)

    def doubled(self) -> int | None:
        """The first of 1, 2, 4, … that meets the target, and the most that may be used at the end."""
        best, idle = math.inf, 0
        for chips in doublings(1, self.most):
            if chips < self.least():
                continue
            if self.meets(chips):
                return chips
            step = self.rows[chips].step
            idle = idle + 1 if step is not None and step >= 0.99 * best else 0
            best = min(best, step or math.inf)
            if idle == IDLE:
                self.note = f"more than {chips >> IDLE:,} chips make the step no shorter"
                return None
        self.note = f"{self.most:,} chips are the most that were looked at"
        return None

    def refined(self, chips: int) -> tuple[int, int]:
        """The fewest chips between half of these, which do not do it, and these; and what was left between."""
        left, chips, unit = narrowed(chips, self.task.cluster.chips_per_host, self.meets)
        between = [n for n in left if n >= self.least()]
        self.ask(n for n in between if n not in self.rows)
        return next((n for n in between if self.meets(n)), chips), unit

    def least(self) -> int:
        """With fewer chips than this the FLOPs of a step take too long even at peak."""
        recipe, chip = self.task.recipe, self.task.cluster.chip
        flops = self.task.model.training_flops() * recipe.global_batch
        limit = self.target.step or math.inf
        if self.target.days is not None and self.target.tokens is not None:
            limit = min(limit, self.target.days * 86400.0 * recipe.tokens / self.target.tokens)
        return max(1, math.ceil(0.999 * flops / chip.peak_for(recipe.precision) / limit))

    def so_far(self) -> Sizing:
        """The fewest chips of those that were looked at before the user stopped.

        Raises:
            KeyboardInterrupt: none were.
        """
        if not self.rows:
            raise KeyboardInterrupt
        enough = [n for n, row in self.rows.items() if not missed(row, self.target)]
        self.note = f"stopped after {max(self.rows):,} chips"
        found = self.found(min(enough, default=None), 1)
        return found.model_copy(update={"stopped": True})

    def found(self, chips: int | None, grain: int) -> Sizing:
        """The answer, with the number below it that does not do it."""
        below = [n for n in self.rows if chips is None or n < chips]
        return Sizing(
            model=model_facts(self.task),
            recipe=recipe_facts(self.task),
            cluster=self.task.cluster.name,
            target=self.target,
            answer=None if chips is None else self.rows[chips],
            below=self.rows[max(below)] if below and chips is not None else None,
            grain=grain,
            note="" if chips is not None else self.note,
            curve=tuple(self.rows[n] for n in sorted(self.rows)),
        )
