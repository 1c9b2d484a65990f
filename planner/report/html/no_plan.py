"""The report of a search that found nothing: the verdict, what the closest miss needs, what would fit."""

from __future__ import annotations

from planner.plan.removed import everything_removed
from planner.plan.schema import NoPlan
from planner.report.html.bars import Bar, Chart, Mark, Row
from planner.report.html.page import environment, template
from planner.report.no_plan import closest_words, needs, verdict_words
from planner.report.numbers import gib, gib_parts


def render_no_plan_html(answer: NoPlan) -> str:
    """One file that needs nothing else, as :func:`planner.report.html.page.render_html`."""
    verdict, _, rest = " ".join(verdict_words(answer)).partition(": ")
    return environment().get_template("no_plan.html").render(
        answer=answer,
        verdict=f"{verdict}:",
        rest=rest,
        closest=closest_words(answer) if answer.closest else answer.explanation,
        memory=_memory(answer),
        why=_why(answer),
        remedies=[(each.change, needs(each, answer.memory_limit), each.note) for each in answer.remedies],
        removed=_removed(answer),
        style=template("style.css"),
    )  # fmt: skip


def _memory(answer: NoPlan) -> Chart:
    """What the closest miss holds, kind after kind, and the limit."""
    terms = [term for term in answer.terms if term.value]
    most = 1.04 * max(answer.memory_limit, answer.memory, 1.0)
    sizes = gib_parts([term.value for term in terms], answer.memory)
    rows, held = [], 0.0
    for term, size in zip(terms, sizes, strict=True):
        bar = Bar(
            100 * held / most, 100 * term.value / most, term.name.replace(".", "-"), term.label
        )
        rows.append(Row(term.label, (bar,), (f"{size} GiB",)))
        held += term.value
    words = f"limit {gib(answer.memory_limit)} GiB"
    return Chart(tuple(rows), (Mark(100 * answer.memory_limit / most, words, "limit"),))


def _why(answer: NoPlan) -> str:
    """What is said of the largest kind."""
    if not answer.terms or not answer.explanation:
        return ""
    largest = max(answer.terms, key=lambda term: term.value)
    return f"{largest.label}: {answer.explanation}"


def _removed(answer: NoPlan) -> Chart:
    """Layouts that each rule removed, most first."""
    rules = sorted(everything_removed(answer), key=lambda rule: (-rule.count, rule.rule))
    whole = max(1, answer.searched)
    rows = [
        Row(
            rule.rule,
            (Bar(0.0, 100 * rule.count / whole, "gone", f"removed {rule.count:,}"),),
            (f"{rule.count:,}", rule.sentence),
        )
        for rule in rules
    ]
    return Chart(tuple(rows))
