"""``shardwright size``: how many chips, or how large a batch or sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import exits
from cli import options as o

LARGEST = ("seq-len", "global-batch")
FORMATS = ("table", "json", "csv", "markdown")

StepTime = Annotated[
    str | None, typer.Option("--step-time", metavar="TIME", help="A step may take so long, as 10s.")
]
Tokens = Annotated[
    str | None, typer.Option("--tokens", metavar="N", help="To train on, as 15T or 300B.")
]
Days = Annotated[
    float | None, typer.Option("--days", metavar="D", min=0.0, help="The deadline for --tokens.")
]
Dollars = Annotated[
    str | None, typer.Option("--dollars", metavar="N", help="What --tokens may cost, as 5M.")
]
LargestOf = Annotated[
    str | None,
    typer.Option(
        "--largest", metavar="WHAT",
        help=f"Not the fewest chips: the largest {' or '.join(LARGEST)} on these.",
    ),
]  # fmt: skip
Form = Annotated[str, typer.Option("--format", "-f", metavar="NAME", help=f"{', '.join(FORMATS)}.")]

Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out", "-o", metavar="PATH",
        help="Also write a file: .csv, .md, .json, or .html (the answer's report). Repeatable.",
    ),
]  # fmt: skip


def size(
    model: o.MaybeModel = None,
    cluster: o.MaybeCluster = None,
    step_time: StepTime = None,
    tokens: Tokens = None,
    days: Days = None,
    dollars: Dollars = None,
    largest: LargestOf = None,
    trainer: o.MaybeTrainer = None,
    global_batch: o.GlobalBatch = None,
    seq_len: o.SeqLen = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    recipe: o.RecipeFile = None,
    memory_limit: o.MemoryLimit = None,
    what_if: o.WhatIf = None,
    pin: o.Pins = None,
    time_limit: o.TimeLimit = "60s",
    set_: o.ModelSettings = None,
    like: o.Like = None,
    jobs: o.Jobs = None,
    backend: o.Backend = "local",
    form: Form = "table",
    out: Out = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_color: o.NoColor = False,
) -> int:
    """Find the fewest chips that fit, or that meet a step time, a deadline or a price."""
    from cli import asking
    from cli.answer import deliver_study
    from cli.console import ProgressLine, Screen
    from cli.layout import model_only
    from planner.api import size as find
    from planner.output import studied

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    o.chosen(form, FORMATS, "--format")
    studied.check_studies(out or ())
    what = None if largest is None else o.chosen(largest, LARGEST, "--largest")
    question = asking.asked(
        model,
        cluster,
        asking.earlier_plan(like),
        trainer=trainer,
        global_batch=o.batch(global_batch),
        seq_len=o.tokens(seq_len),
        precision=precision,
        optimizer=optimizer,
        recipe_file=recipe,
        memory_limit=memory_limit,
        what_if=tuple(what_if or ()),
        pins=tuple(pin or ()),
        time_limit=o.seconds(time_limit),
        top=1,
        overrides=model_only(o.settings(set_, "--set")),
    )
    with ProgressLine(screen) as progress:
        found = find(
            question,
            largest=what,  # type: ignore[arg-type]
            step=None if step_time is None else o.seconds(step_time, "--step-time"),
            tokens=o.amount(tokens, "--tokens"),
            days=days,
            dollars=o.amount(dollars, "--dollars"),
            jobs=jobs,
            backend=backend,
            done=progress.count,
        )
    deliver_study(found, question, screen, form, out or ())
    if found.stopped:
        screen.note("Stopped. Others may be better than what was looked at.")
        return exits.STOPPED
    return exits.NO_PLAN if found.answer is None else exits.ANSWER
