"""The report says what the plan says: every number of a drawing is measured against it."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.memory import TERMS
from planner.errors import PlannerError
from planner.output.write import write
from planner.plan.schema import NoPlan, Plan
from planner.report.html import bars
from planner.report.html.page import embedded, render_html
from planner.report.html.treemap import Box, squarified
from planner.report.numbers import gib, percent
from planner.report.tables import plain
from planner.report.text import render, verdict
from planner.report.trace import render_trace
from planner.search.breakdown import LABELS
from planner.units import GIB, show_seconds
from tests.report.reports import QUESTIONS, TABS, planned, report, stated

SECTIONS = (
    "verdict", "step", "memory", "timeline", "cut", "operators", "communication", "alternatives", "removed", "whatif",
    "run", "provenance",
)  # fmt: skip
SMALL = ("pipeline", "experts", "one node", "one chip")
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """Elements by their ids with all text inside, and every attribute; well-formedness is checked on the way."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        name = dict(attrs).get("id")
        if name:
            self.ids.append(name)
            self.texts[name] = ""
        if tag not in VOID:
            self.open.append((tag, name))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, name in self.open:
            if name:
                self.texts[name] += data

    def words(self, name: str) -> str:
        return " ".join(self.texts[name].split())


@pytest.mark.parametrize("name", SMALL)
def test_every_section_is_there_in_order_and_states_a_finding(name: str) -> None:
    text = report(name)
    page = Page(text)
    assert tuple(i for i in page.ids if i in SECTIONS) == SECTIONS
    assert len(page.ids) == len(set(page.ids))
    findings = re.findall(r'<p class="finding">(.*?)</p>', text)
    assert len(findings) == len(SECTIONS) - 1
    assert all(re.fullmatch(r"\S.{10,}\.", finding) for finding in findings)


@pytest.mark.parametrize("name", [*SMALL, "most experts", "most layers"])
def test_one_file_below_a_megabyte_that_asks_for_nothing(name: str) -> None:
    text = report(name)
    assert len(text.encode()) < 1e6
    assert "default-src 'none'" in text
    for tag, key, value in Page(text).attributes:
        if key in {"src", "href", "action", "data", "srcset", "poster", "background"}:
            assert value.startswith(("#", "data:,")), f"<{tag} {key}={value}>"
    style, script = (re.search(f"<{t}>(.*?)</{t}>", text, re.DOTALL) for t in ("style", "script"))
    assert style is not None
    assert script is not None
    assert not re.search(r"url\(|@import", style[1])
    assert not re.search(
        r"\bfetch\b|XMLHttpRequest|WebSocket|EventSource|import\(|sendBeacon", script[1]
    )


@pytest.mark.parametrize("name", SMALL)
def test_the_plan_inside_reads_back_equal(name: str) -> None:
    found = re.search(
        r'<script type="application/json" id="plan">(.*?)</script>', report(name), re.DOTALL
    )
    assert found is not None
    assert Plan.model_validate_json(found[1]) == planned(name)
    hostile = planned(name).model_copy(update={"hints": ("</script><script>alert(1)</script>",)})
    assert "<" not in embedded(hostile)
    assert json.loads(embedded(hostile))["hints"] == list(hostile.hints)
    assert "<script>alert" not in render_html(hostile)


@pytest.mark.parametrize("name", SMALL)
def test_the_verdict_is_that_of_the_terminal(name: str) -> None:
    plan, page = planned(name), Page(report(name))
    said = page.words("verdict")
    for number in re.findall(r"\d[\d.,]*", plain(verdict(plan))):
        if number not in ("0",):
            assert number.rstrip(".,") in said + page.words("memory")
    for assumption in plan.assumptions:
        assert " ".join(assumption.text.split()) in said
    assert plan.trust.text in said


@pytest.mark.parametrize("name", SMALL)
def test_the_terminal_and_the_report_show_the_same_parts(name: str) -> None:
    plan, page = planned(name), Page(report(name))
    text = plain(render(plan))
    for chart, section in ((bars.waterfall(plan, plan.figures), "step"),):  # type: ignore[arg-type]
        for row in chart.rows:
            for cell in row.cells:
                assert cell.removeprefix("+ ") in text
                assert cell in page.words(section)


