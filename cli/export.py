"""``shardwright export``: a plan as the files of the trainer that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exits
from cli import options as o

if TYPE_CHECKING:
    from planner.export.files import File
    from planner.plan.schema import Plan

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
    from cli.files import write_files
    from planner.api import staleness
    from planner.export.targets import export as written
    from planner.plan.read import read_plan

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    found = read_plan(plan)
    files = written(found, to) if like is None else [_edited(found, to, like)]
    for path in write_files(out, files, anything=like is not None):
        screen.note(f"Wrote {path}.")
    if not quiet and (old := staleness(found, str(plan))):
        screen.note(f"Warning: {old}")
    if not found.fits:
        screen.note(
            "Warning: this plan is predicted not to fit; it is written all the same, to be measured."
        )
    return exits.ANSWER


def _edited(plan: Plan, to: str, like: Path) -> File:
    """The file that a person has, with the plan's settings."""
    from planner.errors import PlannerError
    from planner.export.like import export_like
    from planner.export.targets import target

    try:
        text = like.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no text"
        raise PlannerError.of("F01", f"cannot read {str(like)!r}: {why}.") from None
    return export_like(plan, target(to).name, str(like), text)
