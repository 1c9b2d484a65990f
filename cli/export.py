"""``shardwright export``: a plan as the files of the trainer that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import exits
from cli import options as o

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A plan that shardwright plan --out wrote.")
]
To = Annotated[
    str,
    typer.Option("--to", metavar="TRAINER", help="megatron, torchtitan, deepspeed, mindformers, …"),
]
Folder = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FOLDER", parser=o.named, help="Where the trainer's files go."
    ),
]

Like = Annotated[
    Path | None,
    typer.Option("--like", metavar="FILE", help="A configuration of your own: only what the plan decides is changed."),
]  # fmt: skip


def export(
    plan: PlanFile,
    to: To,
    out: Folder,
    like: Like = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_color: o.NoColor = False,
) -> int:
    """Write a plan as the files of the trainer that runs it."""
    from cli.console import Screen
    from planner.api import export as written
    from planner.api import read_plan
    from planner.studies.again import staleness

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    found = read_plan(plan)
    for path in written(found, to, out, like=like):
        screen.note(f"Wrote {path}.")
    if not quiet and (old := staleness(found, str(plan))):
        screen.note(f"Warning: {old}")
    if not found.fits:
        screen.note(
            "Warning: this plan is predicted not to fit; it is written all the same, to be measured."
        )
    return exits.ANSWER
