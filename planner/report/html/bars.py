"""Charts made of bars: where each begins and ends, in percent of its track."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from planner.plan.figures import Figures, RuleCost
from planner.plan.removed import everything_removed
from planner.plan.schema import Plan, Stage
from planner.report.html.svg import ticks
from planner.report.numbers import TOLD, gib, gib_parts, percent, percents, seconds_parts, time_unit
from planner.units import GIB, show_seconds


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a row."""

    left: float
    """Percent of the track."""
    width: float
    kind: str
    """Its colour's class."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a chart: a label, bars on a track, and cells of numbers."""

    label: str
    bars: tuple[Bar, ...]
    cells: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A line through all rows."""

    left: float
    words: str
    kind: str = "tick"


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows on one scale."""

    rows: tuple[Row, ...]
    marks: tuple[Mark, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    """Class and words of every colour."""
    left_out: int = 0
    """Rows that would show nothing."""


def waterfall(plan: Plan, figures: Figures) -> Chart:
    """Parts of the step one after another; what is hidden stands hatched over the work behind which it ran."""
    terms = [term for term in plan.time if term.value or term.hidden]
    values = [term.value for term in terms]
    seconds, shares = seconds_parts(values, plan.step), percents(values, plan.step)
    hidden = seconds_parts([term.hidden for term in terms], plan.step)
    begins = [0.0, *accumulate(values)]
    scale = 100 / plan.step
    rows = []
    for term, begin, shown, share, behind in zip(
        terms, begins, seconds, shares, hidden, strict=False
    ):
        bars = [
            Bar(
                begin * scale,
                term.value * scale,
                term.name.replace(".", "-"),
                f"{term.label}: {shown}",
            )
        ]
        if term.hidden:
            left = max(0.0, begin - term.hidden)
            bars.insert(0, Bar(left * scale, (begin - left) * scale, f"hidden {term.name.replace('.', '-')}",
                               f"{term.label}: {behind} hidden"))  # fmt: skip
        cells = (shown, share, f"+ {behind}" if term.hidden else "")
        rows.append(Row(term.label, tuple(bars), cells, _formula(plan, term.name)))
    marks = [
        *_time_marks(plan.step),
        Mark(figures.roofline * scale, f"roofline {show_seconds(figures.roofline)}", "roof"),
    ]
    return Chart(tuple(rows), tuple(marks))


def _time_marks(most: float) -> list[Mark]:
    size, unit = time_unit(most)
    return [Mark(100 * tick * size / most, f"{tick:g} {unit}") for tick in ticks(most / size)]


def _formula(plan: Plan, name: str) -> str:
    """How a number comes about, for those who point at it."""
    found = plan.derivations.get(name)
    return f"{found.meaning} {name} = {found.formula}" if found else ""


def memory(plan: Plan) -> Chart:
    """Stages with their parts of memory, up to the limit or beyond it."""
    most = 1.04 * max(plan.memory_limit, plan.memory_upper, *(s.memory_total for s in plan.stages))
    kinds: dict[str, str] = {}
    rows = []
    for stage in plan.stages:
        shown = gib_parts([term.value for term in stage.memory], stage.memory_total)
        begins = accumulate((term.value for term in stage.memory), initial=0.0)
        bars = []
        for term, begin, size in zip(stage.memory, begins, shown, strict=False):
            kind = term.name.replace(".", "-")
            kinds.setdefault(kind, term.label)
            title = (
                f"{term.label}: {size} GiB ({term.value:,.0f} bytes). {_formula(plan, term.name)}"
            )
            bars.append(Bar(100 * begin / most, 100 * term.value / most, kind, title))
        rows.append(
            Row(_stage(plan, stage.index), tuple(bars), (f"{gib(stage.memory_total)} GiB",))
        )
    limit = Mark(100 * plan.memory_limit / most, f"limit {gib(plan.memory_limit)} GiB", "limit")
    upper = Mark(
        100 * plan.memory_upper / most, f"nine of ten under {gib(plan.memory_upper)}", "upper"
    )
    marks = [
        Mark(100 * tick * GIB / most, f"{tick:g} GiB" if tick else "0")
        for tick in ticks(most / GIB)
    ]
    return Chart(tuple(rows), (*marks, upper, limit), tuple(kinds.items()))


def _stage(plan: Plan, index: int) -> str:
    stage = plan.stages[index]
    ends = (["embedding"] if stage.embedding else [], ["head"] if stage.head else [])
    words = " + ".join([*ends[0], chunks(stage), *ends[1]])
    return words if len(plan.stages) == 1 else f"{index}: {words}"


def chunks(stage: Stage) -> str:
    """The layers of a stage, or in how many chunks it has them."""
    return f"layers {stage.layers[0]}" if len(stage.layers) == 1 else f"{len(stage.layers)} chunks"


def funnel(plan: Plan, figures: Figures) -> Chart:
    """What each rule removed, most first, as a share of all layouts; what is left; and what the rule costs."""
    whole = max(1, plan.proof.searched)
    costs = {cost.rule: cost for cost in figures.rules}
    ranked = sorted(everything_removed(plan), key=lambda rule: (-rule.count, rule.rule))
    rows, left = [], whole
    for rule in ranked:
        bars = (
            Bar(
                100 * (left - rule.count) / whole,
                100 * rule.count / whole,
                "gone",
                f"removed {rule.count:,}",
            ),
            Bar(0.0, 100 * (left - rule.count) / whole, "kept", f"{left - rule.count:,} left"),
        )
        left -= rule.count
        gain = _without(costs.get(rule.rule), plan.step)
        rows.append(Row(rule.rule, bars, (f"{rule.count:,}", f"{left:,}", gain, rule.sentence)))
    return Chart(tuple(rows))


def _without(cost: RuleCost | None, step: float) -> str:
    """The step without a rule, where that would be better."""
    if cost is None:
        return "not priced"
    if cost.best is None or cost.best >= step * (1 - 5e-4):
        return "none found" if cost.stopped else "no gain"
    return f"{show_seconds(cost.best)}, {_change(cost.best, step)}"


def tornado(plan: Plan, figures: Figures) -> Chart:
    """The step with every number lower and higher, around the plan's; numbers that change nothing are left out."""
    found = [s for s in figures.sensitivities if any(_moved(v, plan.step) for v in (s.low, s.high))]
    steps = [v for s in found for v in (s.low, s.high) if v is not None] + [plan.step]
    low, high = min(steps), max(steps)
    margin = 0.04 * (high - low) or 0.1 * plan.step
    low, high = low - margin, high + margin
    scale = 100 / (high - low)
    rows = []
    for s in found:
        bars = [
            Bar((min(v, plan.step) - low) * scale, abs(v - plan.step) * scale, kind,
                f"{sign}{100 * s.share:.0f} %: {show_seconds(v)}")
            for v, kind, sign in ((s.low, "lower", "-"), (s.high, "higher", "+"))
            if v is not None
        ]  # fmt: skip
        cells = tuple(
            "nothing fits" if v is None else _change(v, plan.step) for v in (s.low, s.high)
        )
        rows.append(Row(s.label, tuple(bars), cells))
    center = Mark((plan.step - low) * scale, f"{show_seconds(plan.step)}", "center")
    return Chart(tuple(rows), (center,), left_out=len(figures.sensitivities) - len(found))


def _moved(value: float | None, step: float) -> bool:
    """Whether a step differs from the plan's by what is shown."""
    return value is None or abs(value / step - 1) >= TOLD


def _change(value: float, step: float) -> str:
    share = value / step - 1
    if not _moved(value, step):
        return "0.0 %"
    return f"{'+' if share > 0 else '−'}{percent(abs(share))}"
