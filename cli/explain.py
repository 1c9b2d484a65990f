"""``shardwright explain``: the plan as a tree with costs, or one of its items."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import exits
from cli import options as o

if TYPE_CHECKING:
    from planner.plan.schema import Plan

FORMATS = ("table", "json", "markdown")

Form = Annotated[str, typer.Option("--format", "-f", metavar="NAME", help=f"{', '.join(FORMATS)}.")]
Kept = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN", help="A plan's file; or rows that `compare` or `size` kept in a .json."
    ),
]
Item = Annotated[
    str | None,
    typer.Argument(
        metavar="ITEM",
        help="What a page prints: '#2', rule:NAME, step.gradients, memory.weights, mfu, stage.0, dense.mlp.up; "
        "of rows '#2', '#2 mfu', turn.1.",
    ),
]
Depth = Annotated[
    int,
    typer.Option("--depth", metavar="N", min=1, help="1 layers, 2 operators, 3 all of it."),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="What was measured, to stand beside: a run as `evaluate` reads it, a profiler's trace .json[.gz], or "
        "times of operators .csv.",
    ),
]


def explain(
    plan: Kept,
    item: Item = None,
    depth: Depth = 2,
    measured: Measured = None,
    form: Form = "table",
    quiet: o.Quiet = False,
    no_color: o.NoColor = False,
) -> int:
    """Show a plan as a tree with costs; or why a row lost, what a rule costs, how a number comes about."""
    from cli.console import Screen
    from cli.explained import data_of, explain_study, page_width
    from planner.api import explain as found
    from planner.calibrate.measured import measured_run
    from planner.errors import PlannerError
    from planner.output.pages import explained_page
    from planner.plan.read import read_kept
    from planner.plan.schema import Plan
    from planner.plan.tree import Node
    from planner.plan.write import write_json
    from planner.report.markdown import markdown_page
    from planner.report.tree import render_measured
    from planner.studies.again import staleness

    screen = Screen(quiet=quiet, no_color=no_color)
    o.chosen(form, FORMATS, "--format")
    answer = read_kept(plan)
    if not isinstance(answer, Plan):
        if measured is not None:
            raise PlannerError.of(
                "A03",
                f"--measured is beside a plan, and {plan} holds rows.",
                "Make the plan of a row with --out plan.json, and explain that.",
            )
        return explain_study(answer, item, plan, depth, form, screen)
    run = None if measured is None else measured_run(measured, answer)
    why = found(answer, item, name=str(plan))
    times = {} if run is None else run.times
    if form == "json":
        screen.write(write_json(data_of(why, times)))
    else:
        width = page_width(screen, form)
        page = explained_page(answer, why, width, depth, times)
        if run is not None and isinstance(why, Node):
            page += render_measured(answer, run.step, run.memory, run.parts, run.operators)
        if form == "markdown":
            screen.write(markdown_page(answer, item or "", page))
        else:
            screen.show(page)
    if other := _unlike(answer, {} if run is None else run.facts):
        screen.note(f"Warning: the run is not of this plan: {other}.")
    if old := staleness(answer, str(plan)):
        screen.note(f"Warning: {old}")
    return exits.ANSWER


def _unlike(plan: Plan, facts: Mapping[str, int]) -> str:
    """In which numbers a measured run is another than the plan's."""
    own = {
        "chips": plan.degrees.chips_used,
        "global batch": plan.recipe.global_batch,
        "seq": plan.recipe.seq,
        "tp": plan.degrees.tp,
        "pp": plan.degrees.pp,
    }
    return " · ".join(
        f"{word} {facts[word]}, not {number}"
        for word, number in own.items()
        if facts.get(word, number) != number
    )
