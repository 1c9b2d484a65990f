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
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the trainer's files go.")
]


def export(
    plan: PlanFile,
    to: To,
    out: Folder,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_color: o.NoColor = False,
) -> int:
    """Write a plan as the files of the trainer that runs it."""
    from cli.console import Screen
    from cli.files import write_files
    from planner.export.targets import export as written
    from planner.plan.read import read_plan

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    found = read_plan(plan)
    for path in write_files(out, written(found, to)):
        screen.note(f"Wrote {path}.")
    if not found.fits:
        screen.note(
            "Warning: this plan is predicted not to fit; it is written all the same, to be measured."
        )
    return exits.ANSWER
