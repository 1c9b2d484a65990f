"""Explanations: trees that sum, items by their ids, pages as they are seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.plan.basis import bases
from planner.plan.diff import diff
from planner.plan.facts import Facts
from planner.plan.findings import RulePrice
from planner.plan.items import Number, find_item, items
from planner.plan.read import read_plan
from planner.plan.removed import everything_removed
from planner.plan.schema import Plan
from planner.plan.tree import Node, by_activity, numbers, plan_tree
from planner.report.diff import render_diff
from planner.report.explain import render_item, render_rule, shown
from planner.report.numbers import slower
from planner.report.tables import plain
from planner.report.text import render
from planner.report.tree import render_measured, render_tree
from planner.units import show_seconds
from tests.report.test_pages import compare

HERE = Path(__file__).parent
PLAN = read_plan(HERE / "real.json")
"""Llama 3 8B on 32 H100 with a pipeline, as the planner wrote it."""


NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w])"
"""A number of a page; none that is part of a word."""


def sums(node: Node) -> None:
    if node.children:
        assert sum(child.seconds for child in node.children) == pytest.approx(node.seconds), node.id
    for child in node.children:
        sums(child)


def test_every_node_is_the_sum_of_its_children() -> None:
    assert len(list(plan_tree(PLAN).walk())) > 20
    for stage in (None, *PLAN.stages):
        sums(plan_tree(PLAN, stage))


@pytest.mark.parametrize("width", [100, 80])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tree(width: int, depth: int) -> None:
    page = plain(render_tree(PLAN, width, depth))
    assert max(map(len, page.splitlines())) <= width
    compare(page, f"tree-{depth}-{width}.txt")


def test_operators_say_what_their_times_rest_on() -> None:
    """A word in the tree, the source on the operator's page; nothing where a plan does not say."""
    assert bases(PLAN) == ["measured", "fitted"]
    assert "basis" in plain(render_tree(PLAN, 100))
    page = " ".join(plain(render_item(PLAN, find_item(PLAN, "attn.core"), 90)).split())
    assert PLAN.cluster.efficiency_sources["attention_efficiency"] in page
    cluster = PLAN.cluster.model_copy(update={"efficiency_sources": {"matmul_efficiency": "ours"}})
    silent = PLAN.model_copy(update={"cluster": cluster})
    assert bases(silent) == []
    assert "basis" not in plain(render_tree(silent, 100))


def test_depth_unfolds() -> None:
    lines = [len(plain(render_tree(PLAN, 100, depth)).splitlines()) for depth in (1, 2, 3)]
    assert lines[0] < lines[1] < lines[2]
    operators = [f" {op.name} " for block in PLAN.blocks[1:] for op in block.operators]
    whole = plain(render_tree(PLAN, 100, 3))
    assert [name for name in operators if name not in whole] == []


def test_every_id_has_a_page() -> None:
    found = items(PLAN)
    assert {"#1", "rule:kv-heads", "rule:memory", "step", "mfu", "stage.1", "dense"} <= found.keys()
    for name in found:
        if name.startswith(("#", "rule:")):
            continue
        page = plain(render_item(PLAN, find_item(PLAN, name), 80))
        assert max(map(len, page.splitlines())) <= 80
        assert len(page) > 60


def test_a_number_shows_formula_numbers_and_result() -> None:
    page = plain(render_item(PLAN, find_item(PLAN, "step.dp"), 90))
    compare(page, "explain-step-dp.txt")
    how = PLAN.derivations["step.gradients"]
    for quantity in how.inputs:
        assert shown(quantity.value, quantity.unit) in page
    assert shown(how.value, "s") in page


