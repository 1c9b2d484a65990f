"""``shardwright schema``: JSON Schema of the files that people and programs write."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import options as o

KINDS = ("plan", "no-plan", "model", "cluster", "recipe")


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}.")],
) -> int:
    """Print the JSON Schema of plans, models, clusters or recipes."""
    from cli import exits
    from cli.console import Screen
    from planner.known import schema as find
    from planner.plan.write import write_json

    Screen().write(write_json(find(o.chosen(kind, KINDS, "KIND"))))
    return exits.ANSWER
