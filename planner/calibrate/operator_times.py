"""How long the operators of a plan took on a rank: from a profiler's trace, or from a table that somebody wrote.

Kernels of a trace belong to the operator in whose annotation they run (``record_function("mlp.up")``). Others are
known by what launched them, where the profiler recorded shapes: a product of two matrices by its three sizes,
attention by the kernel's name. Operators of equal sizes share the time of all their products by their FLOPs, as do
those that a trainer computes in one product, such as queries, keys and values.
"""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from planner.calibrate.profiler import ATTENTION, SENDS, Trace
from planner.errors import PlannerError, listed, nearest
from planner.plan.schema import BlockPlan, OperatorPlan, Plan
from planner.plan.tree import busiest_stage, layers_held
from planner.units import US, Json

UNKNOWN = ""
"""Stands for products that no operator of the plan has."""
PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::_scaled_mm"})
"""What launches products of two matrices in torch."""
PAIRED = ("pair", "gates")
"""Dims along which one operator stands for two products of a trainer that does not join them."""
Shares = dict[str, float]
"""Work by the ids of operators."""
Sizes = tuple[int, ...]


def operator_times(trace: Trace, plan: Plan) -> dict[str, float]:
    """Seconds of a step by the ids of operators; under ``UNKNOWN`` those of products that no operator has.

    Args:
        trace: of one rank.
        plan: whose operators are looked for; the trace is taken for one of its busiest stage.
    """
    held = _held(plan)
    launched = _launched(trace)
    named, sizes = _named(held), _by_sizes(held, set(launched.values()))
    cores = {name: work for name, (_, op, work) in held.items() if op.kind == "attention"}
    spans = _annotated(trace, named)
    found: dict[str, float] = defaultdict(float)
    for event in trace.kernels:
        if SENDS.search(str(event["name"])):
            continue
        shares = _inside(spans, event)
        if not shares and ATTENTION.search(str(event["name"])):
            shares = cores
        if not shares and (key := launched.get(_external(event))):
            shares = sizes.get(key, {UNKNOWN: 1.0})
        whole = sum(shares.values())
        for name, work in shares.items():
            found[name] += float(event["dur"]) * work / whole
    return {name: value * US / trace.steps for name, value in found.items()}


