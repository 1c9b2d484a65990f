"""``shardwright compare``: the best plan on each of several clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import exits
from cli import options as o

FORMATS = ("table", "json", "csv", "markdown")

Chips = Annotated[
    str | None,
    typer.Option(
        "--chips", metavar="LIST", help="Numbers of chips, as 64,128 or 64..1024 (doubling)."
    ),
]
Dollars = Annotated[
    list[str] | None,
    typer.Option(
        "--price", metavar="NAME=DOLLARS", help="Of a chip-hour, by chip or cluster. Repeatable."
    ),
]
Sensitivity = Annotated[
    bool,
    typer.Option(
        "--sensitivity", help="Also the step with every hardware number 20 % lower and higher."
    ),
]
Form = Annotated[str, typer.Option("--format", "-f", metavar="NAME", help=f"{', '.join(FORMATS)}.")]


Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out", "-o", metavar="PATH",
        help="Also write a file: .csv, .md, .json, or .html (the fastest plan's report). Repeatable.",
    ),
]  # fmt: skip


def compare(
    model: o.MaybeModel = None,
    cluster: o.Clusters = None,
    chips: Chips = None,
    trainer: o.Trainers = None,
    what_if: o.WhatIfs = None,
    price: Dollars = None,
    sensitivity: Sensitivity = False,
    global_batch: o.GlobalBatch = None,
    seq_len: o.SeqLen = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    recipe: o.RecipeFile = None,
    memory_limit: o.MemoryLimit = None,
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
    """Find the best plan on each of several clusters, chip counts, trainers and what-ifs."""
    from cli import asking
    from cli.answer import deliver_study
    from cli.console import ProgressLine, Screen
    from cli.layout import model_only
    from planner.api import compare as compared
    from planner.output import studied
    from planner.studies.ranges import counts

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    o.chosen(form, FORMATS, "--format")
    studied.check_studies(out or ())
    earlier = asking.earlier_plan(like)
    clusters = cluster or ([earlier.asked.cluster] if earlier else [])
    question = asking.asked(
        model,
        clusters[0] if clusters else None,
        earlier,
        trainer=trainer[0] if trainer else None,
        global_batch=o.batch(global_batch),
        seq_len=o.tokens(seq_len),
        precision=precision,
        optimizer=optimizer,
        recipe_file=recipe,
        memory_limit=memory_limit,
        pins=tuple(pin or ()),
        time_limit=o.seconds(time_limit),
        top=1,
        overrides=model_only(o.settings(set_, "--set")),
    )
    with ProgressLine(screen) as progress:
        found = compared(
            question,
            clusters=clusters,
            chips=counts(chips) if chips else (),
            trainers=trainer or (),
            what_if=what_if or (),
            dollars=o.prices(price),
            sensitivity=sensitivity,
            jobs=jobs,
            backend=backend,
            done=progress.count,
        )
    deliver_study(found, question, screen, form, out or ())
    if found.left_out:
        screen.note(f"Stopped. {found.left_out:,} rows were not looked at.")
        return exits.STOPPED
    return exits.NO_PLAN if found.fastest is None else exits.ANSWER
