"""``shardwright evaluate``: predictions against measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import exits
from cli import options as o

FORMATS = ("table", "json", "csv")

Runs = Annotated[
    Path,
    typer.Argument(metavar="RUNS", help="Measured runs, one a line of JSON; .gz is unpacked."),
]
EvaluationFormat = Annotated[
    str, typer.Option("--format", "-f", metavar="NAME", help=f"{', '.join(FORMATS)}.")
]
MaxError = Annotated[
    float | None,
    typer.Option(
        "--max-error", metavar="PCT", min=0.0,
        help="Exit with 5 where the mean error of the step (of memory, if no step was measured) is above.",
    ),
]  # fmt: skip
By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="LIST",
        help="Split errors by group, chip, trainer, software; comma-separated.",
    ),
]
OwnCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", "-c", metavar="SPEC",
        help="A profile of what they ran on; default: what each run says of its chip and network.",
    ),
]  # fmt: skip
TopErrors = Annotated[
    int, typer.Option("--top-errors", metavar="N", min=0, help="The rows that are furthest off.")
]


def evaluate(
    runs: Runs,
    cluster: OwnCluster = None,
    by: By = "chip,trainer",
    top_errors: TopErrors = 5,
    max_error: MaxError = None,
    form: EvaluationFormat = "table",
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_color: o.NoColor = False,
) -> int:
    """Predict measured runs from their own configurations and show the error."""
    import json

    from cli.accuracy import page
    from cli.console import Screen
    from planner.calibrate.evaluate import evaluate as evaluated
    from planner.calibrate.summary import KEYS, as_csv, as_json, summarise

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    o.chosen(form, FORMATS, "--format")
    keys = [o.chosen(word.strip(), KEYS, "--by") for word in by.split(",") if word.strip()]
    evaluation = evaluated(runs, cluster)
    summary = summarise(evaluation, keys)
    if form == "json":
        data = as_json(evaluation, summary)
        screen.write(json.dumps(data, ensure_ascii=False, indent=1) + "\n")
    elif form == "csv":
        screen.write(as_csv(evaluation))
    else:
        screen.show(page(evaluation, summary, top_errors, screen.width))
    error = summary.gate
    if max_error is None:
        return exits.ANSWER
    if error is None:
        screen.say("Nothing measured could be compared, so --max-error has nothing to check.")
        return exits.CHECK_FAILED
    if 100 * error > max_error:
        screen.say(f"The mean error is {100 * error:.1f} %, above {max_error:g} %.")
        return exits.CHECK_FAILED
    return exits.ANSWER
