"""One question on several clusters: the best plan on each, where their order turns, what each depends on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.asking import plan, read, sensitive
from planner.errors import Fault, PlannerError, listed, nearest
from planner.frontends.cluster_file import is_mixed, read_cluster
from planner.plan.findings import Compared, Comparison
from planner.plan.schema import NoPlan, Plan
from planner.question import Question, Understood
from planner.search.answer import model_facts, recipe_facts
from planner.studies.crossover import crossovers
from planner.studies.parallel import answers
from planner.studies.ranges import WhatIf, expanded
from planner.studies.specs import names_of, stated_prices, with_chips
from planner.units import show_bytes

WAITS = {
    "tp": "tp",
    "cp": "cp",
    "ep": "ep",
    "weights": "weight gathers",
    "gradients": "dp",
    "bubble": "pipeline bubble",
    "sends": "pp",
    "other": "optimizer",
    "offload": "offload",
}
"""Parts of a step that are no computing, and short words for them."""
NAMES = frozenset({"C01", "C02", "T02", "M01"})
"""Codes of faults that are slips of a whole question, not of one row."""
LITTLE, NOTABLE = 0.10, 0.03
"""Shares of the step: all waiting together below which computing bounds it, and each kind that is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row that is asked for."""

    question: Question
    chips: int
    label: str = ""
    """The what-if, as it was asked for."""
    sensitive: bool = False

    @property
    def before(self) -> int:
        """How many of the question's what-ifs stand before those of the label, which are its last."""
        return len(self.question.what_if) - len(self.label.split(" and ")) * bool(self.label)


def compare(
    question: Question,
    *,
    clusters: Sequence[str] = (),
    chips: Sequence[int] = (),
    trainers: Sequence[str] = (),
    what_if: Sequence[str] = (),
    dollars: Mapping[str, float] | None = None,
    sensitivity: bool = False,
    jobs: int | None = None,
    backend: str = "local",
    done: Callable[[int, int], None] | None = None,
) -> Comparison:
    """The best plan on every cluster, number of chips and trainer, as they are and under every what-if.

    Args:
        question: what is asked; its cluster and trainer count where none are given here.
        clusters: as :attr:`Question.cluster`.
        chips: numbers of chips of each cluster, instead of its own.
        trainers: names.
        what_if: numbers of the hardware, each a row (a range or a list: several) beside the unchanged cluster.
        dollars: prices of a chip-hour by the name of a chip or cluster.
        sensitivity: also the step with every number of the hardware a fifth lower and higher.
        jobs: processes (:func:`planner.studies.parallel.answers`).
        backend: where they run.
        done: called with the number of rows so far and of all.

    Raises:
        PlannerError: wrong input; for one row of several it stands in the row.
        KeyboardInterrupt: Ctrl-C before the first row; after it the rows that there are make the answer.
    """
    what_ifs = [expanded(text) for text in what_if]
    clusters = clusters or (question.cluster,)
    points = list(_points(question, clusters, chips, trainers or (question.trainer,), what_ifs))
    points = _priced(points, dollars or {})
    known = _understood(points, what_ifs)
    batch = known.task.recipe.global_batch
    points = [
        replace(p, question=replace(p.question, global_batch=batch, top=1), sensitive=sensitivity)
        for p in points
    ]
    rows = answers(compared, points, jobs=jobs, backend=backend, done=done)
    if not rows:
        raise KeyboardInterrupt
    turns = crossovers(points, rows, what_ifs, _asked) if len(rows) == len(points) else ()
    fit = [index for index, row in enumerate(rows) if row.fits]
    priced = [index for index in fit if rows[index].price_per_million_tokens is not None]
    return Comparison(
        model=model_facts(known.task),
        recipe=recipe_facts(known.task),
        rows=tuple(rows),
        fastest=max(fit, key=lambda i: rows[i].tokens_per_second or 0.0, default=None),
        cheapest=min(priced, key=lambda i: rows[i].price_per_million_tokens or 0.0, default=None),
        crossovers=tuple(turns),
        left_out=len(points) - len(rows),
    )


def _points(
    question: Question,
    clusters: Sequence[str],
    chips: Sequence[int],
    trainers: Sequence[str],
    what_ifs: Sequence[WhatIf],
) -> Iterator[Point]:
    for cluster in clusters:
        for count in chips or (None,):
            spec = cluster if count is None else with_chips(cluster, count)
            for trainer in trainers:
                asked = replace(question, cluster=spec, trainer=trainer)
                yield Point(question=asked, chips=count or 0)
                for text in (text for each in what_ifs for text in each.texts):
                    parts = tuple(part.strip() for part in text.split(" and "))
                    changed = replace(asked, what_if=(*question.what_if, *parts))
                    yield Point(question=changed, chips=count or 0, label=text)


def _priced(points: list[Point], dollars: Mapping[str, float]) -> list[Point]:
    """Points with the prices that were stated for their chips, pools or cluster."""
    names: set[str] = set()
    found = []
    for point in points if dollars else ():
        names |= names_of(point.question)
        stated, place = stated_prices(point.question, dollars), point.before
        own = point.question.what_if
        what_if = (*own[:place], *stated, *own[place:])
        found.append(replace(point, question=replace(point.question, what_if=what_if)))
    unknown = [name for name in dollars if name.lower() not in names]
    if unknown:
        close = listed(nearest(unknown[0], names))
        raise PlannerError.of(
            "A04", f"--price: nothing here is called '{unknown[0]}'. Nearest: {close}."
        )
    return found or points


