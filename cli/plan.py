"""``shardwright plan``: the fastest plan that fits, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli import options as o

if TYPE_CHECKING:
    from planner.plan.findings import Comparison
    from planner.plan.schema import Plan

NEXT_STEPS = (
    ("… --out plan.json --out report.html", "keep it, and see it"),
    ("… --detail all", "every stage, operator and rule"),
    ("… --pin KEY=VALUE", "what another choice would cost"),
)


def plan(
    model: o.MaybeModel = None,
    cluster: o.MaybeCluster = None,
    trainer: o.MaybeTrainer = None,
    global_batch: o.GlobalBatch = None,
    seq_len: o.SeqLen = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    recipe: o.RecipeFile = None,
    memory_limit: o.MemoryLimit = None,
    what_if: o.WhatIf = None,
    pin: o.Pins = None,
    objective: o.Objective = None,
    time_limit: o.TimeLimit = "60s",
    set_: o.ModelSettings = None,
    like: o.Like = None,
    warm_start: o.WarmStart = None,
    top: o.Top = 5,
    detail: o.Detail = None,
    form: o.Format = "table",
    out: o.Out = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_color: o.NoColor = False,
) -> int:
    """Find the fastest plan that fits, and say why."""
    from cli import asking
    from cli.answer import Output, deliver
    from cli.console import ProgressLine, Screen
    from cli.layout import model_only
    from planner.api import plan as find

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    output = Output.asked(form, detail, out)
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
        objective=None if objective is None else o.chosen(objective, o.OBJECTIVES, "--objective"),
        time_limit=o.seconds(time_limit),
        top=top,
        warm_start=asking.own_layout(warm_start),
        overrides=model_only(o.settings(set_, "--set")),
        figures=output.figures,
    )
    with ProgressLine(screen) as progress:
        answer = find(question, progress)

    def others(found: Plan) -> Comparison:
        from planner.studies.neighbours import neighbours

        return neighbours(question, found)

    return deliver(answer, screen, output, NEXT_STEPS, others)
