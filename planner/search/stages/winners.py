"""The best layouts of a search with their best stages.

The search compares layouts with even stages, whose layers all recompute alike. Here the fastest of them are divided as
their trainer can, and layouts join them that fit only when some of their layers recompute.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import RECOMPUTE, Candidates
from planner.cost.prices import Prices
from planner.search.engine import SAME, Outcome
from planner.search.pins import Pins
from planner.search.stages.options import Mixing
from planner.search.stages.refine import Refined, refine
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import IntArray

JOINING = 4
"""Layouts that join because some of their layers may recompute: those of the least bounds."""
WORTH = 1e-4
"""Share of the step that another cut must gain over the even one, which is simpler."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A layout among the winners."""

    index: int
    """Its row of the space."""
    step: float
    memory: float
    cut: Prices | None
    gap: float


def best_cuts(outcome: Outcome, pins: Pins, deadline: float) -> Outcome:
    """The same outcome with the best stages of its layouts, in the order of their steps.

    Args:
        outcome: of a search.
        pins: its pins; a pinned recompute holds for all layers.
        deadline: monotonic seconds after which what is left keeps its even stages.
    """
    if outcome.best is None:
        return outcome
    task, top = outcome.best.task, len(outcome.step)
    fixed = pins.fixed("recompute") is not None
    mixing: Mixing = "alike" if fixed else task.trainer.mixes_recompute
    entries = list(_entries(outcome, mixing, deadline))
    if mixing != "alike":
        worst = max(entry.step for entry in entries)
        entries += _joining(outcome, mixing, worst, deadline)
    entries.sort(key=lambda entry: entry.step)
    chosen = _distinct(entries, outcome.space.candidates)[:top]
    index = np.array([entry.index for entry in chosen])
    step = np.array([entry.step for entry in chosen])
    return replace(
        outcome,
        best=outcome.bounded.priced(task, outcome.space.candidates, index),
        index=index,
        step=step,
        memory=np.array([entry.memory for entry in chosen]),
        bound=min(outcome.bound, float(step[0])),
        cuts=tuple(entry.cut for entry in chosen),
        cut_gap=chosen[0].gap,
    )


def _entries(outcome: Outcome, mixing: Mixing, deadline: float) -> Iterator[_Entry]:
    """The layouts of the outcome, each with the better of the even and its best cut."""
    assert outcome.best is not None
    selective = RECOMPUTE.index("selective")
    for row, index in enumerate(outcome.index.tolist()):
        step, memory = float(outcome.step[row]), float(outcome.memory[row])
        even = _Entry(index, step, memory, None, 0.0)
        how: Mixing = mixing
        if mixing == "count" and int(outcome.best.rows.recompute[row]) == selective:
            how = "alike"
        found = _refined(outcome, index, how, deadline)
        if found is not None and found.step < step * (1.0 - WORTH):
            yield _Entry(index, found.step, found.memory, found.prices, found.gap)
        else:
            yield even if found is None else replace(even, gap=found.gap)


def _joining(outcome: Outcome, mixing: Mixing, worst: float, deadline: float) -> Iterator[_Entry]:
    """Layouts that do not fit without recompute, nor win with it in all layers, but may with it in some.

    Only those whose bound is below the worst of the others.
    """
    candidates, bounded = outcome.space.candidates, outcome.bounded
    known = set(outcome.index.tolist())
    full = np.flatnonzero((candidates.recompute == RECOMPUTE.index("full")) & bounded.fits)
    pairs = _without(candidates, full)
    assert outcome.best is not None
    bounds = bounded.steps(outcome.best.task, candidates, pairs)
    pairs, bounds = pairs[bounds < worst], bounds[bounds < worst]
    for index in pairs[np.argsort(bounds, kind="stable")][:JOINING].tolist():
        if index not in known:
            found = _refined(outcome, index, mixing, deadline, worst)
            if found is not None:
                yield _Entry(index, found.step, found.memory, found.prices, found.gap)


def _without(candidates: Candidates, full: IntArray) -> IntArray:
    """The rows that differ from these only in that nothing is recomputed, where there are such.

    Recompute is the last column of a space, so that they stand right before.
    """
    none = full - (len(RECOMPUTE) - 1)
    full, none = full[none >= 0], none[none >= 0]
    before, after = candidates.take(none), candidates.take(full)
    same = before.recompute == RECOMPUTE.index("none")
    for name in (*SAME, "sharding", "shard_group", "sp", "order", "schedule"):
        if name != "recompute":
            same &= getattr(before, name) == getattr(after, name)
    return np.asarray(none[same])


def _refined(
    outcome: Outcome, index: int, mixing: Mixing, deadline: float, reached: float = np.inf
) -> Refined | None:
    if time.monotonic() > deadline:
        return None
    assert outcome.best is not None
    task: Task = outcome.best.task
    row = outcome.bounded.priced(task, outcome.space.candidates, np.array([index]))
    return refine(row, mixing, room(task), reached)


def _distinct(entries: list[_Entry], candidates: Candidates) -> list[_Entry]:
    """The first of every layout."""
    kept: dict[tuple[object, ...], _Entry] = {}
    for entry in entries:
        layout = tuple(
            int(getattr(candidates, name)[entry.index]) for name in SAME if name != "recompute"
        )
        mode = int(candidates.recompute[entry.index])
        if entry.cut is not None and entry.cut.cut is not None:
            cut = entry.cut.cut
            mode = len(RECOMPUTE) if cut.mixed else int(cut.modes[0])
        kept.setdefault((*layout, mode), entry)
    return list(kept.values())
