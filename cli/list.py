"""``shardwright list``: what is known by name."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import options as o

KINDS = ("models", "clusters", "chips", "trainers")


def list_names(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}.")],
    form: o.ShortFormat = "table",
    no_color: o.NoColor = False,
) -> int:
    """List the models, clusters, chips or trainers that are known."""
    from cli import exits
    from cli.console import Screen
    from planner.known import list_names as find
    from planner.plan.write import write_json
    from planner.report.tables import Column, named_whole, table

    screen = Screen(no_color=no_color)
    o.chosen(form, o.SHORT_FORMATS, "--format")
    rows = [dict(row) for row in find(o.chosen(kind, KINDS, "KIND"))]
    if form == "json":
        screen.write(write_json(rows))
        return exits.ANSWER
    columns = []
    for key in rows[0] if rows else ():
        cells = [str(row[key]) for row in rows]
        number = all(isinstance(row[key], int | float) for row in rows)
        columns.append(Column(heading=key, cells=cells, left=not number))
    screen.show(table(named_whole(columns, screen.width), screen.width))
    return exits.ANSWER
