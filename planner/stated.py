"""A layout as a person states it: what it fixes, and the ways to fill in what it leaves open."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import FOLDED, Candidates, distinct, single
from planner.cost.prices import Prices, prices, with_cut
from planner.cost.step import exact
from planner.errors import Fault, PlannerError, listed
from planner.plan.layout import DIVISION, layout_of, plain
from planner.plan.left_open import LeftOpen, Usual
from planner.plan.schema import Proof
from planner.question import Understood
from planner.search.answer import mfu, proof_of
from planner.search.bounded import fits
from planner.search.breakdown import degrees_of
from planner.search.engine import preference, search
from planner.search.idle import divides_badly, fewer
from planner.search.miss import least_memory
from planner.search.operator_faults import unsatisfied
from planner.search.pins import ANY_OFFLOAD, NO_OFFLOAD, Pin, Pins, from_layout
from planner.search.semi_automatic import plan_operators
from planner.search.space import Space, build_space
from planner.search.stages.stated import stated_cut
from planner.search.stages.winners import JUDGED, with_cuts
from planner.trainers.registry import faults
from planner.trainers.trainer import Task

MOST_RANKS = 2**31
"""Products of degrees beyond this are refused before anything is computed with them."""
DEGREES = ("dp", "tp", "pp", "cp", "ep", "etp")
"""Columns that a layout never leaves open."""
OPEN = {
    "micro_batch": "mbs",
    "vpp": "vpp",
    "sharding": "zero",
    "shard_group": "shard-group",
    "recompute": "recompute",
    "sp": "sp",
    "order": "order",
}
"""Columns that it may, with the words of a layout."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Stated:
    """A layout that a person states."""

    task: Task
    """The question, in which it may leave as many chips idle as a plan may."""
    layout: Mapping[str, int | str]
    pins: Pins
    """What it says, each with ``=``; how it divides layers is no pin."""
    row: Candidates
    """All of it as a table of one row: what it leaves open has the trainer's usual value."""

    @property
    def divides(self) -> bool:
        """Whether it says how layers are divided."""
        return any(plain(key) in DIVISION for key in self.layout)

    @property
    def fixed(self) -> Pins:
        """What cannot be chosen any more: a division also counts chunks, and may say what layers recompute."""
        columns = list(DEGREES)
        if self.divides:
            mixed = any(plain(key) in DIVISION[1:] for key in self.layout)
            columns += ["vpp", *(["recompute"] if mixed else [])]
        values = [(column, int(getattr(self.row, column)[0])) for column in columns]
        return Pins((*self.pins.pins, *(Pin(f"{c}={v}", c, "=", v) for c, v in values)))

    def priced(self, task: Task, rows: Candidates) -> Prices:
        """Ways to fill it in that have as many micro-batches and recompute alike, layers divided as it says."""
        cut = stated_cut(self.layout, rows.take(slice(0, 1)), task)
        return prices(task, rows) if cut is None else with_cut(prices(task, rows), cut)


def read_layout(known: Understood, layout: Mapping[str, int | str]) -> Stated:
    """A layout read against a question.

    Raises:
        PlannerError: a key or a value that no layout has (N01, N02), or degrees beyond all chips (D01).
    """
    pins = from_layout(layout, known.task.trainer)
    unequal = [pin.text for pin in pins.pins if pin.compare != "="]
    if unequal:
        raise PlannerError.of("N02", f"a layout states values: {listed(unequal, 'and')} does not.")
    uneven = any(plain(key) in DIVISION for key in layout)
    task = replace(known.task, copy_kv=pins.copy_kv, uneven_chunks=uneven)
    row = usual_row(task, pins)
    used = int((row.dp * row.cp * row.tp * row.pp)[0])
    states = {pin.column for pin in pins.pins}
    planned = states >= {*DEGREES, *OPEN} or divides_badly(task.cluster.num_chips)
    if "dp" in states and used in fewer(task.cluster) and (planned or _none_of_all(known.task)):
        task = replace(task, chips=(used,))
    return Stated(task=task, layout=layout, pins=pins, row=row)


def _none_of_all(task: Task) -> bool:
    """Whether no layout of all chips is allowed and fits; then plans leave some idle too."""
    return search(task, Pins(), top=1).best is None


