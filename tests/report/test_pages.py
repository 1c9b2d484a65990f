"""Pages as they are seen; after a wanted change write them anew with ``GOLDEN=write pytest tests/report``."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from planner.plan.read import parsed_plan
from planner.plan.schema import NoPlan, Plan
from planner.report.data import render_csv, render_yaml
from planner.report.detail import DETAILS
from planner.report.markdown import render_markdown
from planner.report.tables import Column, named_whole, plain
from planner.report.text import render, verdict

HERE = Path(__file__).parent
NAMES = ("dense", "moe", "no_plan")


def answer(name: str) -> Plan | NoPlan:
    path = HERE / f"{name}.json"
    return NoPlan.model_validate_json(path.read_text()) if name == "no_plan" else parsed_plan(path)


def compare(text: str, name: str) -> None:
    path = HERE / "golden" / name
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [100, 80, 60])
def test_page(name: str, width: int) -> None:
    page = plain(render(answer(name), width=width))
    compare(page, f"{name}-{width}.txt")
    assert max(map(len, page.splitlines())) <= width


def test_a_plan_of_divided_stages_says_what_is_proven_of_them() -> None:
    plan = answer("dense")
    assert isinstance(plan, Plan)
    degrees = plan.degrees.model_copy(update={"layers": (17, 15)})
    proof = plan.proof.model_copy(update={"cut_gap": 0.004})
    divided = plan.model_copy(update={"degrees": degrees, "proof": proof})
    words = " ".join(plain(render(divided, width=100)).split())
    even = "None of them with even stages is faster in this cost model (gap 0 %)"
    assert f"{even}, none with any stages by more than 0.4 %." in words
    proven = "None of them is faster in this cost model (gap 0 %)."
    assert proven in " ".join(plain(render(plan, width=100)).split())


@pytest.mark.parametrize("name", NAMES)
def test_details(name: str) -> None:
    page = plain(
        render(answer(name), detail=("all",), next_steps=[("… --out plan.json", "keep it")])
    )
    compare(page, f"{name}-all.txt")
    assert max(map(len, page.splitlines())) <= 100


@pytest.mark.parametrize("detail", DETAILS)
def test_details_at_80_columns(detail: str) -> None:
    for name in NAMES:
        page = plain(render(answer(name), width=80, detail=(detail,)))
        assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [60, 40])
def test_everything_on_a_narrow_page(name: str, width: int) -> None:
    """Words are cut or wrapped; only what has no blank, a link for one, may be longer than a line."""
    page = plain(render(answer(name), width=width, detail=("all",)))
    wide = [line.strip() for line in page.splitlines() if len(line) > width]
    assert all(" " not in line for line in wide), wide


@pytest.mark.parametrize("name", NAMES)
def test_markdown(name: str) -> None:
    compare(render_markdown(answer(name)), f"{name}.markdown")


def test_data() -> None:
    plan = answer("dense")
    assert isinstance(plan, Plan)
    compare(render_yaml(plan), "dense.yaml")
    compare(render_csv(plan), "dense.csv")


@pytest.mark.parametrize("name", NAMES)
def test_yaml_says_what_json_says(name: str) -> None:
    data = YAML(typ="safe", pure=True).load(io.StringIO(render_yaml(answer(name))))
    assert data == answer(name).model_dump(mode="json")


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_every_view_shows_the_same_numbers(name: str) -> None:
    """Every number of the Markdown tables stands in the text page too."""
    plan = answer(name)
    text, markdown = plain(render(plan)), render_markdown(plan)
    numbers = set(re.findall(r"\d[\d.,]*\d|\d", markdown.partition("| Where")[2]))
    assert len(numbers) >= 30
    assert numbers <= set(re.findall(r"\d[\d.,]*\d|\d", text))


def test_names_of_a_list_stay_whole_on_a_narrow_page() -> None:
    names = Column(heading="name", cells=["a100-pcie-80gb"], left=True)
    size = Column(heading="GiB", cells=["79.1"])
    wiring = Column(heading="wiring", cells=["pcie4-box-of-eight"], left=True)
    assert named_whole([names, size, wiring], 40) == [names, size, wiring]
    assert named_whole([names, size, wiring], 30) == [names, size]
    assert named_whole([names, size, wiring], 9) == [names]


def test_verdict_fits_in_80_columns_and_needs_no_style() -> None:
    for name in ("dense", "moe"):
        plan = answer(name)
        assert isinstance(plan, Plan)
        lines = verdict(plan)
        assert max(len(line) for line in plain(lines).splitlines()) <= 80
        assert plain(lines).startswith("  Fits. ")


def test_reasons_survive_a_narrow_page() -> None:
    plan = answer("moe")
    assert isinstance(plan, Plan)
    page = " ".join(plain(render(plan, width=60)).split())
    for row in plan.alternatives:
        assert row.reason in page


def test_over_the_limit_is_red_and_the_winner_green() -> None:
    spans = [span for line in render(answer("moe")) for span in line]
    assert ("bad", "141.9") in [(span.style, span.text.strip()) for span in spans]
    assert ("good", "1 ✔") in [(span.style, span.text.strip()) for span in spans]


def test_a_miss_that_fits_is_not_called_one() -> None:
    small = 10.0 * 2**30
    stopped = answer("no_plan").model_copy(update={"memory": small, "memory_upper": small})
    assert plain(render(stopped)).startswith("  No plan yet: the search was stopped")


def test_what_may_be_as_fast_is_marked_and_explained() -> None:
    plan = answer("dense")
    assert isinstance(plan, Plan)
    page = plain(render(plan))
    equal = [row for row in plan.alternatives if row.within_noise]
    assert 0 < len(equal) < len(plan.alternatives) - 1
    assert all(f"  {row.rank} ≈ " in page for row in equal)
    assert page.count("≈") == len(equal) + 1
    apart = [row.model_copy(update={"within_noise": False}) for row in plan.alternatives]
    assert "≈" not in plain(render(plan.model_copy(update={"alternatives": tuple(apart)})))


def test_a_median_that_fits_while_its_upper_quantile_does_not() -> None:
    miss = answer("no_plan")
    near = miss.model_copy(
        update={"memory": miss.memory_limit * 0.99, "memory_upper": miss.memory_limit * 1.02}
    )
    page = plain(render(near))
    assert page.startswith("  Does not fit:")
    assert "in nine of ten runs" in page