def leaves(data: object, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a plan's file with its place."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, f"{place}.{key}" if place else key)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from leaves(value, f"{place}.{index}")
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield place, data


def test_every_number_of_the_file_can_be_asked_for() -> None:
    """By its place, and it is the number that the file has."""
    numbers = list(leaves(PLAN.model_dump(mode="json")))
    assert len(numbers) > 500
    units = set()
    for place, value in numbers:
        found = find_item(PLAN, place)
        if isinstance(found, Number):
            assert found.how.value == pytest.approx(value), place
        else:
            assert isinstance(found, Facts), place
            assert [(fact.place, fact.value) for fact in found.rows] == [(place, value)]
            units.add(found.rows[0].unit)
    assert units == {"s", "B", "B/s", "FLOP", "FLOP/s", "tokens/s", "$", ""}


SCALE = {
    "%": 0.01, "s": 1, "ms": 1e-3, "us": 1e-6, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "GB/s": 1e9, "B": 1e9,
    "k": 1e3, "M": 1e6, "T": 1e12, "GFLOP": 1e9, "TFLOP": 1e12, "TFLOP/s": 1e12, "G": 1e9,
}  # fmt: skip


def quantities(page: str) -> Iterator[tuple[str, float, float]]:
    """Numbers of a page with half of their last digit, in base units as far as the page names them."""
    for text, unit in re.findall(rf"({NUMBER})(?: ?([%A-Za-z/]+))?", page):
        scale = SCALE.get(unit, 1)
        grain = 10.0 ** -len(text.partition(".")[2])
        yield f"{text} {unit}", float(text.replace(",", "")) * scale, grain * scale


def test_every_number_of_the_page_stands_on_the_page_of_an_id() -> None:
    """Of all sections; parts of a sum are rounded so that they make it, which may move the last digit by one."""
    page = plain(render(PLAN, width=100, detail=("all",)))
    families = [rule.family for rule in everything_removed(PLAN)]
    parts = [*items(PLAN), *PLAN.model_dump(), *(f"alternatives.{i}" for i in range(5)), *families]
    ids = [name for name in dict.fromkeys(parts) if not name.startswith(("#", "rule:"))]
    told = [plain(render_item(PLAN, find_item(PLAN, name), 200)) for name in ids]
    told += [f"It removed {rule.count:,} layouts." for rule in everything_removed(PLAN)]
    told += [slower(row.step, PLAN.step) for row in PLAN.alternatives]  # the first line of '#2'
    known = np.array([value for text in told for _, value, _ in quantities(text)])
    bare = np.concatenate(
        [known, known / 2**30, known / 1e9, known * 1e3]
    )  # columns with units above
    missing = [
        text
        for text, value, grain in quantities(page)
        if np.abs(bare - value).min() > 1.001 * grain
    ]
    assert len(list(quantities(page))) > 300
    assert missing == []


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("dp gradients", "step.gradients"),
        ("step.pp", "step.sends"),
        ("kv-heads", "rule:kv-heads"),
        ("mlp.up", "dense.mlp.up"),
        ("2", "#2"),
        ("tokens/s", "tokens"),
    ],
)
def test_other_words_for_ids(asked: str, found: str) -> None:
    assert find_item(PLAN, asked).id == found


@pytest.mark.parametrize(
    ("asked", "page"),
    [
        ("step.ep", "  step.ep  0 s\n  No axis divides experts: no tokens travel to them.\n"),
        ("host", "  host  0 B\n  Nothing is kept in host memory.\n"),
    ],
)
def test_a_part_that_a_plan_lacks_is_0_for_a_reason(asked: str, page: str) -> None:
    assert asked not in items(PLAN)
    assert plain(render_item(PLAN, find_item(PLAN, asked), 80)) == page


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("step.bubbel", "Nearest: step.bubble"),
        ("#77", "It keeps #1 to #5"),
        ("rule:nothing", "Rules that removed layouts: "),
    ],
)
def test_unknown_items(asked: str, words: str) -> None:
    with pytest.raises(PlannerError) as caught:
        find_item(PLAN, asked)
    [fault] = caught.value.faults
    assert fault.code == "I01"
    assert words in str(fault)