@pytest.mark.parametrize("name", SMALL)
def test_bars_are_as_long_as_their_numbers(name: str) -> None:
    plan = planned(name)
    assert plan.figures is not None
    step = bars.waterfall(plan, plan.figures)
    terms = {term.label: term for term in plan.time}
    end = 0.0
    for row in step.rows:
        solid = row.bars[-1]
        assert solid.left == pytest.approx(end, abs=1e-6)
        assert solid.width == pytest.approx(100 * terms[row.label].value / plan.step, abs=1e-9)
        end += solid.width
    assert end == pytest.approx(100)
    roof = next(mark for mark in step.marks if mark.kind == "roof")
    assert roof.left == pytest.approx(100 * plan.mfu)

    memory = bars.memory(plan)
    limit = next(mark.left for mark in memory.marks if mark.kind == "limit")
    for row, stage in zip(memory.rows, plan.stages, strict=True):
        last = row.bars[-1]
        whole = (last.left + last.width) / limit * plan.memory_limit
        assert whole == pytest.approx(stage.memory_total)
        assert row.cells == (f"{gib(stage.memory_total)} GiB",)

    funnel = bars.funnel(plan, plan.figures)
    left = plan.proof.searched
    for row in funnel.rows:
        removed, kept = row.bars
        left -= round(removed.width / 100 * plan.proof.searched)
        assert kept.width == pytest.approx(100 * left / plan.proof.searched, abs=1e-6)
        assert row.cells[1] == f"{left:,}"
    assert left == plan.proof.fitting

    tornado = bars.tornado(plan, plan.figures)
    center = tornado.marks[0].left
    moved = {s.label: s for s in plan.figures.sensitivities}
    assert tornado.left_out == len(moved) - len(tornado.rows) < len(moved)
    shown = [row.label for row in tornado.rows]
    assert all(
        abs(value / plan.step - 1) < 5e-4
        for s in plan.figures.sensitivities
        for value in (s.low, s.high)
        if s.label not in shown
    )
    for row in tornado.rows:
        s = moved[row.label]
        for value, cell in zip((s.low, s.high), row.cells, strict=True):
            assert value is not None
            change = value / plan.step - 1
            assert cell.lstrip("+−") == percent(abs(change)) or (
                cell == "0.0 %" and abs(change) < 5e-4
            )
            bar = next(b for b in row.bars if b.title.endswith(show_seconds(value)))
            edge = bar.left + bar.width if value > plan.step else bar.left
            assert (edge - center) * change >= -1e-9


@pytest.mark.parametrize("name", SMALL)
def test_every_operation_and_layout_is_drawn(name: str) -> None:
    plan, text = planned(name), report(name)
    assert plan.figures is not None
    drawn = sum(len(found.split()) for found in re.findall(r'data-micro="([\d ]*)"', text))
    assert drawn == sum(len(row.kinds) for row in plan.figures.timeline.rows)
    space = plan.figures.landscape
    assert space is not None
    assert len(re.findall(r'class="point( over)?"', text)) == len(space.step)
    assert text.count('class="point over"') == sum(not fits for fits in space.fits)
    chips = re.search(r'<path d="([^"]*)" class="chips"', text)
    assert chips is not None
    assert chips[1].count("M") == plan.degrees.chips_used
    for place in plan.figures.axes:
        if place.size > 1 and place.axis in ("tp", "cp", "dp", "pp", "ep"):
            peers = re.search(rf'<path d="([^"]*)" class="peers {place.axis}"', text)
            assert peers is not None
            assert peers[1].count("M") == place.size


@pytest.mark.parametrize("name", SMALL)
def test_every_send_is_drawn(name: str) -> None:
    events = json.loads(render_trace(planned(name)))["traceEvents"]
    sends = [event for event in events if event["name"].startswith("to stage")]
    drawn = re.findall(r'<path d="([^"]*)" class="sends"', report(name))
    assert sum(path.count("M") for path in drawn) == len(sends)
    assert ("sends, hidden ones too" in report(name)) == bool(sends)


@pytest.mark.parametrize("name", SMALL)
def test_every_operator_and_collective_has_a_row(name: str) -> None:
    plan, page = planned(name), Page(report(name))
    assert plan.figures is not None
    rows = re.search(r'id="operator-table".*?<tbody>(.*?)</tbody>', report(name), re.DOTALL)
    assert rows is not None
    assert rows[1].count("<tr>") == sum(len(block.operators) for block in plan.blocks)
    for block in plan.blocks:
        for op in block.operators:
            assert op.name in page.words("operator-table")
            assert show_seconds(op.forward) in page.words("operator-table")
    for traffic in plan.figures.traffic:
        assert show_seconds(traffic.seconds) in page.words("communication-table")
    for row in plan.alternatives:
        assert row.reason in page.words("alternatives")