def read_operator_times(path: Path, plan: Plan) -> dict[str, float]:
    """Seconds of a step by the ids of operators, from a table with the columns ``operator`` and ``seconds``.

    Raises:
        PlannerError: the file cannot be read (F01), or holds no such table or what the plan has not (F02).
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise PlannerError.of("F01", f"cannot read {path}: {error}.") from None
    named = _named(_held(plan))
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {"operator", "seconds"} <= rows[0].keys():
        what = f"{path} has no columns 'operator' and 'seconds'."
        raise PlannerError.of("F02", what, "Write it like operator,seconds and below mlp.up,1.25")
    found = {}
    for line, row in enumerate(rows, start=2):
        name, seconds = (row["operator"] or "").strip(), _seconds(row["seconds"])
        if name not in named:
            close = listed(nearest(name, named))
            raise PlannerError.of(
                "F02",
                f"{path}:{line}: the plan's busiest stage has no operator '{name}'.",
                f"Nearest: {close}.",
            )
        if seconds is None:
            raise PlannerError.of(
                "F02", f"{path}:{line}: '{row['seconds']}' is no time in seconds."
            )
        found[next(iter(named[name]))] = seconds
    return found


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value < math.inf else None


Held = dict[str, tuple[BlockPlan, OperatorPlan, float]]


def _held(plan: Plan) -> Held:
    """Operators of the busiest stage by id, with their FLOPs in all its layers."""
    stage = busiest_stage(plan)
    return {
        f"{block.name}.{op.name}": (block, op, count * op.flops)
        for block in plan.blocks
        if (count := layers_held(plan, stage, block))
        for op in block.operators
    }


def _named(held: Held) -> dict[str, Shares]:
    """Operators by everything that they may be called: a name that several kinds of layers have means all of them."""
    found: dict[str, Shares] = defaultdict(dict)
    for name, (_, op, work) in held.items():
        found[name] = {name: work or 1.0}
        found[op.name][name] = work or 1.0
    return dict(found)


def _by_sizes(held: Held, seen: AbstractSet[Sizes]) -> dict[Sizes, Shares]:
    """Operators by the sizes of the products that compute them.

    Args:
        held: the operators.
        seen: sizes of all products of the run, which tell what it joins: operators that read the same tensor, and
            both halves of a pair.
    """
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, (block, op, _) in held.items():
        if op.kind == "matmul" and _matrix(block, op) is not None:
            groups[block.name, next(iter(op.inputs))].append(name)
    found: dict[Sizes, Shares] = defaultdict(dict)
    for names in groups.values():
        each = [_sizes(*held[name][:2]) for name in names]
        joint = _sorted(*each[0][:2], sum(outer for *_, outer in each))
        for name, (tokens, inner, outer) in zip(names, each, strict=True):
            _, op, work = held[name]
            half = outer / next((op.shape[dim] for dim in PAIRED if dim in op.shape), 1.0)
            ways = (joint, _sorted(tokens, inner, outer), _sorted(tokens, inner, half))
            found[next((way for way in ways if way in seen), ways[1])][name] = work
    return dict(found)


def _matrix(block: BlockPlan, op: OperatorPlan) -> tuple[str, ...] | None:
    """Dims of the weight that a product sums over; None where it takes none, or several."""
    kept = _written(block, op)
    found = [
        dims for name in op.weights if not kept.issuperset(dims := block.tensors.get(name, ()))
    ]
    return found[0] if len(found) == 1 else None


def _written(block: BlockPlan, op: OperatorPlan) -> set[str]:
    return {dim for name in op.outputs for dim in block.tensors.get(name, ())}


def _sizes(block: BlockPlan, op: OperatorPlan) -> tuple[float, float, float]:
    """Rows of a product on one chip, and what its weight has on the side of the input and of the output."""
    weight = _matrix(block, op) or ()
    written = _written(block, op)
    tokens = math.prod(size for dim, size in op.shape.items() if dim not in weight)
    inner = math.prod(op.shape[dim] for dim in weight if dim not in written)
    outer = math.prod(op.shape[dim] for dim in weight if dim in written)
    return tokens, inner, outer


def _sorted(*sizes: float) -> Sizes:
    """Sizes in an order that backward products share."""
    return tuple(sorted(round(size) for size in sizes))


def _launched(trace: Trace) -> dict[Json, Sizes]:
    """Sizes of the products that the host launched, by the id that kernels give back."""
    found: dict[Json, Sizes] = {}
    for event in trace.events:
        shapes = _args(event).get("Input Dims")
        if event.get("name") in PRODUCTS and isinstance(shapes, list):
            two = [shape for shape in shapes if isinstance(shape, list) and len(shape) == 2][-2:]
            if len(two) == 2:
                found[_external(event)] = _sorted(two[0][0], two[0][1], two[1][1])
    return found


def _external(event: Mapping[str, Json]) -> Json:
    return _args(event).get("External id")


def _args(event: Mapping[str, Json]) -> Mapping[str, Json]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


Spans = dict[Json, list[tuple[float, float, Shares]]]


def _annotated(trace: Trace, named: Mapping[str, Shares]) -> Spans:
    """Annotations on the accelerator that are called like operators, by their stream, as they begin."""
    found: Spans = defaultdict(list)
    for event in trace.events:
        shares = named.get(str(event.get("name")))
        if event.get("cat") == "gpu_user_annotation" and shares and "dur" in event:
            start = float(event["ts"])
            found[event.get("tid")].append((start, start + float(event["dur"]), shares))
    return {stream: sorted(spans, key=lambda span: span[0]) for stream, spans in found.items()}


def _inside(spans: Spans, event: Mapping[str, Json]) -> Shares:
    """The operator in whose annotation a kernel begins."""
    mine = spans.get(event.get("tid"), [])
    place = bisect_right(mine, float(event["ts"]), key=lambda span: span[0]) - 1
    return mine[place][2] if place >= 0 and float(event["ts"]) < mine[place][1] else {}
