"""``shardwright show``: one model, cluster, chip or trainer, with the source of each number."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import options as o


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As `shardwright list` has it, or a file.")
    ],
    form: o.ShortFormat = "table",
) -> int:
    """Show what is known under a name, with the source of each number."""
    from cli import exits
    from cli.console import Screen
    from planner.api import show as find
    from planner.plan.write import write_json

    o.chosen(form, o.SHORT_FORMATS, "--format")
    found = find(name)
    text = write_json(found.data) if form == "json" else found.text
    Screen().write(text if text.endswith("\n") else text + "\n")
    return exits.ANSWER
