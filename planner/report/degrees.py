"""A layout in words, and the columns in which layouts are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.errors import listed
from planner.plan.schema import OWN, Alternative, Degrees, OperatorPlan, Plan
from planner.report.numbers import gib, slower
from planner.report.tables import Column, Style
from planner.units import show_seconds

UNEVEN = "~"
"""Mark of layouts whose stages, or the chunks of them, hold more or fewer layers than the even way gives them."""
EQUAL = "≈"
"""Mark of alternatives that differ from the winner by less than predictions scatter."""
FEW = 3
"""Operators that have room in a sentence."""


def product(degrees: Degrees) -> str:
    """The degrees that multiply to the chips used: ``dp 8 × tp 8 × pp 4``."""
    names = ["dp", *(["cp"] if degrees.cp > 1 else []), "tp", "pp"]
    return " × ".join(f"{name} {getattr(degrees, name)}" for name in names)


def described(degrees: Degrees, again: Sequence[str] = ()) -> list[str]:
    """A layout in pieces of a sentence, what is usual left out.

    Args:
        degrees: the layout.
        again: operators that are computed again, where it is known and recompute is selective.
    """
    pieces = [product(degrees) + _parts(degrees)]
    if degrees.ep > 1:
        pieces.append(f"ep {degrees.ep}")
    if degrees.etp > 1:
        pieces.append(f"etp {degrees.etp}")
    pieces.append(f"micro-batch {degrees.micro_batch}")
    pieces.append(states(degrees))
    words = {"none": "no recompute", "mixed": "recompute layer by layer"}
    names = f" of {listed(again, 'and')}" if degrees.recompute == "selective" and again else ""
    if degrees.recompute_unit > 1:
        names = f" of {degrees.recompute_unit} layers at a time"
    pieces.append(words.get(degrees.recompute, f"{degrees.recompute} recompute") + names)
    if degrees.offload != "none":
        pieces.append(f"{IN_HOST[degrees.offload]} in host memory")
    if degrees.tp > 1 and not degrees.sequence_parallel:
        pieces.append("no sequence parallelism")
    if degrees.schedule not in ("1f1b", "interleaved") and degrees.pp > 1:
        pieces.append(f"{degrees.schedule} schedule")
    return pieces


def _parts(degrees: Degrees) -> str:
    """Virtual stages, and how many layers these or stages hold where they are not even."""
    each = f" of {layer_count(degrees.layers)}" if degrees.layers and degrees.pp > 1 else ""
    if degrees.vpp > 1:
        return f" ({degrees.vpp} virtual stages{each})"
    return f" (stages{each})" if each else ""


def layer_count(layers: Sequence[int]) -> str:
    """How many layers chunks have.

    >>> layer_count([3, 1]), layer_count([1, 1]), layer_count([4])
    ('1 to 3 layers', '1 layer', '4 layers')
    """
    least, most = min(layers), max(layers)
    several = f"{least} to {most}" if most > least else str(most)
    return f"{several} layer{'s' if most > 1 else ''}"


IN_HOST = {
    "optimizer": "optimizer states",
    "states": "weights and states",
    "activations": "activations",
    "optimizer+activations": "optimizer states and activations",
    "states+activations": "weights, states and activations",
    "optimizer-25%": "a quarter of the optimizer states",
    "optimizer-50%": "half of the optimizer states",
    "optimizer-75%": "three quarters of the optimizer states",
}
"""What a plan keeps in host memory, in words."""


def computed_again(plan: Plan) -> list[str]:
    """Operators that layers compute again, if they are few."""
    names = dict.fromkeys(
        op.name for block in plan.blocks for op in block.operators if op.recomputed
    )
    return list(names) if len(names) <= FEW else []


def states(degrees: Degrees) -> str:
    """How training states are sharded."""
    if degrees.sharding == "none":
        return "states not sharded"
    part = degrees.shard_group < degrees.dp * degrees.cp
    return f"{degrees.sharding} over {degrees.shard_group}" if part else degrees.sharding


def split_words(degrees: Degrees, op: OperatorPlan) -> str:
    """How an operator is cut: ``batch/dp heads/tp``, axes of one rank left out."""
    used = _several(degrees)
    return " ".join(f"{dim}/{axis}" for axis, dim in op.split.items() if used(axis))


def placed(degrees: Degrees, layout: Mapping[str, str]) -> str:
    """What axes of several ranks do to a tensor."""
    used = _several(degrees)
    places = (f"{axis}:{place}" for axis, place in layout.items() if used(axis))
    return " ".join(places) or "whole"


def _several(degrees: Degrees) -> Callable[[str], bool]:
    """Whether an axis has several ranks; axes of other names than the usual ones have."""
    experts = {"edp": degrees.dp * degrees.cp * degrees.tp // (degrees.ep * degrees.etp)}
    sizes = experts | {axis: getattr(degrees, axis) for axis in ("dp", "cp", "tp", "ep", "etp")}
    return lambda axis: sizes.get(axis, 2) > 1


def alternative_columns(
    rows: Sequence[Alternative], reasons: bool, *, front: bool = False
) -> list[Column]:
    """Columns of the table of alternatives; those of rarely used axes only where a row uses them.

    Args:
        rows: the first is the winner, with which the others are compared.
        reasons: whether the reasons stand in the table, or below it.
        front: whether the rows are the front of step and memory, none of which lost.
    """
    best = rows[0].step
    layouts = [row.degrees for row in rows]
    columns = [
        Column(heading="#", cells=[_marked(row, rows[0]) for row in rows], left=True),
        Column(heading="step", cells=[show_seconds(row.step) for row in rows]),
        Column(heading="slower", drop=2,
               cells=["" if row is rows[0] else slower(row.step, best) for row in rows]),
        _degree("dp", layouts),
        *(_degree(axis, layouts) for axis in ("cp",) if any(d.cp > 1 for d in layouts)),
        _degree("tp", layouts),
        Column(heading="pp×v", cells=[_stages(d) for d in layouts],
               styles=_same([_stages(d) for d in layouts])),
        *(
            _degree(axis, layouts, drop)
            for axis, drop in (("ep", 6), ("etp", 5))
            if any(getattr(d, axis) > 1 for d in layouts)
        ),
        Column(heading="mbs", cells=[str(d.micro_batch) for d in layouts], drop=1,
               styles=_same([d.micro_batch for d in layouts])),
        Column(heading="recompute", cells=[d.recompute for d in layouts], left=True, drop=4,
               styles=_same([d.recompute for d in layouts])),
    ]  # fmt: skip
    sharded = [states(d).removeprefix("states ") for d in layouts]
    if len(set(sharded)) > 1:
        columns.append(
            Column(heading="states", cells=sharded, left=True, drop=3, styles=_same(sharded))
        )
    moved = [d.offload for d in layouts]
    if any(word != "none" for word in moved):
        columns.append(
            Column(heading="in host", cells=moved, left=True, drop=5, styles=_same(moved))
        )
    over: list[Style] = ["" if row.fits else "bad" for row in rows]
    columns.append(Column(heading="GiB", cells=[gib(row.memory) for row in rows], styles=over))
    if reasons:
        columns.append(
            Column(
                heading="what it costs" if front else "why it lost",
                cells=[row.reason for row in rows],
                left=True,
            )
        )
    return columns


def _stages(degrees: Degrees) -> str:
    """Stages times virtual stages, with a mark where they are not even."""
    return f"{degrees.pp}×{degrees.vpp}" + (UNEVEN if degrees.layers else "")


def _marked(row: Alternative, winner: Alternative) -> str:
    """The rank, with a mark for the winner, for those that may be as fast, and for the user's own layout."""
    marks = ["✔"] if row is winner else [EQUAL] if row.within_noise else []
    return " ".join(
        [*([str(row.rank)] if row.rank else []), *marks, *(["yours"] if row.own else [])]
    )


