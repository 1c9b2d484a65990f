"""Plain DTensor: a mesh and the placements of every operator, for ``planner.runtime`` and for own programs."""

from __future__ import annotations

from planner.export.files import File, json_text
from planner.export.refusal import Limits
from planner.export.remeasure import Remeasured, remeasure
from planner.export.view import View, header
from planner.plan.schema import BlockPlan, Collective
from planner.units import Json

RELEASE = "torch 2.13 (DTensor, FSDP2, pipelining)"
FORMAT = "shardwright-dtensor-1"


def write(view: View) -> list[File]:
    """``dtensor.json``, and the script that measures it.

    Raises:
        PlannerError: layers that are computed again several at a time (W01); nothing else is left out.
    """
    recipe = {"precision": view.plan.recipe.precision, "optimizer": view.plan.recipe.optimizer}
    data = {"_about": header(view, RELEASE), "format": FORMAT, "recipe": recipe} | settings(view)
    return [File("dtensor.json", json_text(data)), remeasure(view, _measured(view))]


def settings(view: View) -> dict[str, Json]:
    """Mesh from the outermost axis, stages in the order in which a token meets them, blocks with operators.

    Raises:
        PlannerError: layers that are computed again several at a time (W01).
    """
    d, limits = view.degrees, Limits(RELEASE)
    together = f"recompute of {d.recompute_unit} layers at a time"
    limits.refuse(d.recompute_unit > 1, together, "the same layout without recompute-unit")
    limits.done()
    whole, some = view.recomputing
    sizes = {"pp": d.pp, "dp": d.dp, "cp": d.cp, "tp": d.tp}
    return {
        "mesh": {axis: sizes[axis] for axis in reversed(d.order) if axis in sizes},
        "experts": {"ep": d.ep, "etp": d.etp},
        "states": {"level": view.level, "shard": d.shard_group, "replicate": view.replicas},
        "stages": [list(visit) for visit in view.visits],
        "schedule": {
            "name": d.schedule,
            "chunks": d.vpp,
            "micro_batch": d.micro_batch,
            "micro_batches": d.num_micro_batches,
        },
        "recompute": {"whole": list(whole), "in_part": list(some)},
        "sends": [[_collective(c) for c in stage.sends] for stage in view.plan.stages],
        "blocks": {block.name: _block(block) for block in view.plan.blocks},
    }


def _block(block: BlockPlan) -> dict[str, Json]:
    return {
        "layers": block.layers,
        "count": block.count,
        "sizes": block.sizes,
        "tensors": block.tensors,
        "arrives": block.arrives,
        "operators": {
            op.name: {
                "kind": op.kind,
                "split": op.split,
                "operands": op.operands,
                "inputs": op.inputs,
                "weights": op.weights,
                "outputs": op.outputs,
                "recomputed": op.recomputed,
                "collectives": [_collective(c) for c in op.collectives],
            }
            for op in block.operators
        },
        "states": [_collective(c) for c in block.gradient_collectives],
    }


def _collective(c: Collective) -> dict[str, Json]:
    return {"kind": c.kind, "tensor": c.tensor, "axis": c.axis, "phase": c.phase, "bytes": c.bytes}


def _measured(view: View) -> Remeasured:
    """Rows name the trainer that the plan was priced for: the same plan on plain torch has its prices."""
    return Remeasured(
        framework=f"torch 2.13 DTensor, planned for {view.plan.trainer}",
        command="torchrun $LAUNCH -m planner.runtime.measure dtensor.json",
        seconds=r"step [0-9]+ took ([0-9.]+) s",
        memory=r"peak ([0-9.]+) GiB",
    )
