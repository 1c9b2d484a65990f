"""Pages of comparisons and sizes as they are seen; their numbers in every form."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from planner.plan.findings import Comparison, Largest, Sizing
from planner.report.compare import (
    comparison_csv,
    comparison_markdown,
    render_comparison,
)
from planner.report.size import (
    largest_csv,
    largest_markdown,
    render_largest,
    render_sizing,
    sizing_csv,
    sizing_markdown,
)
from planner.report.tables import plain
from tests.report.test_pages import compare

HERE = Path(__file__).parent
COMPARISON = Comparison.model_validate_json((HERE / "comparison.json").read_text())
SIZING = Sizing.model_validate_json((HERE / "sizing.json").read_text())
LARGEST = Largest.model_validate_json((HERE / "largest.json").read_text())
PAGES = {
    "comparison": lambda width: render_comparison(COMPARISON, width),
    "sizing": lambda width: render_sizing(SIZING, width),
    "largest": lambda width: render_largest(LARGEST, width),
}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [100, 80])
def test_page(name: str, width: int) -> None:
    page = plain(PAGES[name](width))
    compare(page, f"{name}-{width}.txt")
    assert max(map(len, page.splitlines())) <= width


def test_the_best_rows_are_marked_and_nothing_else() -> None:
    page = plain(render_comparison(COMPARISON, 100)).splitlines()
    marked = [line for line in page if "✔" in line]
    best = {COMPARISON.fastest, COMPARISON.cheapest}
    assert len(marked) == len(best)
    for index in best:
        row = COMPARISON.rows[index]
        assert any(
            line.split()[:2] == [str(index + 1), row.cluster.partition(":")[0]] for line in marked
        )


def test_every_turning_point_is_a_sentence() -> None:
    page = " ".join(plain(render_comparison(COMPARISON, 100)).split())
    assert len(COMPARISON.crossovers) >= 1
    for turn in COMPARISON.crossovers:
        assert turn.value in page
        assert turn.below in page


def test_no_price_and_nothing_that_fits() -> None:
    poor = COMPARISON.model_copy(update={"cheapest": None})
    assert "give one with --price NAME=DOLLARS" in plain(render_comparison(poor, 100))
    none = COMPARISON.model_copy(update={"fastest": None})
    assert "Nothing fits anywhere." in plain(render_comparison(none, 100))


def test_csv_has_the_numbers_in_full() -> None:
    rows = list(csv.DictReader(comparison_csv(COMPARISON).splitlines()))
    assert len(rows) == len(COMPARISON.rows)
    for told, row in zip(rows, COMPARISON.rows, strict=True):
        assert told["cluster"] == row.cluster
        assert told["step"] == ("" if row.step is None else str(row.step))
        assert told["tp"] == ("" if row.degrees is None else str(row.degrees.tp))
    curve = list(csv.DictReader(sizing_csv(SIZING).splitlines()))
    assert [int(row["chips"]) for row in curve] == [row.chips for row in SIZING.curve]
    tried = list(csv.DictReader(largest_csv(LARGEST).splitlines()))
    assert [int(row["seq-len"]) for row in tried] == [value for value, _ in LARGEST.curve]
    assert [row["fits"] for row in tried] == [str(row.fits) for _, row in LARGEST.curve]


def test_markdown_is_the_table() -> None:
    text = comparison_markdown(COMPARISON)
    assert text.count("\n|") == len(COMPARISON.rows) + 2
    compare(text, "comparison.markdown")
    compare(sizing_markdown(SIZING), "sizing.markdown")
    compare(largest_markdown(LARGEST), "largest.markdown")


def test_an_answer_says_what_the_next_smaller_one_lacks() -> None:
    page = plain(render_sizing(SIZING, 100))
    assert f"{SIZING.answer.chips:,} chips are the fewest that fit and see" in page
    assert f"{SIZING.below.chips:,}: " in page
    one = SIZING.model_copy(update={"answer": SIZING.answer.model_copy(update={"chips": 1})})
    assert "1 chip is the fewest that fit and" in plain(render_sizing(one, 100))
    none = SIZING.model_copy(update={"answer": None, "below": None, "note": "that is all"})
    assert "No number of chips would see 100 B tokens in 20 days: that is all." in plain(
        render_sizing(none, 100)
    )
    nothing = LARGEST.model_copy(update={"value": None, "answer": None})
    assert "No sequence fits." in plain(render_largest(nothing, 100))
