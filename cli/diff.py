"""``shardwright diff``: what differs between two plans, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import options as o

Before = Annotated[Path, typer.Argument(metavar="PLAN_A", help="A plan, as `plan --out` wrote it.")]
After = Annotated[Path, typer.Argument(metavar="PLAN_B", help="Another.")]


def diff(
    before: Before,
    after: After,
    form: o.ShortFormat = "table",
    quiet: o.Quiet = False,
    no_color: o.NoColor = False,
) -> int:
    """Show what differs between two plans, and what it costs."""
    from cli import exits
    from cli.console import Screen
    from planner.api import read_plan
    from planner.plan.diff import diff as found
    from planner.plan.write import write_json
    from planner.report.diff import render_diff
    from planner.studies.again import staleness

    screen = Screen(quiet=quiet, no_color=no_color)
    o.chosen(form, o.SHORT_FORMATS, "--format")
    names = (before.stem, after.stem) if before.stem != after.stem else (str(before), str(after))
    plans = read_plan(before), read_plan(after)
    difference = found(*plans, names)
    if form == "json":
        screen.write(write_json(difference.model_dump(mode="json")))
    else:
        screen.show(render_diff(difference, min(screen.width, o.WIDEST)))
    for plan, name in zip(plans, names, strict=True):
        if old := staleness(plan, name):
            screen.note(f"Warning: {old}")
    return exits.ANSWER
