"""transformers: ``tp_plan``, one style for every module, with Accelerate's file for the data ranks.

Layer numbers are collapsed to wildcards: a key with a number is taken without a word and gives wrong gradients, so
layers that are cut differently are refused. Release: transformers 5.12.
"""

from __future__ import annotations

from planner.export import accelerate
from planner.export.files import File, json_text
from planner.export.loop import loop, started
from planner.export.modules import ENDS, LAYER, llama_like, style
from planner.export.refusal import Limits, equal_layers, pinned
from planner.export.remeasure import remeasure
from planner.export.shape import shape_of
from planner.export.view import View, commented, header
from planner.export.yaml_text import yaml_text

RELEASE = "transformers 5.12"
STYLES = {"column": "colwise", "row": "rowwise"}
ENDS_STYLES = {
    ("lookup", "column"): "embedding_rowwise",
    ("lookup", "row"): "embedding_colwise",
    ("project", "column"): "colwise_gather_output",
}
"""transformers names embeddings by how the table, not the product, is cut; its loss wants whole logits."""


def write(view: View) -> list[File]:
    """``tp_plan.json``, and the launcher's file where there are data ranks too.

    Raises:
        PlannerError: what a ``tp_plan`` cannot hold (W01).
    """
    limits = Limits(RELEASE)
    equal_layers(limits, view)
    accelerate.check(limits, view)
    d = view.degrees
    limits.refuse(
        d.tp > 1 and d.sequence_parallel, "sequence parallelism between products", pinned("sp=off")
    )
    limits.refuse(
        d.tp > 1 and view.experts,
        "experts under tp without ep: they have a plan of their own",
        pinned("tp=1"),
    )
    llama_like(limits, view, shape_of(view))
    limits.done()
    data = {"_about": header(view, RELEASE), "tp_plan": tp_plan(view)}
    files = [File("tp_plan.json", json_text(data))]
    head = [*header(view, accelerate.RELEASE), started(view, deepspeed=False)]
    text = commented(head) + yaml_text(accelerate.settings(view))
    files.append(File("accelerate.yaml", text))
    return [*files, loop(view, RELEASE, deepspeed=False), remeasure(view, accelerate.MEASURED)]


def tp_plan(view: View) -> dict[str, str]:
    """Module names of a causal language model, with wildcards, to styles."""
    found = {}
    for op in view.operators():
        linear = LAYER.get(op.name)
        if linear is not None and style(op, linear) in STYLES:
            for module in linear.modules:
                found[f"model.layers.*.{module}"] = STYLES[style(op, linear)]
    for place in ("embedding", "head"):
        block = view.block(place)
        for op in block.operators if block else ():
            if op.name in ENDS and (op.name, cut := style(op, ENDS[op.name])) in ENDS_STYLES:
                module = ENDS[op.name].modules[0]
                found[f"model.{module}" if place == "embedding" else module] = ENDS_STYLES[
                    op.name, cut
                ]
    return found
