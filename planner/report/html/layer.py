"""A layer as a column of operators: what each axis splits, and the collectives that the layouts insert on the edges."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from markupsafe import Markup

from planner.plan.schema import BlockPlan, Collective, OperatorPlan, Plan
from planner.report.html.svg import drawing, element, text, width_of
from planner.units import show_bytes, show_seconds

WIDTH, NAME, DIMS, TIME = 1000.0, 112.0, 296.0, 846.0
ROW, EDGE = 30.0, 22.0
LANE = 11.0
"""Between two edges that run beside one another."""
BAR = 90.0


def representative(plan: Plan) -> BlockPlan:
    """The kind of layer that the model has most of."""
    layers = [block for block in plan.blocks if block.layers not in ("embedding", "head", "mtp")]
    return max(layers or plan.blocks, key=lambda block: block.count)


def draw(block: BlockPlan, axes: Collection[str]) -> Markup:
    """The drawing: the stream from top to bottom, forward collectives pointing down, backward ones up.

    Args:
        block: the layer.
        axes: of more than one rank; what the others split stays whole.
    """
    tops, y, parts = [], 6.0, list[Markup]()
    longest = max(op.forward + op.backward for op in block.operators) or 1.0
    for op in block.operators:
        moves = [c for c in op.collectives if c.seconds > 0]
        for line in _lines(moves):
            parts += _collectives(line, y)
            y += EDGE
        tops.append(y)
        parts += _operator(op, axes, y, longest)
        y += ROW
    edges = _edges(block, tops)
    return drawing(
        "layer-drawing", WIDTH, y + 8, f"Operators and collectives of {block.name}", *edges, *parts
    )


def _operator(op: OperatorPlan, used: Collection[str], y: float, longest: float) -> list[Markup]:
    middle = y + ROW / 2 - 2
    found = [
        element(
            "rect", x=NAME - 8, y=y, width=WIDTH - NAME + 8, height=ROW - 4, rx=4, class_="box"
        ),
        text(NAME, middle + 4, op.name, "name"),
    ]
    by_dim: dict[str, list[str]] = {}
    for axis, dim in op.split.items():
        if axis in used:
            by_dim.setdefault(dim, []).append(axis)
    x = DIMS
    for dim, size in op.shape.items():
        axes = by_dim.get(dim, [])
        words = f"{dim} {size:,g}" + (" / " + "·".join(axes) if axes else "")
        width = width_of(words, 11.4) + 14
        if x + width > TIME - 12:
            found.append(text(x, middle + 4, "…", "dim"))
            break
        kind = f"chip {axes[0]}" if axes else "chip whole"
        found.append(
            element("rect", x=x, y=middle - 9, width=width, height=18.0, rx=9, class_=kind)
        )
        found.append(text(x + 7, middle + 4, words, "dim"))
        x += width + 5
    seconds = op.forward + op.backward
    found.append(
        element("rect", x=TIME, y=middle - 4, width=max(1.0, (BAR - 30) * seconds / longest), height=8.0,
                rx=1, class_=f"bar {op.kind}")
    )  # fmt: skip
    found.append(text(WIDTH - 6, middle + 4, show_seconds(seconds), "value", "end"))
    return found


def _lines(moves: Sequence[Collective]) -> list[list[Collective]]:
    """Collectives of one tensor on a line: forwards first, then backwards."""
    by_tensor: dict[tuple[str, str], list[Collective]] = {}
    for move in sorted(moves, key=lambda c: c.phase != "forward"):
        by_tensor.setdefault((move.tensor, move.axis), []).append(move)
    return list(by_tensor.values())


def _collectives(line: Sequence[Collective], y: float) -> list[Markup]:
    x, found = NAME, list[Markup]()
    first = line[0]
    found.append(
        text(x, y + 14, f"{first.tensor} · {first.axis} · {show_bytes(first.bytes)}", "tensor")
    )
    x = DIMS
    for move in line:
        arrow = "↓" if move.phase == "forward" else "↑"
        words = f"{arrow} {move.kind} {show_seconds(move.seconds)}"
        if move.exposed < move.seconds:
            words += f", {show_seconds(move.exposed)} exposed" if move.exposed else ", hidden"
        width = width_of(words, 11.4) + 18
        kind = f"pill {move.axis}" + ("" if move.exposed else " quiet")
        found.append(element("rect", x=x, y=y + 1, width=width, height=17.0, rx=8.5, class_=kind))
        found.append(text(x + 8, y + 14, words, "pill-words"))
        x += width + 6
    return found


def _edges(block: BlockPlan, tops: Sequence[float]) -> list[Markup]:
    """Who reads what whom wrote: neighbours by a short line, others by an arc in a lane of its own."""
    writer = {name: i for i, op in enumerate(block.operators) for name in op.outputs}
    spans = sorted(
        {(writer[name], i) for i, op in enumerate(block.operators) for name in op.inputs if writer.get(name, i) < i},
        key=lambda span: (span[1] - span[0], span),
    )  # fmt: skip
    outside = [i for i, op in enumerate(block.operators) if any(n not in writer for n in op.inputs)]
    lanes: list[list[tuple[int, int]]] = []
    found = []
    for a, b in spans:
        lane = next(
            (k for k, used in enumerate(lanes) if all(b <= c or d <= a for c, d in used)), None
        )
        if lane is None:
            lanes.append([])
            lane = len(lanes) - 1
        lanes[lane].append((a, b))
        found.append(_arc(NAME - 20 - LANE * lane, tops[a] + ROW - 10, tops[b] + 6))
    if outside:
        lane_x = NAME - 20 - LANE * len(lanes)
        found += [
            element(
                "path", d=f"M{lane_x:.1f} 2V{tops[i] + 6:.1f}H{NAME - 9:.1f}", class_="edge stream"
            )
            for i in outside
        ]
    return found


def _arc(x: float, y1: float, y2: float) -> Markup:
    """From the right to the lane, down, and back, with round corners."""
    end, r = NAME - 9, 4
    out = f"M{end:.1f} {y1:.1f}H{x + r:.1f}Q{x:.1f} {y1:.1f} {x:.1f} {y1 + r:.1f}"
    back = f"V{y2 - r:.1f}Q{x:.1f} {y2:.1f} {x + r:.1f} {y2:.1f}H{end:.1f}"
    return element("path", d=out + back, class_="edge")
