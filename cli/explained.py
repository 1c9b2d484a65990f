"""What ``explain`` shows of what ``compare`` and ``size`` kept, and anything that it explains as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cli import exits
from cli import options as o
from cli.console import Screen
from planner.output import studied
from planner.output.pages import explained_page
from planner.plan.tree import Node, as_data
from planner.plan.write import write_json
from planner.report.markdown import markdown_page
from planner.studies.explain import Explanation, explained
from planner.studies.rows import Study


def page_width(screen: Screen, form: str) -> int:
    """Columns of a page."""
    return o.WIDEST if form == "markdown" else min(screen.width, o.WIDEST)


def explain_study(
    found: Study, item: str | None, path: Path, depth: int, form: str, screen: Screen
) -> int:
    """What ``compare`` or ``size`` kept: its page again, or one of its rows."""
    width = page_width(screen, form)
    if item is None and form == "table":
        screen.show(studied.page(found, width))
    elif item is None:
        screen.write(studied.text(found, form))
    else:
        plan, why = explained(found, item, str(path))
        page = explained_page(plan, why, width, depth)
        if form == "json":
            screen.write(write_json(data_of(why, {})))
        elif form == "markdown":
            screen.write(markdown_page(plan or found, item, page))
        else:
            screen.show(page)
    return exits.ANSWER


def data_of(why: Explanation, measured: Mapping[str, float]) -> object:
    """As plain data: a tree by its nodes, with what was measured of them, everything else by its fields."""
    from pydantic_core import to_jsonable_python

    return as_data(why, measured) if isinstance(why, Node) else to_jsonable_python(why)
