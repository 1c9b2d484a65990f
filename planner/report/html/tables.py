"""Tables of the report: headings, and cells with the number by which a column is sorted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.plan.basis import basis_of, source_of
from planner.plan.figures import Figures, Traffic
from planner.plan.schema import BlockPlan, OperatorPlan, Plan
from planner.report.numbers import percent
from planner.report.tables import Column
from planner.units import GB, show_bytes, show_seconds, three_digits


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown, and what it is sorted by."""

    text: str
    value: float | str | None = None
    kind: str = ""
    share: float | None = None
    """Of a bar behind the number, in percent."""
    title: str = ""
    """Said to those who point at it."""

    @property
    def key(self) -> str:
        """The value for the script."""
        return self.text if self.value is None else str(self.value)


@dataclass(frozen=True, slots=True)
class Heading:
    """The head of a column."""

    text: str
    number: bool = True
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows of as many cells."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    chosen: int | None = None
    """The row that is the plan's own."""


LONGEST = 9
"""Column of the operators' table by which it is sorted at first."""


def used_axes(figures: Figures) -> set[str]:
    """Axes of more than one rank."""
    return {place.axis for place in figures.axes if place.size > 1}


def operators(plan: Plan, used: Collection[str]) -> Table:
    """Every operator of every kind of layer, the one that takes longest first.

    Args:
        plan: the plan.
        used: axes of more than one rank; what the others split stays whole.
    """
    headings = (
        Heading("layer", number=False),
        Heading("operator", number=False),
        Heading("×", title="layers that have it"),
        Heading("shape on one chip / axes that split it", number=False),
        Heading("forward", title="one micro-batch, one layer"),
        Heading("backward"),
        Heading(
            "of roofline", title="time at the data sheet's numbers over the predicted one, forwards"
        ),
        Heading(
            "basis",
            number=False,
            title="what the times rest on: the source of the chip's efficiency",
        ),
        Heading(
            "exposed", title="seconds of its collectives that nothing hides, forwards and backwards"
        ),
        Heading("all layers", title="forward and backward of all layers of the model"),
        Heading("saved", title="kept for the backward pass, one layer"),
    )
    longest = (
        max(b.count * (op.forward + op.backward) for b in plan.blocks for op in b.operators) or 1.0
    )
    rows = [
        _operator(plan, block, op, used, longest) for block in plan.blocks for op in block.operators
    ]
    rows.sort(key=lambda row: -float(row[LONGEST].value or 0.0))
    return Table(headings, tuple(rows))


def _operator(
    plan: Plan, block: BlockPlan, op: OperatorPlan, used: Collection[str], longest: float
) -> tuple[Cell, ...]:
    count = block.count
    together = count * (op.forward + op.backward)
    roof = op.roofline / op.forward if op.forward else 0.0
    exposed = sum(c.exposed for c in op.collectives)
    return (
        Cell(block.name, kind="soft"),
        Cell(op.name, kind="strong"),
        Cell(f"{count}", count),
        Cell(_shape(op, used), kind="soft small"),
        Cell(show_seconds(op.forward), op.forward),
        Cell(show_seconds(op.backward), op.backward),
        Cell(percent(roof, 0) if op.forward else "", roof),
        Cell(basis_of(plan, op), kind="soft", title=source_of(plan, op)),
        Cell(show_seconds(exposed) if exposed else "", exposed),
        Cell(show_seconds(together), together, share=100 * together / longest),
        Cell(
            "recomputed" if op.recomputed else show_bytes(op.saved),
            op.saved,
            "soft" if op.recomputed else "",
        ),
    )


def _shape(op: OperatorPlan, used: Collection[str]) -> str:
    """Dims of the iteration space on one chip, each with the axes that split it."""
    axes = {
        dim: "·".join(axis for axis, split in op.split.items() if split == dim and axis in used)
        for dim in op.shape
    }
    return ", ".join(
        f"{dim} {size:,g}" + (f" / {axes[dim]}" if axes[dim] else "")
        for dim, size in op.shape.items()
    )


