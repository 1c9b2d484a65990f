"""Time and money against numbers of chips, or against the length that was sought: curves on common scales."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from planner.report.html.svg import drawing, element, text, ticks, width_of

WIDTH, HEIGHT, GAP = 1000.0, 270.0, 90.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 16.0, 30.0, 44.0
ZEROS = re.compile(r"\.0+(?!\d)|(?<=\.[1-9])0+(?!\d)|(?<=\.0[1-9])0+(?!\d)")
"""Digits that say nothing in a round number."""
COLORS = ("tp", "dp", "cp", "pp", "ep")


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: of a cluster, for one."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    chosen: int | None = None
    """Place of the point that is the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves over one quantity."""

    title: str
    curves: tuple[Curve, ...]
    show: Callable[[float], str]
    limit: float | None = None
    """What was to be met."""


def draw(panels: Sequence[Panel], across: str) -> Markup:
    """Panels beside one another, upwards from 0; across, the numbers that were asked stand at equal distances.

    Args:
        panels: one or two.
        across: what is counted there.
    """
    room = (WIDTH - GAP * (len(panels) - 1)) / len(panels)
    parts = [
        part
        for place, panel in enumerate(panels)
        for part in _Frame(panel, place * (room + GAP), room).parts(across)
    ]
    titles = " and ".join(panel.title for panel in panels)
    return drawing("curves-drawing", WIDTH, HEIGHT, f"{titles} against {across}", *parts)


class _Frame:
    """Scales of a panel and what stands in it."""

    def __init__(self, panel: Panel, left: float, room: float) -> None:
        self.panel = panel
        self.left, self.right = left + LEFT, left + room - RIGHT
        self.xs = sorted({x for curve in panel.curves for x in curve.x})
        heights = [y for curve in panel.curves for y in curve.y]
        self.most = 1.06 * max(*heights, panel.limit or 0.0)

    def x(self, value: float) -> float:
        share = self.xs.index(value) / (len(self.xs) - 1) if len(self.xs) > 1 else 0.5
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        return TOP + (1 - value / self.most) * (HEIGHT - TOP - BOTTOM)

    def parts(self, across: str) -> list[Markup]:
        middle = (self.left + self.right) / 2
        lines = [self._curve(i, curve) for i, curve in enumerate(self.panel.curves)]
        return [
            text(self.left - LEFT, 14, self.panel.title, "name"),
            text(middle, HEIGHT - 6, across, "axis title", "middle"),
            *self._grid(),
            *self._limit(),
            *(part for line in lines for part in line),
        ]

    def _grid(self) -> list[Markup]:
        found: list[Markup] = []
        for tick in ticks(self.most, 4):
            y = self.y(tick)
            found.append(
                element("path", d=f"M{self.left:.1f} {y:.1f}H{self.right:.1f}", class_="grid")
            )
            words = self.panel.show(tick)
            words = words.removesuffix(".00") if "$" in words else ZEROS.sub("", words)
            found.append(text(self.left - 8, y + 4, words, "axis", "end"))
        free = -math.inf
        for x in self.xs:
            words = f"{x:,.0f}"
            half = width_of(words, 11.5) / 2
            if self.x(x) - half > free + 6:
                found.append(text(self.x(x), HEIGHT - BOTTOM + 16, words, "axis", "middle"))
                free = self.x(x) + half
        return found

    def _limit(self) -> list[Markup]:
        limit = self.panel.limit
        if limit is None:
            return []
        y = self.y(limit)
        return [
            element("path", d=f"M{self.left:.1f} {y:.1f}H{self.right:.1f}", class_="limit"),
            text(self.right, y - 5, f"at most {self.panel.show(limit)}", "limit-label", "end"),
        ]

    def _curve(self, index: int, curve: Curve) -> list[Markup]:
        color = COLORS[index % len(COLORS)]
        places = [(self.x(x), self.y(y)) for x, y in zip(curve.x, curve.y, strict=True)]
        line = element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
                       class_=f"curve {color}")  # fmt: skip
        dots = [
            element("circle", element("title", f"{curve.name}, {value:,.0f}: {self.panel.show(height)}"),
                    cx=x, cy=y, r=5.0 if place == curve.chosen else 3.2,
                    class_="best winner" if place == curve.chosen else f"dot {color}")
            for place, ((x, y), value, height) in enumerate(zip(places, curve.x, curve.y, strict=True))
        ]  # fmt: skip
        return [line, *dots]