def usual_row(task: Task, pins: Pins) -> Candidates:
    """The single layout that pins describe; what they leave open takes the trainer's usual value."""
    given = {pin.column: pin.value for pin in pins.pins if pin.compare == "="}
    degrees = {axis: given.get(axis, 1) for axis in ("tp", "pp", "cp")}
    chips = task.cluster.num_chips
    degrees["dp"] = given.get("dp", max(1, chips // math.prod(degrees.values())))
    if (used := math.prod(degrees.values())) > MOST_RANKS:
        shown = " × ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1)
        raise PlannerError.of("D01", f"{shown} = {used:,}, but the cluster has {chips:,} chips.")
    return filled(task, given, degrees)


def filled(task: Task, given: Mapping[str, int], degrees: Mapping[str, int]) -> Candidates:
    """One layout of these degrees, with the pins' values and the trainer's usual ones."""
    levels = task.trainer.shardings
    usual = {
        "sharding": max(level for level in levels if level <= 1 or min(levels) > 1),
        "sp": int(True in task.trainer.sequence_parallel and degrees["tp"] > 1),
        "schedule": 2 if given.get("vpp", 1) > 1 else 1,
        "vpp": 2 if given.get("schedule") in FOLDED and degrees["pp"] > 1 else 1,
    }
    return single(**(usual | dict(given) | dict(degrees)))


def ways(stated: Stated, pins: Pins, *, usual: bool) -> Candidates:
    """Every way to fill in what a layout leaves open that the trainer can run.

    Args:
        stated: the layout.
        pins: of the question; on what the layout fixes they must agree with it.
        usual: only the trainer's usual way.

    Raises:
        PlannerError: pins that contradict it (N03), or every rule that it breaks.
    """
    fixed = {pin.column for pin in stated.fixed.pins}
    own, free = (
        Pins(tuple(p for p in pins.pins if (p.column in fixed) is wanted))
        for wanted in (True, False)
    )
    rows = stated.row.take(slice(0))
    if not usual:
        rows = build_space(stated.task, Pins((*stated.fixed.pins, *free.pins))).candidates
    wrong = [*_contradicted(own, stated.row)]
    if not len(rows):
        wrong += [*faults(stated.task, stated.row, {p.column for p in stated.pins.pins})] or [
            *_contradicted(free, stated.row)
        ]
        rows = stated.row
    if wrong:
        raise PlannerError(*wrong)
    return rows


def _contradicted(pins: Pins, row: Candidates) -> Iterator[Fault]:
    """Pins that a stated layout does not have."""
    for pin in pins.pins:
        has = getattr(row, pin.column)
        if not pin.keeps(has).all():
            what = f"pin '{pin.text}' contradicts the stated layout."
            yield Fault("N03", what, (f"Drop it, or say it in the layout: --set {pin.text}",))


def of_operators(task: Task, pins: Pins, rows: Candidates) -> tuple[Task, Candidates]:
    """Layouts with their operators as pins leave them; none where pins forbid all."""
    if not pins.semi_automatic:
        return task, rows
    planned = plan_operators(task, pins.operators, rows)
    return planned.task, planned.rows


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """A stated layout with everything filled in."""

    prices: Prices
    rows: Candidates
    """Every way that there was, itself among them."""
    proof: Proof
    """What is known of the others."""

    @property
    def chosen(self) -> dict[str, int | str]:
        """What could have been otherwise, in the words of a layout."""
        rows, words = self.rows, layout_of(degrees_of(self.prices))
        alike = rows.take(rows.sharding == self.prices.rows.sharding[0])
        open_ = OPEN | {"offload": "offload"}
        columns = {c: getattr(alike if c == "shard_group" else rows, c) for c in open_}
        several = [open_[c] for c, values in columns.items() if values.min() < values.max()]
        divided = DIVISION if "recompute" in several else ()
        return {word: words[word] for word in (*several, *divided) if word in words}


def fastest(stated: Stated, pins: Pins, time_limit: float, *, usual: bool = False) -> Filled:
    """The fastest way that fits to fill in a layout; where none fits, the one that needs least memory.

    Layers are divided, and recompute alike, as the search finds it best where recompute is open; evenly otherwise. Host
    memory is looked at only where something is open, nothing fits without, and nobody says what is kept there.

    Args:
        stated: the layout.
        pins: of the question.
        time_limit: seconds.
        usual: take the trainer's usual way instead.

    Raises:
        PlannerError: as :func:`ways`; pins on operators that no way satisfies.
    """
    found = _fastest(stated, pins, time_limit, usual=usual)
    held = pins.on(("offload",)) or stated.pins.on(("offload",))
    if found.proof.fitting or found.proof.stopped or held:
        return found
    away = _fastest(stated, replace(pins, pins=(*pins.pins, ANY_OFFLOAD)), time_limit)
    return away if away.proof.fitting else found


def _fastest(stated: Stated, pins: Pins, time_limit: float, *, usual: bool = False) -> Filled:
    """The same for one space of ways."""
    task, rows = of_operators(stated.task, pins, ways(stated, pins, usual=usual))
    if not len(rows):
        raise PlannerError(*unsatisfied(stated.task, pins.operators, stated.row))
    if len(rows) == 1 or stated.divides:
        return _best_of_all(stated, task, rows)
    deadline = time.monotonic() + time_limit
    space = Space(rows, len(rows), operators=task.operators)
    found = search(task, Pins(), time_limit=time_limit, within=space)
    if found.best is None:
        task = replace(task, operators=space.operators)
        closest = prices(task, rows.take(least_memory(task, rows)))
        step = float(exact(closest).step[0])
        return Filled(closest, rows, _proof(step, len(rows), 0, stopped=found.stopped))
    if rows.recompute.min() < rows.recompute.max():
        rest = (pin for pin in pins.pins if pin not in stated.fixed.pins)
        moved = () if stated.pins.on(("offload",)) or pins.on(("offload",)) else (NO_OFFLOAD,)
        every = replace(pins, pins=(*stated.fixed.pins, *rest, *moved))
        found = with_cuts(stated.task, every, found, deadline, JUDGED)
    return Filled(found.row(0), rows, proof_of(found))


def own_layout(
    known: Understood, layout: Mapping[str, int | str], time_limit: float
) -> Prices | None:
    """The user's own layout, filled in as the fastest; else that of the model's file, filled in as the trainer does.

    None where the file's is for other chips or breaks rules, of which ``check`` tells.
    """
    if layout:
        return fastest(read_layout(known, layout), Pins(), time_limit).prices
    stated = read_layout(known, known.file_layout)
    if any(faults(stated.task, stated.row)):
        return None
    try:
        return stated.priced(stated.task, stated.row)
    except PlannerError:
        return None


def _best_of_all(stated: Stated, task: Task, rows: Candidates) -> Filled:
    """The same where layers are divided, for which there are no bounds: all ways are priced exactly."""
    _, alike = distinct([rows.micro_batch, rows.recompute])
    found, fitting = [], 0
    for group in range(int(alike.max()) + 1):
        priced = stated.priced(task, rows.take(alike == group))
        price = exact(priced)
        fit = fits(task, price.memory, price.host)
        fitting += int(fit.sum())
        some = np.flatnonzero(fit == fit.any())
        value = price.step if fit.any() else price.memory
        best = preference(priced.rows, some, value[some])[:1]
        rank = (not fit.any(), float(value[best][0]))
        found.append((rank, float(price.step[best][0]), priced.take(best)))
    _, step, best_of = min(found, key=lambda each: each[0])
    return Filled(best_of, rows, _proof(step, len(rows), fitting))


def by_trainer(stated: Stated, pins: Pins, filled: Filled) -> LeftOpen | None:
    """What a layout left open, and what the trainer would do there by itself; None where nothing was to choose.

    Args:
        stated: the layout.
        pins: of the question.
        filled: what was chosen.
    """
    chosen = filled.chosen
    if not chosen:
        return None
    wrong = faults(stated.task, stated.row)
    task, row = of_operators(stated.task, pins, stated.row)
    if wrong or not len(row):
        why = wrong or unsatisfied(stated.task, pins.operators, stated.row)
        return LeftOpen(chosen=chosen, refused=why[0].what)
    usual = stated.priced(task, row)
    if layout_of(degrees_of(usual)) == layout_of(degrees_of(filled.prices)):
        return LeftOpen(chosen=chosen)
    price, degrees = exact(usual), degrees_of(usual)
    step = float(price.step[0])
    return LeftOpen(
        chosen=chosen,
        usual=Usual(
            degrees=degrees,
            step=step,
            mfu=mfu(task, step, degrees.chips_used, usual.chip),
            memory=float(price.memory[0]),
            fits=bool(fits(task, price.memory, price.host)[0]),
        ),
    )


def _proof(step: float, ways: int, fitting: int, *, stopped: bool = False) -> Proof:
    """Of a layout that was chosen among some, all of which were looked at unless the search was stopped."""
    return Proof(
        optimal=fitting > 0 and ways > 1,
        bound=step,
        gap=0.0,
        searched=ways,
        allowed=ways,
        fitting=fitting if ways > 1 else 1,
        refined=ways,
        stopped=stopped,
    )
