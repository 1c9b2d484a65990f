"""Rows of a kept comparison or size are asked for: their plans, and the numbers that only the study has."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.api import PlannerError, Question, compare, explain, plan, size, write
from planner.plan.derivation import Derivation
from planner.plan.facts import Facts
from planner.plan.findings import Comparison, Sizing
from planner.plan.items import Number
from planner.plan.read import read_kept
from planner.plan.tree import Node
from planner.report.compare import crossover_words
from planner.report.size import days, money
from planner.studies.rows import known_rows, plan_of

QUESTION = Question(
    model="llama-3-8b", cluster="h100-sxm:8", global_batch=64, seq_len=4096, pins=("cp=1", "tp=8")
)  # fmt: skip
RANGE = "node.bandwidth=0.01x..1x/3"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """As it comes back from its file."""
    found = compare(
        QUESTION, clusters=["h100-sxm:8", "a100-sxm-80gb:8"], what_if=[RANGE],
        dollars={"h100-sxm": 3.0, "a100-sxm-80gb": 1.5},
    )  # fmt: skip
    path = tmp_path_factory.mktemp("kept") / "rows.json"
    write(found, path)
    back = read_kept(path)
    assert back == found
    assert isinstance(back, Comparison)
    return back


@pytest.fixture(scope="module")
def sized() -> Sizing:
    found = size(replace(QUESTION, cluster="h100-sxm:16", pins=()), tokens=1e11, days=30)
    assert isinstance(found, Sizing)
    return found


def test_a_row_that_fits_is_a_plan_again(compared: Comparison) -> None:
    for id, row in list(known_rows(compared).items())[::3]:
        made = plan_of(row, id, "rows.json")
        assert (made.step, made.memory, made.mfu) == (row.step, row.memory, row.mfu)
        assert made.price_per_million_tokens == row.price_per_million_tokens
        tree = explain(compared, id)
        assert isinstance(tree, Node)
        assert tree.seconds == pytest.approx(row.step)
        energy = explain(compared, f"{id} energy")
        assert isinstance(energy, Number)
        assert energy.how.value == row.energy_per_million_tokens


def test_a_number_of_a_row_is_that_of_its_plan(compared: Comparison, sized: Sizing) -> None:
    for study, id in ((compared, "#3"), (sized, str(sized.answer.chips if sized.answer else 0))):
        found = explain(study, f"{id} mfu")
        assert isinstance(found, Number)
        assert found.how.value == known_rows(study)[id].mfu
    bound = explain(compared, "2 bound_by")
    assert isinstance(bound, Facts)
    assert bound.rows[0].value == compared.rows[1].bound_by


def evaluated(how: Derivation) -> float:
    return float(eval(how.formula, {each.name: each.value for each in how.inputs}))


def test_a_turn_of_prices_is_a_formula(compared: Comparison) -> None:
    found = explain(compared, "turn.1")
    assert isinstance(found, Number)
    turn = compared.crossovers[0]
    assert f"${found.how.value:.2f}" == turn.value
    assert evaluated(found.how) == pytest.approx(found.how.value)
    there = compare(
        QUESTION, clusters=[turn.below, turn.above],
        dollars={"h100-sxm": 3.0, "a100-sxm-80gb": 1.5} | {turn.below.split(":")[0]: found.how.value},
    )  # fmt: skip
    one, other = (row.price_per_million_tokens for row in there.rows)
    assert one == pytest.approx(other)


def test_a_turn_of_a_range_shows_both_at_the_turn(compared: Comparison) -> None:
    """Prices that were stated hold at every value of the range."""
    turns = {
        f"turn.{place}": turn
        for place, turn in enumerate(compared.crossovers, 1)
        if not turn.value.startswith("$")
    }
    assert turns
    for id, turn in turns.items():
        found = explain(compared, id)
        assert isinstance(found, Facts)
        number, below, above = found.rows
        assert (number.place, number.value) == (turn.number, turn.value)
        assert turn.value in crossover_words(turn)
        assert isinstance(below.value, float)
        assert below.value == pytest.approx(above.value, rel=0.02)


def test_days_and_cost_are_formulas(sized: Sizing) -> None:
    assert sized.answer is not None
    for word in ("days", "cost"):
        found = explain(sized, f"{sized.answer.chips:,} {word}")
        assert isinstance(found, Number)
        assert evaluated(found.how) == pytest.approx(found.how.value)
    assert f"{explain(sized, f'{sized.answer.chips} days').how.value:.1f}" == days(sized.answer, sized.target)  # type: ignore[union-attr]  # fmt: skip
    assert money(found.how.value).startswith("$")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("#99", "It has #1 to #8 and turn.1"),
        ("", "no row is called ''"),
        ("turn.99", "no turn.99 in the comparison"),
        ("#2 nonsense", "nothing in the plan is called 'nonsense'"),
    ],
)
def test_what_is_not_there_is_said(asked: str, words: str, compared: Comparison) -> None:
    with pytest.raises(PlannerError, match=re.escape(words)):
        explain(compared, asked)


def test_rows_without_a_plan_say_why() -> None:
    found = compare(
        replace(QUESTION, model="llama-3-70b", pins=()), clusters=["h100-sxm:1", "h100-sxm:64"]
    )
    with pytest.raises(PlannerError, match=r"row #1 has no plan: needs .* GiB"):
        explain(found, "#1")


def test_a_stale_row_is_told(compared: Comparison) -> None:
    row = compared.rows[0]
    old = row.model_copy(update={"step": 1.01 * (row.step or 0.0)})
    stale = compared.model_copy(update={"rows": (old, *compared.rows[1:])})
    with pytest.raises(PlannerError, match=r"row #1 of The plan is stale: .* -0\.99%") as caught:
        explain(stale, "#1")
    assert caught.value.faults[0].code == "V01"


def test_files_that_are_no_study_say_where(tmp_path: Path, compared: Comparison) -> None:
    path = tmp_path / "rows.json"
    data = compared.model_dump(mode="json")
    data["rows"][0]["stepp"] = data["rows"][0].pop("step")

    path.write_text(json.dumps(data))
    with pytest.raises(PlannerError, match=re.escape("unknown key 'rows[0].stepp'")) as caught:
        read_kept(path)
    assert caught.value.faults[0].fix == ("Nearest: step or cluster.",)


@pytest.mark.parametrize(
    ("place", "value", "phrase"),
    [
        (("rows",), [], "'rows' is a JSON list; it should be a list of at least one entry"),
        (("fastest",), 99, "'fastest' is 99, and there are"),
        (("cheapest",), -1, "'cheapest' is -1, and there are"),
        (("rows", 0, "step"), 0, "'rows[0].step' is 0; it should be more than 0"),
    ],
)
def test_studies_that_contradict_themselves_are_refused(
    place: tuple[str | int, ...], value: object, phrase: str, tmp_path: Path, compared: Comparison
) -> None:
    data = compared.model_dump(mode="json")
    part = data
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlannerError, match=re.escape(phrase)) as caught:
        read_kept(path)
    assert {fault.code for fault in caught.value.faults} == {"V04"}


def test_a_turn_of_rows_that_are_gone_is_refused(compared: Comparison) -> None:
    for place, turned in enumerate(compared.crossovers, 1):
        gone = turned.model_copy(update={"below": "nothing"})
        turns = (*compared.crossovers[: place - 1], gone, *compared.crossovers[place:])
        with pytest.raises(PlannerError, match="no row of it is nothing") as caught:
            explain(compared.model_copy(update={"crossovers": turns}), f"turn.{place}")
        assert caught.value.faults[0].code == "V04"
    assert compared.crossovers


def test_a_plan_is_kept_too(tmp_path: Path) -> None:
    made = plan(QUESTION)
    write(made, tmp_path / "plan.json")
    assert read_kept(tmp_path / "plan.json") == made


def test_a_size_without_rows_says_that_there_are_none(tmp_path: Path, sized: Sizing) -> None:
    path = tmp_path / "none.json"
    write(sized.model_copy(update={"answer": None, "below": None, "curve": ()}), path)
    with pytest.raises(PlannerError, match="no row is called '64', and there are none"):
        explain(read_kept(path), "64")
