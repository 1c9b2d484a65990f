"""The best layouts of a search with their best stages.

The search compares layouts with even stages, whose layers all recompute alike. Here the fastest of them are divided as
their trainer can, and layouts join them that may be faster with other stages, or when some of their layers recompute.
What is left bounds every plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from planner.candidates import RECOMPUTE, Candidates
from planner.cost.cut import FULL, NONE, SELECTIVE
from planner.cost.orders import Schedule
from planner.cost.prices import Prices
from planner.search.bounded import slices
from planner.search.engine import SAME, Outcome, Progress, search
from planner.search.pins import Pins
from planner.search.stages.options import Mixing
from planner.search.stages.refine import Refined, refine
from planner.search.stages.rivals import OWN, least_steps, unlevelled, without_recompute
from planner.search.unequal import widened, without_unequal
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import IntArray

DIVIDED = 16
"""Layouts that are divided at most, of one chunk a stage and of several: those of the least bounds of either."""
PASSES = 1 << 16
"""Forward passes of one chunk in all schedules that are simulated for it; a layout that would exceed them keeps its
even stages. Deep models have many chunks and micro-batches, and whoever asks should not wait for them."""
JUDGED = 5
"""The fastest layouts that decide which others are divided, however many are shown: an answer of one row is the
first of five."""
WORTH = 1e-4
"""Share of the step that another cut must gain over the even one, which is simpler."""


Layout: TypeAlias = tuple[int, ...]
"""Columns of a layout, as in ``OWN``, and what all of it recomputes where that makes it another one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A layout among the winners."""

    index: int
    """Its row of the space."""
    step: float
    memory: float
    cut: Prices | None


class _Rival(NamedTuple):
    """A layout that may be faster than the slowest winner with some stages."""

    hope: float
    """Seconds that it takes at best, as a rule."""
    bound: float
    """Seconds that no division beats."""
    place: int
    """Its row of the space."""
    alike: float
    """What it takes as a rule if all layers recompute alike; infinite where memory or the trainer forbids that."""


def searched(
    task: Task,
    pins: Pins,
    shown: int,
    deadline: float,
    progress: Callable[[Progress], None] | None = None,
    *,
    whole: bool = False,
) -> tuple[Outcome, Outcome]:
    """What a search finds with even stages, and the best so many of it with their best stages.

    Args:
        task: the question.
        pins: restrictions of its space.
        shown: how many layouts to return; as many are searched as decide which are divided.
        deadline: monotonic seconds after which the best so far is returned.
        progress: called between batches of the search.
        whole: whether the space holds all layouts of unequal chunks that fit, and not the faster ones alone.
    """
    left, rows = deadline - time.monotonic(), max(shown, JUDGED)
    even = search(task, pins, top=rows, time_limit=left, progress=progress)
    try:
        return even, with_cuts(task, pins, even, deadline, shown, whole)
    except KeyboardInterrupt:
        known = without_unequal(task, pins, even)
        return even, replace(best_cuts(known, pins, 0.0, shown), stopped=True)


def with_cuts(
    task: Task, pins: Pins, even: Outcome, deadline: float, shown: int, whole: bool = False
) -> Outcome:
    """The best so many layouts of a search and of unequal chunks, each with its best stages; see :func:`searched`."""
    wide, found = _widened(task, pins, even, max(shown, JUDGED), None, deadline, whole)
    return found.outcome(wide, pins, shown)


def best_step(task: Task, outcome: Outcome, pins: Pins, deadline: float, reached: float) -> float:
    """The step of the first of :func:`with_cuts`, or what is reached: seconds of a layout that these pins allow."""
    _, found = _widened(task, pins, outcome, 1, reached, deadline)
    return min((reached, *(entry.step for entry in found.entries)))


def _widened(
    task: Task,
    pins: Pins,
    even: Outcome,
    rows: int,
    reached: float | None,
    deadline: float,
    every: bool = False,
) -> tuple[Outcome, _Divided]:
    """An outcome with layouts of unequal chunks that may be among so many rows of the answer, all with their stages.

    What the others take once they are divided tells which may be; ``every`` one that fits is there if asked for.
    """
    found = _divided(even, pins, deadline, reached, most=DIVIDED // 2)
    if even.stopped:
        return without_unequal(task, pins, even), found
    steps = [entry.step for entry in _distinct(found.entries, even.space.candidates)]
    best = min(steps, default=np.inf) if reached is None else min((reached, *steps))
    worst = best if reached is not None else steps[rows - 1] if len(steps) >= rows else np.inf
    known = found.outcome(even, pins, rows)
    whole = widened(task, pins, known, np.inf if every else worst, best, rows, deadline)
    whole = even if whole is known else whole
    return whole, _divided(whole, pins, deadline, reached, found)


def best_cuts(outcome: Outcome, pins: Pins, deadline: float, shown: int = JUDGED) -> Outcome:
    """The same outcome with the best stages of its layouts, in the order of their steps.

    Args:
        outcome: of a search.
        pins: its pins; a pinned recompute holds for all layers.
        deadline: monotonic seconds after which what is left keeps its even stages.
        shown: how many of them to return.
    """
    return _divided(outcome, pins, deadline, None).outcome(outcome, pins, shown)


@dataclass(frozen=True, slots=True)
class _Divided:
    """Layouts of an outcome with their best stages."""

    entries: tuple[_Entry, ...]
    """The fastest first; among them those with even stages."""
    left: tuple[_Rival, ...] = ()
    """Layouts that may be faster and were not divided."""
    least: float = np.inf
    """Seconds that no division of the others beats."""
    rows: int = 0
    """Candidates that were looked at: the first of the space."""
    tried: tuple[int, ...] = (0, 0)
    """Layouts that were divided, of one chunk a stage and of several."""
    passes: int = 0
    """Forward passes of one chunk in their schedules."""
    met: frozenset[Layout] = frozenset()
    """Rows of the answer that they would be."""

    def outcome(self, whole: Outcome, pins: Pins, shown: int) -> Outcome:
        """The outcome with the best so many of them."""
        if whole.best is None:
            return whole
        task, candidates = whole.best.task, whole.space.candidates
        least = min((self.least, *(rival.bound for rival in self.left)))
        chosen = _distinct(self.entries, candidates)
        if not candidates.offload[chosen[0].index]:  # what is in host memory is told where it pays
            own = pins.on(("offload",))
            chosen = [entry for entry in chosen if own or not candidates.offload[entry.index]]
        chosen = chosen[:shown]
        index = np.array([entry.index for entry in chosen])
        step = np.array([entry.step for entry in chosen])
        return replace(
            whole,
            best=whole.bounded.priced(task, candidates, index),
            index=index,
            step=step,
            memory=np.array([entry.memory for entry in chosen]),
            bound=min(whole.bound, float(step[0])),
            cuts=tuple(entry.cut for entry in chosen),
            cut_gap=max(0.0, 1.0 - least / float(step[0])),
        )


def _divided(
    outcome: Outcome,
    pins: Pins,
    deadline: float,
    reached: float | None,
    before: _Divided | None = None,
    most: int = DIVIDED,
) -> _Divided:
    """The layouts of an outcome with their best stages.

    Args:
        outcome: of a search.
        pins: its pins.
        deadline: as in :func:`best_cuts`.
        reached: seconds that a layout must stay below to be divided; unless said, those of the fifth.
        before: what is known of its first candidates.
        most: layouts of several chunks a stage that are divided, with those before.
    """
    before = before or _Divided(())
    if outcome.best is None:
        return replace(before, rows=len(outcome.space.candidates))
    fixed = pins.fixed("recompute") is not None
    mixing: Mixing = "alike" if fixed else outcome.best.task.trainer.mixes_recompute
    candidates = outcome.space.candidates
    facts = zip(outcome.index.tolist(), outcome.step, outcome.memory, strict=True)
    even = [_Entry(i, float(step), float(size), None) for i, step, size in facts]
    even = [*before.entries, *(entry for entry in even if entry.index >= before.rows)]
    even.sort(key=lambda entry: entry.step)
    layouts = _layouts(candidates, np.array([entry.index for entry in even]), mixing)
    known: dict[Layout, _Entry] = {}
    for layout, entry in zip(layouts, even, strict=True):
        known.setdefault(layout, entry)
    found = _divide(outcome, mixing, known, reached, deadline, before, most)
    entries = sorted((*known.values(), *even), key=lambda entry: entry.step)
    return replace(found, entries=tuple(entries), rows=len(candidates))


def _divide(
    outcome: Outcome,
    mixing: Mixing,
    known: dict[Layout, _Entry],
    reached: float | None,
    deadline: float,
    before: _Divided,
    most: int,
) -> _Divided:
    """Divides layouts that may be among the best, of those that are left; ``known`` gets those that are better so.

    In turn the winners with even stages, and the most hopeful others, with what layers may recompute and without.
    """
    candidates, least, left = outcome.space.candidates, before.least, list[_Rival]()
    tried, spent, met = list(before.tried), before.passes, set(before.met)
    late = Schedule(int(candidates.schedule[0])).adaptive
    worst = _worst(known, reached)
    rivals = sorted((*before.left, *_rivals(outcome, mixing, worst, before.rows)))
    first = [layout for layout, entry in known.items() if entry.cut is None][:JUDGED]
    for rival, layout in _in_turn(rivals, first, met, candidates, mixing):
        bound, index = rival.bound, rival.place
        if bound >= worst:
            continue
        kind = int(candidates.vpp[index] > 1)
        ended = tried[kind] >= (DIVIDED, most)[kind] or late or time.monotonic() > deadline
        passes = 0 if ended else _passes(outcome, index)
        if ended or (any(tried) and spent + passes > PASSES):
            left.append(rival)
            continue
        tried[kind], spent = tried[kind] + 1, spent + passes
        met.add(_row(layout))
        own = min(worst, known[layout].step if layout in known else np.inf)
        how: Mixing = mixing if int(candidates.recompute[index]) == NONE else "alike"
        found = _refined(outcome, index, how, own)
        if found is not None:
            least = min(least, max(bound, found.step * (1.0 - found.gap)))
            if found.step < own * (1.0 - WORTH):
                known[layout] = _Entry(index, found.step, found.memory, found.prices)
                worst = _worst(known, reached)
    return _Divided((), tuple(left), least, 0, tuple(tried), spent, frozenset(met))


def _passes(outcome: Outcome, index: int) -> int:
    """Forward passes of a chunk in a layout's schedule."""
    assert outcome.best is not None
    row = outcome.space.candidates.take(slice(index, index + 1))
    batch = outcome.best.task.recipe.global_batch
    return int((row.pp * row.vpp * row.num_micro_batches(batch))[0])


