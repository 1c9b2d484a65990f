"""The front of step and memory: the layouts that no other is faster than with less memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.cost.step import exact
from planner.search.bounded import bound_all, fits
from planner.search.engine import BATCH, Outcome, preference
from planner.search.pins import Pins
from planner.search.space import with_offload
from planner.trainers.trainer import Task
from planner.units import Array, BoolArray, IntArray

WORTH = 0.01
"""Share of memory that a layout which is not on the front saves at most against a faster one that is."""


@dataclass(frozen=True, slots=True, eq=False)
class _Front:
    """Layouts that were priced: ever slower, with ever less memory, once thinned."""

    step: Array
    """Seconds; ``(n,)``."""
    memory: Array
    """Bytes on the fullest chip, the median; ``(n,)``."""
    index: IntArray
    """Their places in the space; ``(n,)``."""

    def beats(self, step: Array, memory: Array) -> BoolArray:
        """Whether a layout of the front is no slower and needs hardly more memory; shapes of the arguments."""
        place = np.searchsorted(self.step, step, side="right") - 1
        enough = self.memory[np.maximum(place, 0)] * (1.0 - 0.5 * WORTH) <= memory
        return np.asarray((place >= 0) & enough)

    def joined(self, step: Array, memory: Array, index: IntArray) -> _Front:
        """With more layouts, those that are beaten left out; of equal ones the first stays."""
        columns = zip((self.step, self.memory, self.index), (step, memory, index), strict=True)
        step, memory, index = (np.concatenate(pair) for pair in columns)
        return _Front(step, memory, index).thinned(0.0)

    def thinned(self, worth: float) -> _Front:
        """Without layouts that save no more than a share of the memory of a faster one that is kept."""
        kept: list[int] = []
        least = np.inf
        for place in np.lexsort((self.memory, self.step)):
            if self.memory[place] < least * (1.0 - worth):
                kept.append(int(place))
                least = float(self.memory[place])
        return _Front(self.step[kept], self.memory[kept], self.index[kept])

    def shown(self, top: int) -> list[int]:
        """Places of so many: the first, the last, and of evenly falling memory between them the fastest."""
        levels = np.linspace(self.memory[0], self.memory[-1], max(2, top))[:top]
        return sorted({int(np.argmax(self.memory <= level * (1 + 1e-12))) for level in levels})


def with_host_memory(pins: Pins, outcome: Outcome) -> Outcome:
    """The same outcome in a space that holds every layout with something in host memory, where pins leave that open.

    The search looks at those that may be faster; on the front are those too that are slower and need less memory.
    """
    assert outcome.best is not None
    task, space = outcome.best.task, outcome.space
    kinds = [kind for kind in task.trainer.offload.kinds if kind]
    if not kinds or pins.on(("offload",)):
        return outcome
    here = np.flatnonzero(space.candidates.offload == 0)
    winner = space.candidates.take(outcome.index[:1])
    whole = with_offload(task, pins, replace(space, candidates=space.candidates.take(here)))
    task = replace(task, operators=whole.operators)
    rows = whole.candidates
    same = [getattr(rows, each.name) == getattr(winner, each.name) for each in fields(winner)]
    first = np.flatnonzero(np.logical_and.reduce(same))[:1]
    bounded = bound_all(task, rows)
    return replace(
        outcome,
        space=whole,
        bounded=bounded,
        best=bounded.priced(task, rows, first),
        index=first,
        step=outcome.step[:1],
        memory=outcome.memory[:1],
        cuts=outcome.cuts[:1],
    )


def front(task: Task, outcome: Outcome, top: int, deadline: float) -> Outcome:
    """The same outcome with rows of the front: the winner, then ever slower ones that need less memory.

    None is faster than the winner. A layout is priced unless one that was priced is no slower than its bound and needs
    hardly more than its least memory; then rows that save hardly anything are left out. Each accounts for half of
    ``WORTH``. Rows after the winner have even stages.

    Args:
        task: the question.
        outcome: of its search, winners divided.
        top: how many rows to return.
        deadline: monotonic seconds after which the front so far is returned, marked as stopped.
    """
    candidates, bounded = outcome.space.candidates, outcome.bounded
    left = np.flatnonzero(bounded.fits)
    left = preference(candidates, left, bounded.step[left])
    step, memory = bounded.step[left], bounded.memory(task, candidates, left)
    known, stopped = _Front(outcome.step[:1], outcome.memory[:1], outcome.index[:1]), False
    try:
        while len(left := left[keep := ~known.beats(step, memory)]):
            step, memory = step[keep], memory[keep]
            if time.monotonic() > deadline:
                stopped = True
                break
            some = _lowest(memory)[:BATCH]
            found = exact(bounded.priced(task, candidates, left[some]))
            fit = fits(task, found.memory, found.host) & (found.step >= outcome.step[0])
            known = known.joined(found.step[fit], found.memory[fit], left[some][fit])
            left = np.delete(left, some)
            step, memory = np.delete(step, some), np.delete(memory, some)
    except KeyboardInterrupt:
        stopped = True
    known = known.thinned(0.5 * WORTH)
    rows = known.shown(top)
    winner = outcome.cuts[:1] or (None,)
    return replace(
        outcome,
        best=bounded.priced(task, candidates, known.index[rows]),
        step=known.step[rows],
        memory=known.memory[rows],
        index=known.index[rows],
        cuts=(*winner, *[None] * (len(rows) - 1)),
        front=len(known.step),
        stopped=outcome.stopped or stopped,
    )


def _lowest(memory: Array) -> IntArray:
    """Places of bounds that no faster bound is below in memory; the bounds of steps ascend."""
    least = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]]))
    return np.flatnonzero(memory < least)
