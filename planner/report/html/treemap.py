"""Operators as areas: a rectangle for each, as large as its time, squarified (Bruls, Huizing, van Wijk 2000)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from planner.plan.schema import Plan
from planner.report.html.svg import drawing, element, text, width_of
from planner.report.numbers import percent
from planner.units import show_seconds

WIDTH, HEIGHT = 1000.0, 300.0
BOLD = 1.13
"""How much wider names are than thin letters."""
SMALLEST = 0.002
"""Share of the time below which an operator has no rectangle of its own."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


def squarified(sizes: Sequence[float], box: Box) -> list[Box]:
    """Rectangles with areas in proportion to the sizes, as square as they can be; largest size first.

    >>> [(b.width, b.height) for b in squarified([2, 1, 1], Box(0, 0, 2, 2))]
    [(1.0, 2.0), (1.0, 1.0), (1.0, 1.0)]
    """
    total = sum(sizes)
    if not sizes or total <= 0:
        return []
    areas = [size * box.width * box.height / total for size in sizes]
    found: list[Box] = []
    while areas:
        side = min(box.width, box.height)
        count = 1
        while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(
            areas[:count], side
        ):
            count += 1
        row, areas = areas[:count], areas[count:]
        placed, box = _placed(row, box)
        found += placed
    return found


def _worst(row: Sequence[float], side: float) -> float:
    """The least square of a row's rectangles: length over breadth."""
    whole = sum(row)
    return max(
        max(side * side * area / whole**2, whole**2 / (side * side * area)) for area in row if area
    )


def _placed(row: Sequence[float], box: Box) -> tuple[list[Box], Box]:
    """A row along the shorter side, and the room that is left."""
    whole, found, along = sum(row), [], 0.0
    if box.width >= box.height:
        thick = whole / box.height
        for area in row:
            found.append(Box(box.x, box.y + along, thick, area / thick))
            along += area / thick
        return found, Box(box.x + thick, box.y, box.width - thick, box.height)
    thick = whole / box.width
    for area in row:
        found.append(Box(box.x + along, box.y, area / thick, thick))
        along += area / thick
    return found, Box(box.x, box.y + thick, box.width, box.height - thick)


def draw(plan: Plan) -> Markup:
    """All operators of all layers, forwards and backwards."""
    timed = [
        (block.count * (op.forward + op.backward), block, op)
        for block in plan.blocks
        for op in block.operators
    ]
    whole = sum(seconds for seconds, _, _ in timed)
    timed = sorted((t for t in timed if t[0] > SMALLEST * whole), key=lambda t: -t[0])
    boxes = squarified([t[0] for t in timed], Box(0, 0, WIDTH, HEIGHT))
    cells = []
    for (seconds, block, op), box in zip(timed, boxes, strict=True):
        share = percent(seconds / whole)
        words = f"{block.name} {op.name} ({block.count}×): {show_seconds(seconds)} a micro-batch, {share}"
        inside = [element("title", words)]
        inside.append(
            element("rect", x=box.x + 1, y=box.y + 1, width=max(box.width - 2, 0.1),
                    height=max(box.height - 2, 0.1), rx=2, class_=f"cell {op.kind}")
        )  # fmt: skip
        names = (op.name, op.name.rpartition(".")[2])
        name = next((name for name in names if BOLD * width_of(name) + 14 < box.width), "")
        if name and box.height > 20:
            inside.append(text(box.x + 8, box.y + 18, name, "cell-name"))
            if box.height > 38 and width_of(share) + 12 < box.width:
                inside.append(text(box.x + 8, box.y + 33, share, "cell-share"))
        cells.append(element("g", *inside))
    return drawing("treemap-drawing", WIDTH, HEIGHT, "Operators by time", *cells)
