"""The plan as a tree with costs: equal layers are one line, cheap operators are one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.plan.basis import basis_of
from planner.plan.schema import OperatorPlan, Plan, Stage
from planner.plan.tree import Node, alike, by_activity, operator_compute, plan_tree
from planner.report.degrees import split_words
from planner.report.numbers import percent, seconds_parts
from planner.report.pins import pinned
from planner.report.tables import BLANK, INDENT, Column, Line, flow, labelled, styled, table
from planner.units import show_bytes, show_seconds

CHEAP = 0.02
"""Share of the step below which operators are folded into one line."""
WIDE = 80
USUAL = 2
"""Levels shown unless others are asked for: layers, and their operators."""
SHORT = {
    "all-gather": "gather",
    "reduce-scatter": "scatter",
    "all-reduce": "reduce",
    "all-to-all": "exchange",
    "send": "send",
}
"""Words for collectives in a narrow column."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A line of the tree."""

    label: str
    node: Node


def render_tree(
    plan: Plan,
    width: int,
    depth: int = USUAL,
    stage: Stage | None = None,
    measured: Mapping[str, float] | None = None,
) -> list[Line]:
    """The page of ``explain PLAN``.

    Args:
        plan: what is explained.
        width: of the page.
        depth: 1 shows layers, 2 operators with the cheap ones folded, 3 everything.
        stage: whose step is shown; the busiest where none is named.
        measured: seconds of nodes by their ids, to stand beside.
    """
    root = plan_tree(plan, stage)
    shown = list(_lines(_folded(root, plan.step, depth, measured or {}), "", ""))
    nodes = [line.node for line in shown]
    each = [node.seconds for node in nodes]
    fine = depth > USUAL  # then many are too small for the unit of the step
    times = [show_seconds(s) for s in each] if fine else seconds_parts(each, plan.step)
    columns = [
        Column(heading="", cells=[line.label for line in shown], left=True),
        Column(heading="split", cells=[_split(plan, n) for n in nodes], left=True, drop=5),
        Column(heading="messages", cells=[_messages(n.operator) for n in nodes], left=True, drop=2),
        Column(heading="predicted", cells=times),
        Column(heading="measured", cells=[_measured(node, measured or {}) for node in nodes]),
        Column(heading="share", cells=[_share(node.seconds, plan.step) for node in nodes]),
        Column(heading="roofline", cells=[_roofline(plan, node) for node in nodes], drop=6),
        Column(heading="of roofline", cells=[_reached(node.operator) for node in nodes], drop=4),
        Column(heading="hidden", cells=[_hidden(node) for node in nodes], drop=3),
        Column(heading="basis", cells=[_basis(plan, node) for node in nodes], left=True, drop=1),
    ]
    lines = table([column for column in columns if any(column.cells)], width)
    others = _others(plan, root, width)
    pins = labelled("Pinned", pinned(plan), width) if plan.pins else []
    return [*lines, *([BLANK, *others] if others else []), *([BLANK, *pins] if pins else [])]


ACTIVITIES = {
    "compute": "computing",
    "products": "  products",
    "attention": "  attention",
    "others": "  all else",
    "exposed": "sending, nothing else",
    "idle": "waiting",
    "hidden": "sending while computing",
}


def render_measured(
    plan: Plan,
    step: float | None,
    memory: float | None,
    parts: Mapping[str, float] | None = None,
    operators: Mapping[str, float] | None = None,
) -> list[Line]:
    """A measured run beside the prediction.

    Args:
        plan: the prediction.
        step: seconds; None where it was not measured.
        memory: bytes on the fullest chip.
        parts: seconds by activity, where a profiler looked.
        operators: seconds of a step by the ids of operators, under an empty one those of products that none has.
    """
    times = _measured_operators(plan, operators) if operators else []
    ours = by_activity(plan)
    rows: list[tuple[str, Callable[[float], str], float, float | None]] = [
        ("step", show_seconds, plan.step, step),
        *(
            (f"  {words}", show_seconds, ours[name], parts[name])
            for name, words in ACTIVITIES.items()
            if parts
        ),
        ("fullest chip", show_bytes, plan.memory, memory),
    ]
    found = [(name, show, mine, theirs) for name, show, mine, theirs in rows if theirs is not None]
    if not found and times:
        return times
    if not found:
        return [BLANK, *styled(["  The run measured neither its step nor its memory."], "caution")]
    columns = [
        Column(heading="", cells=[name for name, *_ in found], left=True),
        Column(heading="predicted", cells=[show(mine) for _, show, mine, _ in found]),
        Column(heading="measured", cells=[show(theirs) for _, show, _, theirs in found]),
        Column(
            heading="error",
            cells=[_error(mine, theirs) for _, _, mine, theirs in found],
        ),
    ]
    return [BLANK, *table(columns, WIDE), *times]


