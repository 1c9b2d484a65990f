"""What ``compare`` and ``size`` found, as text of a form and in files whose ending says the form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from planner.errors import Fault, PlannerError, listed
from planner.output.files import REPORT, place_fault, write_or_refuse
from planner.plan.findings import Comparison, Largest, Sizing
from planner.plan.write import write_json
from planner.report.compare import comparison_csv, comparison_markdown, render_comparison
from planner.report.size import (
    largest_csv,
    largest_markdown,
    render_largest,
    render_sizing,
    sizing_csv,
    sizing_markdown,
)
from planner.report.tables import BLANK, Line
from planner.report.text import NextSteps, next_lines

FORMS = {".json": "json", ".csv": "csv", ".md": "markdown"}
"""Forms by the ending of a file."""


def page(
    found: Comparison | Sizing | Largest, width: int, next_steps: NextSteps = ()
) -> list[Line]:
    """As it is shown on a terminal, with commands to type next."""
    if isinstance(found, Comparison):
        lines = render_comparison(found, width)
    elif isinstance(found, Sizing):
        lines = render_sizing(found, width)
    else:
        lines = render_largest(found, width)
    return [*lines, BLANK, *next_lines(next_steps, width)] if next_steps else lines


def text(found: Comparison | Sizing | Largest, form: str) -> str:
    """As ``json``, ``csv`` or ``markdown``."""
    if form == "json":
        return write_json(found.model_dump(mode="json"))
    if isinstance(found, Comparison):
        return comparison_csv(found) if form == "csv" else comparison_markdown(found)
    if isinstance(found, Sizing):
        return sizing_csv(found) if form == "csv" else sizing_markdown(found)
    return largest_csv(found) if form == "csv" else largest_markdown(found)


def check_studies(paths: Sequence[Path]) -> None:
    """Says before the work what could not be written after it; a report is that of a plan among what was found.

    Raises:
        PlannerError: an ending that nothing is written for (O01), something else in its place (O02), a place that
            cannot be written (O03).
    """
    faults = [fault for path in paths if (fault := _fault(path, [*FORMS, REPORT])) is not None]
    if faults:
        raise PlannerError(*faults)


def write_study(path: Path, found: Comparison | Sizing | Largest) -> None:
    """Writes the file that its ending asks for.

    Raises:
        PlannerError: as :func:`check_studies`.
    """
    if (fault := _fault(path, list(FORMS))) is not None:
        raise PlannerError(fault)
    write_or_refuse(path, text(found, FORMS[path.suffix]))


def _fault(path: Path, endings: Sequence[str]) -> Fault | None:
    if path.suffix not in endings:
        what = f"cannot write {path}: a table is not written with this ending."
        return Fault("O01", what, (f"Possible: {listed(endings)}.",))
    fault = place_fault(path)
    if fault is None and path.is_file() and not _is_table(path):
        what = f"{path} is there and is not such a table; it is not overwritten."
        return Fault("O02", what, ("Choose another name, or remove it.",))
    return fault


def _is_table(path: Path) -> bool:
    """Whether a file is what one of these commands writes with its ending, or nothing."""
    try:
        there = path.read_text(encoding="utf-8")
        data = json.loads(there) if path.suffix == ".json" and there.strip() else {}
    except (OSError, ValueError, RecursionError):
        return False
    if not there.strip():
        return True
    if path.suffix == ".json":
        return (
            isinstance(data, dict)
            and {"model", "recipe"} <= data.keys()
            and bool({"rows", "curve"} & data.keys())
        )
    if path.suffix == REPORT:
        return '<meta name="generator" content="shardwright' in there[:2000]
    if path.suffix == ".csv":
        return "cluster,chips,trainer," in there.partition("\n")[0]
    return there.startswith("## ") and "\n| " in there