def _understood(points: Sequence[Point], what_ifs: Sequence[WhatIf]) -> Understood:
    """The first point that can be understood, whose default batch all take.

    Raises:
        PlannerError: a cluster or trainer that nobody knows, a what-if that suits no cluster, or no point at all that
            can be understood; what else is wrong with a single point stands in its row.
    """
    found: dict[int, Understood] = {}
    faults: dict[Fault, None] = {}
    plain = [point for point in points if not point.label]
    for place, point in enumerate(plain):
        try:
            found[place] = read(point.question)
        except PlannerError as error:
            faults |= dict.fromkeys(error.faults)
    if not found or any(fault.code in NAMES for fault in faults):
        raise PlannerError(*faults)
    for text in (each.texts[0] for each in what_ifs):
        suits = [_refused(point) for point in points if point.label == text]
        if suits and all(suits):
            raise PlannerError(*dict.fromkeys(fault for refused in suits for fault in refused))
    return next(iter(found.values()))


def _refused(point: Point) -> tuple[Fault, ...]:
    """What is wrong with a point."""
    try:
        read(_reached(point.question))
    except PlannerError as error:
        return error.faults
    return ()


def _asked(point: Point, text: str) -> Compared:
    """A point at another value of a what-if."""
    kept = point.question.what_if[: point.before]
    return compared(replace(point, question=replace(point.question, what_if=(*kept, text)), label=text,
                            sensitive=False))  # fmt: skip


def compared(point: Point) -> Compared:
    """The best plan of one point as a row; what is wrong with the point stands in its row."""
    question, started = point.question, time.monotonic()
    try:
        point = replace(point, question=_reached(question) if point.label else question)
        answer = plan(point.question, remedies=False)
    except PlannerError as error:
        return Compared(
            cluster=question.cluster,
            chips=point.chips,
            trainer=question.trainer,
            what_if=point.label,
            fits=False,
            note=_brief(error.faults[0].what),
            asked=question.asked(),
        )
    stopped = answer.proof.stopped if isinstance(answer, Plan) else answer.stopped
    if stopped and time.monotonic() - started < question.time_limit:
        raise KeyboardInterrupt  # which the search turned into its best so far
    return row_of(point, answer)


def _reached(question: Question) -> Question:
    """The question without what-ifs on levels of the network that so few chips do not reach: they change nothing."""
    if is_mixed(question.cluster):
        return question
    cluster = read_cluster(question.cluster, question.folders)
    beyond = {level.name for level in cluster.levels[cluster.depth :]}
    kept = tuple(text for text in question.what_if if text.split(".")[0].strip() not in beyond)
    return replace(question, what_if=kept)


def row_of(point: Point, answer: Plan | NoPlan) -> Compared:
    """A point with its answer as a row."""
    question = point.question
    row = {
        "cluster": question.cluster,
        "chips": answer.cluster.num_chips,
        "trainer": question.trainer,
        "what_if": point.label,
        "memory_limit": answer.memory_limit,
        "fits": isinstance(answer, Plan),
        "asked": question.asked(),
    }
    if isinstance(answer, NoPlan):
        return Compared.model_validate(
            row | {"memory": answer.memory or None, "note": _why(answer)}
        )
    energy = answer.derivations.get("energy")
    return Compared.model_validate(
        row
        | {
            "degrees": answer.degrees,
            "step": answer.step,
            "tokens_per_second": answer.tokens_per_second,
            "mfu": answer.mfu,
            "memory": answer.memory,
            "price": None if answer.cluster.pools else answer.cluster.price,
            "pool_prices": {p.chip: p.price for p in answer.cluster.pools if p.price is not None},
            "price_per_million_tokens": answer.price_per_million_tokens,
            "energy_per_million_tokens": None if energy is None else energy.value,
            "bound_by": bound_by(answer),
            "gap": answer.proof.gap,
            "note": "; ".join(_doubts(answer)),
            "sensitivities": sensitive(question, answer) if point.sensitive else (),
        }
    )


def _doubts(answer: Plan) -> list[str]:
    """What a reader of the row alone should know: a trainer of other chips, chips that were never measured."""
    found = [each.text for each in answer.assumptions if each.key == "port"]
    return found if answer.trust.measured else [*found, _brief(answer.trust.text)]


def _why(answer: NoPlan) -> str:
    if answer.closest is None:
        return _brief(answer.explanation) or "the trainer's rules leave no layout"
    if answer.memory > answer.memory_limit:
        return f"needs {show_bytes(answer.memory)} of {show_bytes(answer.memory_limit)}"
    most, limit = show_bytes(answer.memory_upper), show_bytes(answer.memory_limit)
    return f"one run in ten would need more than {most} of {limit}"


def _brief(text: str) -> str:
    """The first sentence."""
    return text.partition(". ")[0].rstrip(".")


def bound_by(answer: Plan) -> str:
    """What the step waits for: ``compute``, or the kinds of waiting from the longest on."""
    waiting = {
        word: term.value / answer.step
        for term in answer.time
        if (word := WAITS.get(term.name.removeprefix("step.")))
    }
    if sum(waiting.values()) < LITTLE:
        return "compute"
    kinds = sorted((w for w in waiting if waiting[w] >= NOTABLE), key=lambda w: -waiting[w])
    return ", then ".join(kinds[:2]) or "compute"