def _measured_operators(plan: Plan, times: Mapping[str, float]) -> list[Line]:
    """Operators whose kernels were measured, without the messages that the tree counts among their seconds."""
    nodes = [n for n in plan_tree(plan).walk() if n.operator is not None and n.id in times]
    pairs = [((n.children or (n,))[0].seconds, times[n.id]) for n in nodes]
    rows = [(node.id, show_seconds(mine), _roofline(plan, node), show_seconds(theirs), _error(mine, theirs))
            for node, (mine, theirs) in zip(nodes, pairs, strict=True)]  # fmt: skip
    if len(rows) > 1:
        mine, theirs = (sum(each) for each in zip(*pairs, strict=True))
        rows.append(
            ("together", show_seconds(mine), "", show_seconds(theirs), _error(mine, theirs))
        )
    if times.get(""):
        rows.append(("products of no operator", "", "", show_seconds(times[""]), ""))
    titles = ("Computing, a step", "predicted", "roofline", "measured", "error")
    columns = [
        Column(heading=title, cells=cells, left=not index)
        for index, (title, cells) in enumerate(zip(titles, zip(*rows, strict=True), strict=True))
    ]
    return [BLANK, *table(columns, WIDE)]


def _error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %".replace("-", "−") if measured else ""


def _folded(node: Node, step: float, depth: int, measured: Mapping[str, float]) -> Node:
    """The tree down to a depth; unless all of it is wanted, what matters little is folded into one line.

    What was measured stays to be seen.
    """
    everything = depth > USUAL
    known = any(child.id in measured for child in node.children)
    small = node.where and node.seconds < CHEAP * step and not everything and not known
    if depth == 0 or small or not node.children:
        return replace(node, children=())
    children = [child for child in node.children if child.seconds or child.hidden]
    small_ones = [c for c in children if c.seconds < CHEAP * step and c.id not in measured]
    cheap = small_ones if node.where else []
    if len(cheap) > 1 and not everything:
        seconds, hidden = (sum(getattr(c, part) for c in cheap) for part in ("seconds", "hidden"))
        rest = Node(id="", label=f"{len(cheap)} cheaper operators", seconds=seconds, hidden=hidden)
        children = [*(child for child in children if child not in cheap), rest]
    below = USUAL + 1 if everything else depth - 1
    return replace(
        node, children=tuple(_folded(child, step, below, measured) for child in children)
    )


def _lines(node: Node, first: str, rest: str) -> Iterator[_Shown]:
    label = f"{node.count} × {node.label}" if node.count > 1 else node.label
    yield _Shown(first + label, node)
    for index, child in enumerate(node.children):
        last = index == len(node.children) - 1
        yield from _lines(
            child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
        )


def _split(plan: Plan, node: Node) -> str:
    return "" if node.operator is None else split_words(plan.degrees, node.operator)


def _messages(op: OperatorPlan | None) -> str:
    """Collectives of the forward pass, each tensor once."""
    forward = (
        [] if op is None else [c for c in op.collectives if c.phase == "forward" and c.seconds]
    )
    return ", ".join(dict.fromkeys(f"{SHORT[c.kind]} {c.tensor}" for c in forward))


def _measured(node: Node, measured: Mapping[str, float]) -> str:
    return show_seconds(measured[node.id]) if node.has_time and node.id in measured else ""


def _basis(plan: Plan, node: Node) -> str:
    return "" if node.operator is None else basis_of(plan, node.operator)


def _share(seconds: float, step: float) -> str:
    share = seconds / step if step else 0.0
    return "<1 %" if 0 < share < 0.005 else percent(share, 0)


def _roofline(plan: Plan, node: Node) -> str:
    """Seconds of the step at the data sheet's rates, as far below the predicted ones backwards as forwards."""
    op = node.operator
    if op is None or not op.forward:
        return ""
    exposed = sum(c.exposed for c in op.collectives)
    compute = operator_compute(plan, op)
    return show_seconds(node.seconds * compute / (compute + exposed) * op.roofline / op.forward)


def _reached(op: OperatorPlan | None) -> str:
    return percent(op.roofline / op.forward, 0) if op is not None and op.forward else ""


def _hidden(node: Node) -> str:
    return f"+{show_seconds(node.hidden)}" if node.hidden > 0 else ""


def _others(plan: Plan, root: Node, width: int) -> list[Line]:
    """The other stages in a sentence for each kind."""
    m = plan.degrees.num_micro_batches
    pieces = []
    for held, stages in alike(plan).items():
        rest = [stage for stage in stages if not root.label.endswith(f"stage {stage.index}")]
        if rest:
            layers = " + ".join(f"{count} × {name}" if count > 1 else name for name, count in held)
            busy = m * max(stage.forward + stage.backward for stage in rest)
            pieces.append(f"{_stages(rest)}: {layers} ({show_seconds(busy)} of work)")
    return styled(flow(pieces, "; ", width, "  ", INDENT), "dim") if pieces else []


def _stages(stages: Sequence[Stage]) -> str:
    numbers = [stage.index for stage in stages]
    if len(numbers) == 1:
        return f"stage {numbers[0]}"
    return (
        f"stages {numbers[0]}–{numbers[-1]}"
        if numbers[-1] - numbers[0] == len(numbers) - 1
        else ("stages " + ", ".join(map(str, numbers)))
    )