def _worst(known: Mapping[Layout, _Entry], reached: float | None) -> float:
    """Seconds of the slowest layout that counts: of the best that is known, or the fifth where nothing is reached."""
    steps = sorted(entry.step for entry in known.values())
    return steps[:JUDGED][-1] if reached is None else min(reached, steps[0])


def _in_turn(
    rivals: list[_Rival],
    winners: Iterable[Layout],
    met: Iterable[Layout],
    candidates: Candidates,
    mixing: Mixing,
) -> list[tuple[_Rival, Layout]]:
    """Rivals with their layouts: in turn a winner, as long as there are some, and the most hopeful of either kind.

    Of those that would be one row of the answer the first comes so, and the others behind all rows.
    """
    layouts = _layouts(candidates, np.array([r.place for r in rivals], dtype=np.int64), mixing)
    place = {layout: rank for rank, layout in enumerate(winners)}
    alike = np.argsort([r.alike for r in rivals], kind="stable").argsort().tolist()
    ranks = [min(rank, alike[rank], place.get(layout, rank)) for rank, layout in enumerate(layouts)]
    order = sorted(range(len(rivals)), key=lambda rank: (ranks[rank], layouts[rank] not in place))
    first = dict.fromkeys(met, -1)
    for rank in order:
        first.setdefault(_row(layouts[rank]), rank)
    order.sort(key=lambda rank: first[_row(layouts[rank])] != rank)
    return [(rivals[rank], layouts[rank]) for rank in order]