def test_a_rule_says_its_price() -> None:
    row = PLAN.alternatives[1]
    facts = {
        "rule": "widths",
        "family": "widths",
        "sentence": "tp divides.",
        "source": "s",
        "removed": 9,
    }
    faster = RulePrice(**facts, alone=5, step=2.0, best=1.5, degrees=row.degrees, memory=2**33)
    page = plain(render_rule(faster, 90))
    assert "Its price is 25.0 % of the step at most" in page
    assert "It removed 9 layouts, 5 of them alone." in page
    assert faster.gain == 0.25
    slower = faster.model_copy(update={"best": 2.5})
    assert "It costs nothing" in plain(render_rule(slower, 90))
    assert slower.gain == 0
    none = RulePrice(**facts, alone=0, step=2.0, best=None, note="nothing is left")
    assert "No price: nothing is left." in plain(render_rule(none, 90))


def test_differences_sum_to_the_difference_of_the_steps() -> None:
    other = PLAN.model_copy(
        update={
            "step": PLAN.step + PLAN.time[0].value,
            "time": (
                PLAN.time[0].model_copy(update={"value": 2 * PLAN.time[0].value}),
                *PLAN.time[1:],
            ),
            "memory": PLAN.memory / 2,
            "recipe": PLAN.recipe.model_copy(update={"global_batch": 512}),
            "degrees": PLAN.degrees.model_copy(update={"tp": 16}),
        }
    )
    found = diff(PLAN, other, ("a", "b"))
    assert sum(pair.change for pair in found.time) == pytest.approx(other.step - PLAN.step)
    assert sum(pair.before for pair in found.kinds) == pytest.approx(PLAN.memory)
    assert [change.key for change in found.inputs] == ["global batch"]
    assert [(c.key, c.after) for c in found.layout] == [("tp", "16")]
    page = plain(render_diff(found, 100))
    compare(page, "diff-100.txt")
    assert max(map(len, page.splitlines())) <= 100
    assert max(map(len, plain(render_diff(found, 80)).splitlines())) <= 80


def test_slower_is_the_share_of_time_that_tables_of_layouts_show() -> None:
    double = PLAN.model_copy(update={"tokens_per_second": PLAN.tokens_per_second / 2})
    assert "b beside a: 100.0 % slower" in plain(render_diff(diff(PLAN, double, ("a", "b")), 100))
    assert "b beside a: 100.0 % faster" in plain(render_diff(diff(double, PLAN, ("a", "b")), 100))


def test_equal_plans_have_no_difference() -> None:
    found = diff(PLAN, PLAN)
    assert not found.inputs
    assert not found.layout
    page = plain(render_diff(found, 100))
    assert "after beside before: the same" in page
    assert "The layout is the same." in page


def test_a_measured_run_stands_beside() -> None:
    page = plain(render_measured(PLAN, PLAN.step * 1.25, None))
    assert "−20.0 %" in page
    assert "fullest" not in page
    assert "neither" in plain(render_measured(PLAN, None, None))


def test_a_profile_stands_beside_by_activity() -> None:
    ours = by_activity(PLAN)
    assert ours["compute"] + ours["exposed"] + ours["idle"] == pytest.approx(PLAN.step)
    assert ours["hidden"] > 0
    assert ours["products"] + ours["attention"] + ours["others"] == pytest.approx(ours["compute"])
    assert min(ours["products"], ours["attention"], ours["others"]) > 0
    theirs = {name: 1.25 * seconds for name, seconds in ours.items()}
    page = plain(render_measured(PLAN, theirs["step"], None, theirs))
    assert page.count("−20.0 %") >= 7
    assert "sending while computing" in page
    times = {"step": theirs["step"], "dense.attn.core": theirs["attention"]}
    lines = plain(render_tree(PLAN, 100, measured=times)).splitlines()
    [root], [core] = ([line for line in lines if name in line] for name in ("step,", "attn.core"))
    assert show_seconds(theirs["step"]) in root
    assert show_seconds(theirs["attention"]) in core
    assert "measured" not in plain(render_tree(PLAN, 100)).splitlines()[0]


def test_layers_as_numbers() -> None:
    assert numbers("0-2, 5") == [0, 1, 2, 5]
    assert numbers("") == []


def test_the_fixture_is_a_plan() -> None:
    assert isinstance(PLAN, Plan)
    assert isinstance(find_item(PLAN, "mfu"), Number)
