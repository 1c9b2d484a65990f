"""``shardwright calibrate``: a cluster's profile from a few measured steps of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exits
from cli import options as o

if TYPE_CHECKING:
    from planner.calibrate.calibrate import Calibrated
    from planner.report.tables import Line

Runs = Annotated[
    Path,
    typer.Argument(metavar="RUNS", help="Measured runs of the cluster, one a line of JSON; one suffices."),
]  # fmt: skip
Profile = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="PATH", parser=o.named, help="The profile to write, a .yaml file."
    ),
]
Ran = Annotated[
    str | None,
    typer.Option("--trainer", "-t", metavar="NAME", help="What ran them; default: as the runs say."),
]  # fmt: skip
MOST_ROWS = 20
"""Runs shown; the sentence below counts all."""


def calibrate(
    runs: Runs,
    cluster: o.Cluster,
    out: Profile,
    trainer: Ran = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_color: o.NoColor = False,
) -> int:
    """Fit a cluster's profile on measured steps of its own."""
    from cli.console import Screen
    from planner.calibrate.calibrate import calibrate as fitted
    from planner.output.files import check_profile, write_or_refuse

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    check_profile(out)
    found = fitted(runs, cluster, trainer)
    screen.show(page(found, screen.width))
    write_or_refuse(out, found.text)
    screen.note(f"Wrote {out}. Use it as --cluster {out}")
    return exits.ANSWER


def page(found: Calibrated, width: int) -> list[Line]:
    """What was fitted, how far the runs are now, and what they could not say."""
    from planner.report.tables import BLANK, Column, labelled, styled, table
    from planner.units import show_seconds

    rows = found.rows[:MOST_ROWS]
    columns = [
        Column(heading="run", cells=[row.id[:44] for row in rows], left=True),
        Column(heading="measured", cells=[show_seconds(row.measured) for row in rows]),
        Column(heading="profile", cells=[show_seconds(row.before) for row in rows], drop=1),
        Column(heading="error", cells=[_signed(row.before / row.measured - 1) for row in rows]),
        Column(heading="calibrated", cells=[show_seconds(row.after) for row in rows], drop=1),
        Column(heading="error", cells=[_signed(row.after / row.measured - 1) for row in rows]),
    ]
    lines = table(columns, width)
    words = {
        "compute": "speed of",
        "memory_efficiency": "memory's speed in",
        "network": "network over",
    }
    factors = [
        f"{words[item.parameter.field]} {item.parameter.owner} × {item.factor:.3f} ± {item.spread:.3f}"
        for item in found.factors
    ]
    own = found.cluster.calibrated
    assert own is not None
    memory = "" if own.memory_error is None else f"; memory ±{100 * own.memory_error:.0f} %"
    runs = f"{own.runs} run{'s' * (own.runs > 1)}, {own.trainer}"
    lines += [BLANK, *labelled("Fitted", factors, width)]
    lines += labelled("Trust", [f"±{100 * own.step_error:.0f} % ({runs}){memory}"], width)
    if found.unidentified:
        lines += labelled("Unknown", list(found.unidentified), width, "caution")
    if found.skipped:
        skipped = [f"{name} ({why})" for name, why in list(found.skipped.items())[:MOST_ROWS]]
        lines += styled([f"  {len(found.skipped)} not used:"], "dim")
        lines += styled([f"    {text}" for text in skipped], "dim")
    return lines


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