def _row(layout: Layout) -> Layout:
    """What a layout and others have that are one row of the answer."""
    return (*layout[: len(SAME) - 1], layout[-1])


def _rivals(outcome: Outcome, mixing: Mixing, worst: float, start: int) -> list[_Rival]:
    """Layouts from a candidate of the space on that may be faster with some stages than the slowest winner."""
    assert outcome.best is not None
    task = outcome.best.task
    rows, limit = outcome.space.candidates, room(task)
    whole = outcome.bounded.fits & (rows.pp > 1) & task.trainer.uneven_stages
    found: list[_Rival] = []
    for every, modes in _divisible(outcome, mixing):
        some = every[every >= start]
        some = some[outcome.bounded.busy(task, rows, some) < worst]
        for part in slices(some):
            priced = outcome.bounded.priced(task, rows, part)
            bounds = least_steps(priced, limit, worst, modes)
            few = np.flatnonzero(bounds < worst)
            alike = bounds[few]
            if modes and len(few):
                keep = whole[part[few]]
                alike = np.full(len(few), np.inf)
                alike[keep] = least_steps(priced.take(few[keep]), limit, worst, ())
            late = unlevelled(priced.take(few))
            columns = (bounds[few] + late, bounds[few], part[few], alike + late)
            found += map(_Rival, *(column.tolist() for column in columns))
    return found


