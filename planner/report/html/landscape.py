"""Step against memory of many layouts: grey where they fit, hollow where not, the front as a line, the best named."""

from __future__ import annotations

from markupsafe import Markup

from planner.plan.figures import Landscape
from planner.plan.schema import Plan
from planner.report.html.svg import drawing, element, text, ticks, width_of
from planner.report.numbers import gib, time_unit
from planner.units import GIB, show_seconds

WIDTH, HEIGHT = 1000.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 24.0, 16.0, 44.0
DOT = 4.5
"""Radius of the points of rows."""


class _Scale:
    """Places of steps and bytes in the drawing."""

    def __init__(self, space: Landscape) -> None:
        self.least = 0.95 * min(space.step)
        self.most = max(space.step) * 1.01
        self.tall = max(space.memory) * 1.05

    def x(self, step: float) -> float:
        share = (step - self.least) / (self.most - self.least)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, memory: float) -> float:
        return TOP + (1 - memory / self.tall) * (HEIGHT - TOP - BOTTOM)


def draw(plan: Plan, space: Landscape) -> Markup:
    """The drawing; each point says its layout when it is pointed at."""
    scale = _Scale(space)
    points = [_point(space, i, scale) for i in range(len(space.step))]
    front = " ".join(
        f"{scale.x(space.step[i]):.1f},{scale.y(space.memory[i]):.1f}" for i in space.front
    )
    return drawing(
        "landscape-drawing", WIDTH, HEIGHT, f"Step and memory of {len(space.step)} layouts",
        *_axes(scale), *_limit(plan, scale), *points,
        element("polyline", points=front, class_="front"), *_best(plan, scale),
    )  # fmt: skip


def _point(space: Landscape, i: int, scale: _Scale) -> Markup:
    degrees = " ".join(
        f"{axis} {getattr(space, axis)[i]}"
        for axis in ("dp", "cp", "tp", "pp", "ep", "vpp")
        if axis in ("dp", "tp", "pp") or getattr(space, axis)[i] > 1
    )
    words = (
        f"{show_seconds(space.step[i])}, {gib(space.memory[i])} GiB: {degrees}, "
        f"micro-batch {space.micro_batch[i]}, {space.recompute[i]} recompute"
    )
    kind = "point" if space.fits[i] else "point over"
    return element(
        "circle", element("title", words), cx=scale.x(space.step[i]), cy=scale.y(space.memory[i]),
        r=3.2, class_=kind,
    )  # fmt: skip


def _axes(scale: _Scale) -> list[Markup]:
    found = []
    size, unit = time_unit(scale.most)
    for tick in ticks(scale.most / size, 12):
        if tick * size < scale.least:
            continue
        x = scale.x(tick * size)
        found.append(element("path", d=f"M{x:.1f} {TOP}V{HEIGHT - BOTTOM}", class_="grid"))
        found.append(text(x, HEIGHT - BOTTOM + 16, f"{tick:g} {unit}", "axis", "middle"))
    for tick in ticks(scale.tall / GIB, 5):
        y = scale.y(tick * GIB)
        found.append(element("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_="grid"))
        found.append(text(LEFT - 8, y + 4, f"{tick:,g} GiB" if tick else "0", "axis", "end"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    found.append(text(middle, HEIGHT - 8, "step time", "axis title", "middle"))
    return found


def _limit(plan: Plan, scale: _Scale) -> list[Markup]:
    y = scale.y(plan.memory_limit)
    if y < TOP:
        return []
    words = f"limit {gib(plan.memory_limit)} GiB"
    return [
        element("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_="limit"),
        text(WIDTH - RIGHT, y - 6, words, "limit-label", "end"),
    ]


def _best(plan: Plan, scale: _Scale) -> list[Markup]:
    """The rows of the table of alternatives by their numbers, each beside its point where there is room."""
    rows = [r for r in plan.alternatives if r.step <= scale.most and r.memory <= scale.tall]
    places = [(scale.x(row.step), scale.y(row.memory)) for row in rows]
    taken = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in places]
    dots: list[Markup] = []
    labels: list[Markup] = []
    for row, (x, y) in zip(rows, places, strict=True):
        kind = "best winner" if row.rank == 1 else "best"
        words = " ".join([f"#{row.rank}"] * bool(row.rank) + ["yours"] * row.own)
        left, top = _beside(x, y, width_of(words, 12.0), taken)
        dots.append(element("circle", cx=x, cy=y, r=DOT, class_=kind))
        labels.append(text(left, top + 10, words, f"{kind}-label"))
    return [*reversed(dots), *labels]


def _beside(
    x: float, y: float, width: float, taken: list[tuple[float, float, float, float]]
) -> tuple[float, float]:
    """Left and upper edge of words of 12 pixels near a point, clear of what is taken; farther away until they are.

    What they take is added to ``taken``: left, upper, right and lower edges.
    """
    for far in range(1, 12):
        out = 5.0 * far + 1
        for left, top in (
            (x + out, y - 6),
            (x - out - width, y - 6),
            (x - width / 2, y - out - 12),
            (x - width / 2, y + out),
        ):
            if all(
                left > right or left + width < start or top > lower or top + 12 < upper
                for start, upper, right, lower in taken
            ):
                taken.append((left, top, left + width, top + 12))
                return left, top
    return x + 9, y - 6
