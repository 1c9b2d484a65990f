"""Pages of the command line for a Python program."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api import PlannerError, explain, read_plan, text
from planner.plan.read import read_kept
from planner.report.tables import plain
from planner.report.tree import render_tree

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"


@pytest.mark.parametrize("name", ["dense", "comparison", "sizing", "largest"])
@pytest.mark.parametrize("width", [80, 100])
def test_a_page_is_that_of_the_command_line(name: str, width: int) -> None:
    found = read_kept(HERE / f"{name}.json")
    assert text(found, width=width) == (GOLDEN / f"{name}-{width}.txt").read_text()


def test_what_was_explained_is_a_page() -> None:
    plan = read_plan(HERE / "dense.json")
    assert text(explain(plan), plan, width=80) == plain(render_tree(plan, 80))
    whole, alone = (text(explain(plan, "step.dp"), of) for of in (plan, None))
    assert "% of the step" in whole
    assert alone.splitlines()[1:] == whole.splitlines()[1:]
    with pytest.raises(PlannerError, match="the page of a Node needs the plan"):
        text(explain(plan))
