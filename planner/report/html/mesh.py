"""The mesh drawn on the cluster: every chip a square, nodes as groups of squares, stages as bands of nodes.

The peers of the first chip are coloured by the axis over which they talk to it; the script does the same for the chip
that is pointed at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from planner.plan.figures import AxisPlace, Figures
from planner.plan.schema import Plan
from planner.report.html.bars import chunks
from planner.report.html.svg import drawing, element, number

WIDTH, LEFT, MOST = 1000.0, 148.0, 4096
"""Chips beyond the most are not drawn."""
TALLEST = 360.0
FILLED = ("dp", "pp", "cp", "tp")
"""Axes shown as filled squares, later ones on top; ep, which shares their ranks, is an outline."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where chips stand."""

    cell: float
    node: int
    """Chips in a node."""
    columns: int
    """Chips of a node side by side."""
    band: int
    """Nodes in a band: those of one stage, or all."""
    left: float
    """Room for the label of a band."""

    @property
    def _pitch(self) -> float:
        """From one node to the next."""
        return self.columns * self.cell + self._gap

    @property
    def across(self) -> int:
        """Nodes side by side."""
        return min(self.band, max(1, int((WIDTH - self.left + self._gap) // self._pitch)))

    @property
    def abreast(self) -> int:
        """Bands side by side."""
        return max(1, int((WIDTH + 24) // (self.left + self.across * self._pitch + 24)))

    @property
    def _gap(self) -> float:
        return max(3.0, self.cell * 0.6)

    @property
    def band_height(self) -> float:
        lines = math.ceil(self.band / self.across)
        return (
            lines * (math.ceil(self.node / self.columns) * self.cell + self._gap) + self._gap * 1.2
        )

    def corner(self, band: int) -> tuple[float, float]:
        """Upper left corner of a band, its label included."""
        down, right = divmod(band, self.abreast)
        return right * (self.left + self.across * self._pitch + 24), 4 + down * self.band_height

    def place(self, chip: int) -> tuple[float, float]:
        """Upper left corner."""
        node, inside = divmod(chip, self.node)
        band, at = divmod(node, self.band)
        line, column = divmod(at, self.across)
        rows = math.ceil(self.node / self.columns)
        left, top = self.corner(band)
        x = left + self.left + column * self._pitch
        y = top + line * (rows * self.cell + self._gap)
        return x + inside % self.columns * self.cell, y + inside // self.columns * self.cell


def draw(plan: Plan, figures: Figures) -> Markup:
    """The drawing; axes stand in ``data-axes`` as ``tp:8:1 dp:4:8`` (ways, stride)."""
    chips = min(plan.degrees.chips_used, MOST)
    node = min(plan.cluster.levels[0].size, plan.degrees.chips_used)
    stage = plan.degrees.chips_used // plan.degrees.pp
    banded = plan.degrees.pp > 1 and plan.degrees.order[-1] == "pp" and stage % node == 0
    grid = _grid(chips, node, stage // node if banded else math.ceil(chips / node), banded)
    size = grid.cell - max(1.0, grid.cell * 0.15)
    squares = "".join(_square(grid, chip, size) for chip in range(chips))
    axes = [place for place in figures.axes if place.size > 1 and place.axis in (*FILLED, "ep")]
    order = sorted(axes, key=lambda place: (*FILLED, "ep").index(place.axis))
    lit = [
        element("path", d="".join(_square(grid, c, size) for c in _peers(place, 0) if c < chips),
                class_=f"peers {place.axis}", data_axis=place.axis)
        for place in order
    ]  # fmt: skip
    self_ = element("path", d=_square(grid, 0, size), class_="self")
    bands = range(math.ceil(chips / node / grid.band)) if banded else ()
    labels = [_label(plan, grid, band) for band in bands]
    height = max(grid.place(chip)[1] for chip in (node - 1, chips - 1)) + grid.cell + 6
    svg = drawing(
        "mesh-drawing", WIDTH, height, f"{chips:,} chips and the peers of one of them",
        *labels, element("path", d=squares, class_="chips"), *lit, self_,
    )  # fmt: skip
    said = " ".join(f"{place.axis}:{place.size}:{place.stride}" for place in axes)
    if plan.degrees.chips_used > chips:
        words = f"The first {chips:,} of {plan.degrees.chips_used:,} chips."
        svg += element("p", words, class_="note")
    return Markup('<div id="mesh" data-axes="{}" data-size="{}" data-cell="{}">{}</div>').format(
        said, number(size), number(grid.cell), svg
    )


def _grid(chips: int, node: int, band: int, banded: bool) -> _Grid:
    """The largest squares with which the drawing stays low."""
    columns = node if node <= 4 else math.ceil(math.sqrt(2 * node)) if node > 16 else node // 2
    for cell in (26.0, 20.0, 16.0, 13.0, 11.0, 9.0, 8.0, 7.0, 6.0, 5.0):
        grid = _Grid(cell, node, columns, band, LEFT if banded else 0.0)
        fits = columns * cell <= WIDTH - grid.left
        if fits and math.ceil(chips / node / band / grid.abreast) * grid.band_height <= TALLEST:
            break
    return grid


def _square(grid: _Grid, chip: int, size: float) -> str:
    x, y = grid.place(chip)
    s = number(size)
    return f"M{number(x)} {number(y)}h{s}v{s}h-{s}z"


def _peers(place: AxisPlace, chip: int) -> list[int]:
    first = chip - chip // place.stride % place.size * place.stride
    return [first + rank * place.stride for rank in range(place.size)]


def _label(plan: Plan, grid: _Grid, band: int) -> Markup:
    """The stage of a band and its layers, as far as there is room; all of them for those who point at it."""
    x, y = grid.corner(band)
    stage = plan.stages[band]
    title = element("title", f"layers {', '.join(filter(None, stage.layers))}")
    return element("text", f"stage {band}: {chunks(stage)}", title, x=x, y=y + 10, class_="axis")