def test_trainers_files_are_shown_as_they_are() -> None:
    page = Page(report("pipeline"))
    shown = page.texts["run"]
    for tab in TABS:
        assert tab.name in shown
        assert tab.note in shown
        for file, content in tab.files:
            assert file in shown
            assert content in shown
    assert "shardwright price llama-3-70b" in shown


def test_a_stated_layout_that_does_not_fit() -> None:
    plan = stated()
    assert not plan.fits
    page = Page(render_html(plan))
    assert page.words("verdict").startswith("Verdict Does not fit:")
    assert "landscape-drawing" not in page.ids
    assert "ways to fill in what was left open fits" in page.words("removed")
    assert "nothing fits: this needs least memory" in page.words("verdict")
    limit = next(mark.left for mark in bars.memory(plan).marks if mark.kind == "limit")
    assert limit < 100 * plan.memory_limit / plan.memory * 1.001


def test_a_report_needs_figures() -> None:
    bare = planned("pipeline").model_copy(update={"figures": None})
    with pytest.raises(ValueError, match="figures"):
        render_html(bare)


def test_the_price_command_prices_the_same_plan() -> None:
    import shlex

    from cli.layout import divided
    from cli.options import settings
    from planner.api import price
    from planner.report.html.commands import price_command

    for name in SMALL:
        plan = planned(name)
        words = shlex.split(price_command(plan).replace("\\\n", ""))
        assert words[:3] == ["shardwright", "price", plan.asked.model]
        said = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        layout, _ = divided(settings(said, "--set"))
        again = price(QUESTIONS[name], layout)
        assert again.step == pytest.approx(plan.step, rel=1e-9)
        assert again.degrees == plan.degrees


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_areas_of_the_treemap(sizes: list[float]) -> None:
    boxes = squarified(sorted(sizes, reverse=True), Box(0, 0, 100, 30))
    total = sum(sizes)
    for size, box in zip(sorted(sizes, reverse=True), boxes, strict=True):
        assert box.width * box.height == pytest.approx(3000 * size / total, rel=1e-6)
        assert -1e-6 <= box.x <= box.x + box.width <= 100 + 1e-6
        assert -1e-6 <= box.y <= box.y + box.height <= 30 + 1e-6


def test_memory_marks_are_gibibytes() -> None:
    chart = bars.memory(planned("pipeline"))
    ticks = [mark for mark in chart.marks if mark.kind == "tick"]
    scale = (
        next(m.left for m in chart.marks if m.kind == "limit") / planned("pipeline").memory_limit
    )
    assert len(ticks) >= 3
    for mark in ticks:
        assert mark.left == pytest.approx(float(mark.words.removesuffix(" GiB")) * GIB * scale)


def test_every_part_of_step_and_memory_has_a_colour() -> None:
    style = (files("planner.report.html") / "templates" / "style.css").read_text()
    kinds = [f"step-{name}" for name in LABELS] + [f"memory-{name}" for name in TERMS]
    assert len(kinds) >= 15
    assert [kind for kind in kinds if f".{kind}" not in style] == []


def test_why_there_is_no_plan_is_a_report_too(tmp_path: Path) -> None:
    """Bars as long as what the closest miss holds, every remedy and rule, nothing but this file."""
    answer = NoPlan.model_validate_json((Path(__file__).parent / "no_plan.json").read_text())
    path = tmp_path / "no.html"
    write(answer, path)
    page = path.read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    for remedy in answer.remedies:
        assert escape(remedy.change) in page
    for rule in answer.removed:
        assert f"{rule.count:,}" in page
        assert escape(rule.sentence) in page
    widths = dict(re.findall(r'class="memory-(\w+)" style="left:[\d.]+%;width:([\d.]+)%', page))
    values = {term.name.partition(".")[2]: term.value for term in answer.terms if term.value}
    assert set(widths) == set(values)
    most = max(values, key=values.__getitem__)
    for name, value in values.items():
        share = float(widths[name]) / float(widths[most])
        assert share == pytest.approx(value / values[most], abs=2e-3)
    write(answer, tmp_path / "no.md")
    assert (tmp_path / "no.md").read_text().startswith("#")
    with pytest.raises(PlannerError, match="there is no plan"):
        write(answer, tmp_path / "no.json")