def communication(plan: Plan, figures: Figures) -> Table:
    """Collectives by axis, kind and phase, with the levels that their axis crosses."""
    headings = (
        Heading("axis", number=False),
        Heading("collective", number=False),
        Heading("phase", number=False),
        Heading("over", number=False, title="ranks that each level joins"),
        Heading(
            "for one",
            number=False,
            title="counted for one micro-batch through all layers, or for one step",
        ),
        Heading("calls"),
        Heading("bytes", title="full buffers as nccl-tests counts them"),
        Heading("time"),
        Heading("exposed", title="gradients and states: see the parts of the step"),
        Heading("GB/s", title="bytes over time"),
    )
    over = {place.axis: _over(plan, place.members) for place in figures.axes}
    over["dp·cp"] = " and ".join(over[axis] for axis in ("dp", "cp") if axis in over)
    longest = max((t.seconds for t in figures.traffic), default=1.0)
    return Table(
        headings, tuple(_traffic(t, over.get(t.axis, ""), longest) for t in figures.traffic)
    )


def _traffic(t: Traffic, over: str, longest: float) -> tuple[Cell, ...]:
    rate = t.bytes / t.seconds / GB
    known = t.phase not in ("gradient", "weight")
    return (
        Cell(t.axis, kind=f"axis-name {t.axis.replace('·', ' ')}"),
        Cell(t.kind, kind="strong"),
        Cell(t.phase),
        Cell(over, kind="soft small"),
        Cell(t.each, kind="soft"),
        Cell(f"{t.calls:,}", t.calls),
        Cell(show_bytes(t.bytes), t.bytes),
        Cell(show_seconds(t.seconds), t.seconds, share=100 * t.seconds / longest),
        Cell(show_seconds(t.exposed) if t.exposed else "0 s" if known else "", t.exposed),
        Cell(three_digits(rate), rate),
    )


def _over(plan: Plan, members: Sequence[int]) -> str:
    names = [level.name for level in plan.cluster.levels]
    used = [
        f"{count} in the {name}" for count, name in zip(members, names, strict=False) if count > 1
    ]
    return " × ".join(used)


AXES = {
    "tp": "tensor parallel: every product is split",
    "cp": "context parallel: sequences are split",
    "dp": "data parallel: each replica takes its own sequences",
    "pp": "pipeline: layers are divided among stages",
    "ep": "experts are divided",
    "etp": "each expert is split",
    "edp": "replicas of the experts",
}
"""What each axis does, in words."""


def axes(plan: Plan, figures: Figures) -> Table:
    """The axes with their places on the network."""
    headings = (
        Heading("axis", number=False),
        Heading("ways"),
        Heading("neighbours are", number=False),
        Heading("joined by", number=False),
        Heading("what it does", number=False),
    )
    rows = tuple(
        (
            Cell(place.axis, kind=f"axis-name {place.axis}"),
            Cell(f"{place.size:,}", place.size),
            Cell("next to one another" if place.stride == 1 else f"{place.stride:,} chips apart"),
            Cell(_over(plan, place.members)),
            Cell(AXES.get(place.axis, ""), kind="soft"),
        )
        for place in figures.axes
        if place.size > 1
    )
    return Table(headings, rows)


def as_on_pages(columns: Sequence[Column], chosen: int | None) -> Table:
    """A table as every page shows it.

    Args:
        columns: of the page; those without a heading hold bars and are left out.
        chosen: the row that is the plan's own.
    """
    columns = [column for column in columns if column.heading]
    headings = tuple(Heading(column.heading, number=not column.left) for column in columns)
    rows = tuple(
        tuple(
            Cell(column.cells[i], kind=column.styles[i] if column.styles else "")
            for column in columns
        )
        for i in range(len(columns[0].cells))
    )
    return Table(headings, rows, chosen)


def levels(plan: Plan) -> Table:
    """The network, for one chip and direction."""
    headings = (
        Heading("level", number=False), Heading("chips"), Heading("wire GB/s"),
        Heading("achieved GB/s"), Heading("latency"),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(level.name, kind="strong"),
            Cell(f"{level.size:,}"),
            Cell(three_digits(level.bandwidth / GB)),
            Cell(three_digits(level.achieved / GB)),
            Cell(show_seconds(level.latency)),
        )
        for level in plan.cluster.levels
    )
    return Table(headings, rows)
