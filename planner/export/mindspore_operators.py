"""MindSpore: into how many parts every operator's inputs are cut, and how that becomes its operator strategy file.

The file names operators as the compiler does, by the cells of the net that trains, which a plan does not know. The
export holds the plan's side, and the one function that joins it with the net's names.
"""

from __future__ import annotations

import json
from math import prod

from planner.export.files import File
from planner.export.mindspore_names import ENDS, LAYER
from planner.export.view import View, commented, header
from planner.plan.schema import BlockPlan, OperatorPlan
from planner.units import Json

TOKENS = ("batch", "seq")


def operator_file(view: View, release: str) -> File:
    """``operator_strategy.py``: run with the net's names it writes what ``set_op_strategy_config("LOAD", …)`` reads."""
    kinds = {
        block.name: {op.name: parts for op in block.operators if (parts := _parts(view, block, op))}
        for block in view.plan.blocks
    }
    layers = [block.name for block in view.layer_blocks]
    text = _PYTHON.format(
        parts=json.dumps(kinds, indent=1, ensure_ascii=False), layers=json.dumps(layers)
    )
    return File("operator_strategy.py", commented(header(view, release)) + text)


def _parts(view: View, block: BlockPlan, op: OperatorPlan) -> dict[str, Json]:
    """Parts of every tensor that an operator reads, weights included, in the shapes that MindSpore's have."""
    found: dict[str, Json] = {}
    for name, placements in (op.inputs | op.weights).items():
        cut = {
            dim: prod(view.ranks(axis) for axis, p in placements.items() if p == f"shard({dim})")
            for dim in block.tensors.get(name, ())
        }
        if name in op.weights:
            found[name] = [_joint(cut, dims) for dims in (LAYER | ENDS).get(op.name, ((), ()))[1]]
        elif op.kind == "attention":
            heads = next(dim for dim in cut if dim in ("heads", "kv_heads"))
            found[name] = [cut["batch"], cut[heads], cut["seq"], 1]
        elif "capacity" in cut:
            rest = tuple(dim for dim in cut if dim not in ("capacity", "experts"))
            found[name] = [cut["capacity"], cut["experts"], 1, _joint(cut, rest)]
        else:
            rest = tuple(dim for dim in cut if dim not in TOKENS)
            found[name] = [_joint(cut, TOKENS), *([_joint(cut, rest)] if rest else [])]
    return found


def _joint(cut: dict[str, int], dims: tuple[str, ...]) -> int:
    return prod(cut.get(dim, 1) for dim in dims)


_PYTHON = '''
import json

PARTS = {parts}
"""By kind of layer and operator of the plan: into how many parts every dim of each tensor that it reads is cut. Tokens
are one dim (batch and sequence), weights have their outputs first (experts before them), attention reads (batch, heads,
tokens, size), and experts read (groups of ranks, experts, rows, size)."""
LAYERS = {layers}
"""The kind of every layer."""


def strategy_file(path, names, stage=0):
    """Writes the operator strategies of a net, for set_op_strategy_config("LOAD", path) and sharding propagation.

    ``names`` holds every operator of the net by the compiler's name for it. Its value is either what the net's operator
    reads, as (layer or "embedding" or "head", operator of the plan, tensor, …), or plain lists of parts, for operators
    that the plan does not have (_VirtualDataset, Reshape). A name that is missing is refused when the file is loaded.
    """
    items = {{}}
    for name, value in names.items():
        if not isinstance(value, list):
            place, operator, *tensors = value
            kind = LAYERS[place] if isinstance(place, int) else place
            value = [PARTS[kind][operator][tensor] for tensor in tensors]
        items[name] = {{"stage": stage, "parallel_strategy": value}}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({{"current_stage": stage, "parallel_strategy_item": items}}, file)
'''
