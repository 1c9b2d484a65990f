"""``shardwright check``: a trainer's configuration that somebody runs, or a plan, read back and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import exits
from cli import options as o

Configuration = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A trainer's launch script, TOML, JSON, YAML or Python file, or a plan."),
]  # fmt: skip
Program = Annotated[
    str | None,
    typer.Option(
        "--trainer", "-t", metavar="NAME",
        help="Whose file it is, default: known by its keys; of a plan another trainer to run it.",
    ),
]  # fmt: skip
OfModel = Annotated[
    str,
    typer.Option("--model", metavar="MODEL", help="The model, where the file does not say."),
]
Search = Annotated[
    bool, typer.Option("--search/--no-search", help="Whether to look for a better plan.")
]

Run = Annotated[
    bool,
    typer.Option("--run", help="FILE is a plan: run it, scaled down, on this computer and compare with one process."),
]  # fmt: skip


def check(
    file: Configuration,
    cluster: o.Cluster = "",
    trainer: Program = None,
    model: OfModel = "",
    global_batch: o.GlobalBatch = None,
    seq_len: o.SeqLen = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    memory_limit: o.MemoryLimit = None,
    time_limit: o.TimeLimit = "60s",
    search: Search = True,
    run: Run = False,
    form: o.ShortFormat = "table",
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_color: o.NoColor = False,
) -> int:
    """Price a trainer's configuration or a plan, and say what is wrong with it and what would be better."""
    from cli.console import ProgressLine, Screen
    from planner.api import Question
    from planner.api import check as judged
    from planner.plan.write import write_json
    from planner.report.checked import as_data, page

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    form = o.chosen(form, o.SHORT_FORMATS, "--format")
    if run:
        from cli.running import run_plan

        return run_plan(file, screen)
    question = Question(
        model=model,
        cluster=cluster,
        global_batch=o.batch(global_batch),
        seq_len=o.tokens(seq_len),
        precision=precision,
        optimizer=optimizer,
        memory_limit=memory_limit,
        time_limit=o.seconds(time_limit),
    )
    with ProgressLine(screen) as progress:
        found = judged(file, question, program=trainer, search=search, progress=progress)
    if form == "json":
        screen.write(write_json(as_data(found)))
    else:
        screen.show(page(found, width=min(screen.width, o.WIDEST)))
    return exits.ANSWER if found.holds else exits.CHECK_FAILED
