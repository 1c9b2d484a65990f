"""``shardwright price``: what a layout that somebody already has would cost."""

from __future__ import annotations

from cli import options as o

NEXT_STEPS = (
    ("shardwright plan …", "whether a better layout exists"),
    ("… --detail all", "every stage, operator and message"),
)


def price(
    model: o.MaybeModel = None,
    cluster: o.MaybeCluster = None,
    set_: o.MaybeLayoutSettings = None,
    trainer: o.MaybeTrainer = None,
    global_batch: o.GlobalBatch = None,
    seq_len: o.SeqLen = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    recipe: o.RecipeFile = None,
    memory_limit: o.MemoryLimit = None,
    what_if: o.WhatIf = None,
    pin: o.OperatorPins = None,
    like: o.Like = None,
    detail: o.Detail = None,
    form: o.Format = "table",
    out: o.Out = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    no_color: o.NoColor = False,
) -> int:
    """Evaluate a layout that you already have; what it leaves open is chosen, and said."""
    from cli import asking
    from cli.answer import Output, deliver
    from cli.console import Screen
    from cli.layout import divided, in_words_of_set
    from planner.api import price as evaluate
    from planner.errors import PlannerError
    from planner.plan.layout import elsewhere, layout_of, restated

    screen = Screen(quiet=quiet, verbose=verbose, no_color=no_color)
    output = Output.asked(form, detail, out)
    earlier = asking.earlier_plan(like)
    layout, overrides = divided(o.settings(set_, "--set"))
    if earlier is not None:
        whole = layout_of(earlier.degrees, earlier.pins)
        layout = restated(whole if cluster is None else elsewhere(whole), layout)
    elif not layout:
        raise PlannerError.of(
            "A03", "missing option '--set'.", "Write it like --set tp=8,pp=4,mbs=1"
        )
    question = asking.asked(
        model,
        cluster,
        earlier,
        trainer=trainer,
        global_batch=o.batch(global_batch),
        seq_len=o.tokens(seq_len),
        precision=precision,
        optimizer=optimizer,
        recipe_file=recipe,
        memory_limit=memory_limit,
        what_if=tuple(what_if or ()),
        pins=tuple(pin or ()),
        overrides=overrides,
        figures=output.figures,
    )
    try:
        answer = evaluate(question, layout)
    except PlannerError as error:
        raise PlannerError(*in_words_of_set(error.faults)) from None
    return deliver(answer, screen, output, NEXT_STEPS)