def _divisible(outcome: Outcome, mixing: Mixing) -> Iterator[tuple[IntArray, tuple[int, ...]]]:
    """Layouts that may have other stages, by what their layers may recompute instead.

    All that fit with even stages; where layers may recompute in part, those that fit when all of them do.
    """
    assert outcome.best is not None
    candidates, trainer = outcome.space.candidates, outcome.best.task.trainer
    plain = outcome.bounded.fits & (candidates.offload == 0)
    piped = plain & (candidates.pp > 1) & trainer.uneven_stages
    if mixing == "alike":
        yield np.flatnonzero(piped), ()
        return
    none = without_recompute(candidates, np.flatnonzero(plain & (candidates.recompute == FULL)))
    if mixing == "stages":
        yield none, tuple(RECOMPUTE.index(m) for m in trainer.recompute if m != "none")
        return
    yield none, (FULL,)
    yield np.flatnonzero(piped & (candidates.recompute == SELECTIVE)), ()


def _layouts(candidates: Candidates, index: IntArray, mixing: Mixing) -> list[Layout]:
    """What layouts are however their stages are: with what all of it recomputes where layers cannot differ in that."""
    rows = candidates.take(index)
    mode = rows.recompute
    own = {"alike": mode, "count": mode == SELECTIVE, "stages": np.zeros_like(mode)}[mixing]
    columns = np.stack([*(getattr(rows, name) for name in OWN), own], axis=1)
    return [tuple(row) for row in columns.tolist()]


def _refined(outcome: Outcome, index: int, mixing: Mixing, reached: float) -> Refined | None:
    assert outcome.best is not None
    task: Task = outcome.best.task
    row = outcome.bounded.priced(task, outcome.space.candidates, np.array([index]))
    return refine(row, mixing, room(task), reached)


def _distinct(entries: Sequence[_Entry], candidates: Candidates) -> list[_Entry]:
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
