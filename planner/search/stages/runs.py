"""What the stages of a layout may hold: for each run of layers the fastest recompute that fits.

A stage is never faster for recomputing more, and neither is the schedule: so each stage alone takes the least seconds
backwards that its memory allows, and only the cut is left to search.

As more layers of a run recompute, its memory shrinks until a kind of layer joins that did not before, whose working set
is another one. Between two such counts the least that fits is found by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.candidates import RECOMPUTE
from planner.cost.activations import held_at_once
from planner.cost.cut import FULL, NONE, SELECTIVE
from planner.cost.prices import Prices, cut_of
from planner.search.stages.options import Held, Mixing, Priced, fit, priced
from planner.units import Array, BoolArray, IntArray

LINES = 32
"""Numbers of layers that run again as a whole which are looked at together."""
Fits = Callable[[IntArray, IntArray], BoolArray]
"""Whether so many recomputed layers fit, ``(stages, n)``, in n columns of a table; these."""


@dataclass(frozen=True, slots=True, eq=False)
class Fastest:
    """For every stage and run the recompute that is fastest backwards and fits; arrays ``(stages, runs)``."""

    full: IntArray
    """Layers that run again as a whole, the first ones."""
    selective: IntArray
    """Layers that run again in part, those that follow."""
    known: Priced
    """What it costs; where it does not fit, nothing does."""

    @property
    def seconds(self) -> Array:
        """Of a micro-batch forwards and backwards; infinite where nothing fits."""
        return np.where(self.known.fits, self.known.forward + self.known.backward, np.inf)


class Runs:
    """Choices of recompute for the runs of layers that stages may hold."""

    def __init__(self, p: Prices, mixing: Mixing, limit: float | Array) -> None:
        self.p, self.mixing, self.limit = p, mixing, limit
        self.pp, self.vpp = int(p.rows.pp[0]), int(p.rows.vpp[0])
        self.model = p.task.model
        self.ends = 2 if self.model.mtp else 1
        blocks = cut_of(p).sum(axis=1)[None]
        self.flying = held_at_once(p, blocks, np.arange(self.pp)[None])[0]
        if mixing == "alike":
            self.allowed = {int(p.rows.recompute[0])}
        elif self.counted:
            self.allowed = {FULL, NONE}
        else:
            self.allowed = {RECOMPUTE.index(mode) for mode in p.task.trainer.recompute}

    @property
    def counted(self) -> bool:
        """Whether every chunk recomputes the same number of layers, and nothing of the others."""
        return self.mixing == "count" and "full" in self.p.task.trainer.recompute

    def held(self, runs: Sequence[tuple[int, ...]]) -> Held:
        """Runs, each by the kinds of its layers in the order in which they are recomputed."""
        return Held(runs, len(self.model.blocks))

    def priced(self, held: Held, run: IntArray, full: IntArray, selective: IntArray) -> Priced:
        """What choices cost, each of a run; ``run`` is ``(n,)``, the others broadcast to ``(stages, n)``."""
        return priced(self.p, self._blocks(held, run, full, selective), self.flying, self.limit)

    def _blocks(self, held: Held, run: IntArray, full: IntArray, selective: IntArray) -> IntArray:
        shape = (self.pp, len(run))
        full, selective = (np.broadcast_to(part, shape) for part in (full, selective))
        return held.blocks(run, full, selective, self.ends)

    def choices(self, held: Held) -> tuple[IntArray, IntArray, IntArray, Priced]:
        """Every allowed choice: of which run, layers that run again as a whole and in part, and what it costs."""
        parts = []
        for run, size in enumerate(held.length.tolist()):
            counts, none = np.arange(size + 1), np.zeros(1, np.int64)
            ways = (counts if mode in self.allowed else none for mode in (FULL, SELECTIVE))
            full, selective = (part.ravel() for part in np.meshgrid(*ways, indexing="ij"))
            keeps = full + selective <= size
            keeps &= (full + selective == size) | (NONE in self.allowed)
            parts.append(np.stack([np.full(keeps.sum(), run), full[keeps], selective[keeps]]))
        run, full, selective = np.concatenate(parts, axis=1)
        return run, full, selective, self.priced(held, run, full, selective)

    def fastest(self, held: Held, whole: IntArray | None = None) -> Fastest:
        """The fastest recompute of every run that fits.

        Args:
            held: the runs.
            whole: how many layers of every run are recomputed as a whole; None where runs are free.
        """
        every, none = held.length, np.zeros((self.pp, len(held.length)), dtype=np.int64)
        full = none if whole is None else none + whole
        selective = none
        if NONE not in self.allowed:
            full, selective = (none + every * (m in self.allowed) for m in (FULL, SELECTIVE))
        elif whole is None and SELECTIVE in self.allowed:
            full, selective = self._by_lines(held)
        elif whole is None and FULL in self.allowed:
            full = np.minimum(self.least(held), every)
        return Fastest(full, selective, self.priced(held, np.arange(len(every)), full, selective))

    def least(self, held: Held) -> IntArray:
        """For every stage how many layers of each run must run again as a whole until it fits; more than all: never."""
        runs, first = np.arange(len(held.length)), np.zeros((self.pp, len(held.length)), np.int64)

        def fits(full: IntArray, run: IntArray) -> BoolArray:
            return self._fit(held, run, full, first[:, run])

        count = _least(*held.spans(runs, first), fits)
        return np.where(count < 0, held.length + 1, count)

    def _by_lines(self, held: Held) -> tuple[IntArray, IntArray]:
        """The fastest of all numbers of layers that run again as a whole with the fewest others in part that fit.

        No more as a whole are looked at once these alone take as long as the best.
        """
        size, length = len(held.length), held.length * (FULL in self.allowed)
        run, shape = np.tile(np.arange(size), LINES), (self.pp, LINES, size)
        full, part = (np.tile(each, (self.pp, 1)) for each in (length, held.length - length))
        best = np.full((self.pp, size), np.inf)
        for line in range(0, int(length.max()) + 1, LINES):
            count = np.arange(line, line + LINES)[:, None]
            whole = np.broadcast_to(np.minimum(count, length).ravel(), (self.pp, len(run)))
            alone = self.priced(held, run, whole, 0 * whole).backward.reshape(shape)
            open_ = (alone < best[:, None]) & (count <= length)
            if not open_.any():
                break

            def fits(some: IntArray, at: IntArray, whole: IntArray = whole) -> BoolArray:
                return self._fit(held, run[at], whole[:, at], some)

            some = _least(*held.spans(run, whole), fits)
            seconds = self.priced(held, run, whole, np.maximum(some, 0)).backward.reshape(shape)
            some = some.reshape(shape)
            seconds = np.where(open_ & (some >= 0), seconds, np.inf)
            place = seconds.argmin(axis=1)
            fast, few = (
                np.take_along_axis(each, place[:, None], axis=1)[:, 0] for each in (seconds, some)
            )
            full = np.where(fast < best, line + place, full)
            part = np.where(fast < best, few, part)
            best = np.minimum(fast, best)
        return full, part

    def _fit(self, held: Held, run: IntArray, full: IntArray, selective: IntArray) -> BoolArray:
        """Whether choices fit, each of a run; ``run`` is ``(n,)``, the others ``(stages, n)``."""
        return fit(self.p, self._blocks(held, run, full, selective), self.flying, self.limit)


def _least(low: IntArray, high: IntArray, fits: Fits) -> IntArray:
    """The least count that fits, -1 where none does.

    Args:
        low: least count of every span; within one, whatever is more than what fits does as well. Spans come first.
        high: its most, below its least where a span is empty.
        fits: whether counts of some of the columns fit.

    Shapes: ``(spans, stages, n)`` to ``(stages, n)``.
    """
    found = np.full(low.shape[1:], -1)
    for least, most in zip(low, high, strict=True):
        open_ = (found < 0) & (least <= most)
        column = np.flatnonzero(open_.any(axis=0))
        if len(column):
            open_ = open_[:, column]
            open_ &= fits(np.where(open_, most[:, column], 0), column)
            few = open_.any(axis=0)
            column, open_ = column[few], open_[:, few]
            first, last = (np.where(open_, each[:, column], 0) for each in (least, most))
            while (first < last).any():
                middle = (first + last) // 2
                enough = fits(middle, column)
                first, last = np.where(enough, first, middle + 1), np.where(enough, middle, last)
            found[:, column] = np.where(open_, last, found[:, column])
    return found