def row_notes(rows: Sequence[Alternative]) -> list[str]:
    """What marks mean, and where the user's own row stands; nothing where no row has them."""
    text = f"{EQUAL} as fast as the winner within what predictions of one cluster scatter"
    found = [text] if any(row.within_noise for row in rows[1:]) else []
    if any(row.degrees.vpp > 1 or row.degrees.layers for row in rows):
        words = "pp×v: stages × virtual stages"
        uneven = next((row for row in rows if row.degrees.layers), None)
        if uneven is not None:
            other = f"'#{uneven.rank}'" if uneven.rank else OWN
            item = "degrees.layers" if uneven is rows[0] else other
            words += f"; {UNEVEN} of unequal numbers of layers (explain plan.json {item})"
        found.append(words)
    if any(not row.rank for row in rows):
        found.append("yours: not one of the best; others lie between it and the row above")
    return found


def _degree(axis: str, layouts: Sequence[Degrees], drop: int = 0) -> Column:
    values = [getattr(layout, axis) for layout in layouts]
    cells = [str(value) for value in values]
    return Column(heading=axis, cells=cells, drop=drop, styles=_same(values))


def _same(values: Sequence[object]) -> list[Style]:
    """Cells that equal the winner's step back."""
    return ["dim" if index and value == values[0] else "" for index, value in enumerate(values)]
