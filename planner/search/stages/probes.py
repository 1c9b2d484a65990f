"""What the stages of a division into chunks recompute at best, and proof of it: choices are ruled out one by one.

Layers run again in turn (:mod:`planner.search.stages.chunked`), so that chunks take the less the fewer layers of their
stage run again as a whole, and the fewer run again at all. The schedule with the least of both numbers that the open
choices of every stage have is thus no slower than any that they allow. A choice with which that schedule is not faster
than what is known is in no faster one: it is closed, which raises the least of its stage for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from planner.search.stages.solver import PROVEN
from planner.units import Array, IntArray

BRANCHES = 24
"""Sets of open choices that are divided at most; what is left of them bounds the rest."""

Open: TypeAlias = list[Array]
"""For every stage the choices that are open; ``(choices, 3)``: layers that run again as a whole, layers that run again,
seconds that follow the schedule."""


class Pricing(Protocol):
    """What cuts into chunks cost; cuts are layers of every chunk, ``(n, chunks)``."""

    def choices(self, cuts: IntArray, known: float) -> list[Open]:
        """The choices of every cut with which every stage alone takes no longer than what is known."""

    def schedules(self, cuts: IntArray, full: IntArray, part: IntArray) -> Array:
        """Seconds of schedules, so many layers of every stage running again, ``(n, stages)`` each; ``(n,)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """The best of several cuts with what its stages recompute."""

    seconds: float
    bound: float
    """Seconds that none of the cuts beats, whatever its stages recompute."""
    place: int
    """Which cut."""
    again: IntArray | None
    """Layers of every stage that run again as a whole, and in part, ``(2, stages)``; None as what was known."""


def settle(pricing: Pricing, cuts: IntArray, known: float, place: int) -> Settled:
    """What stages recompute at best under the best of some cuts.

    Args:
        pricing: what cuts cost.
        cuts: ``(n, chunks)``.
        known: seconds that one of them takes with some choices.
        place: which one.
    """
    every = [list(map(_undominated, each)) for each in pricing.choices(cuts, known)]
    some = [row for row, choices in enumerate(every) if all(map(len, choices))]
    every = [every[row] for row in some]
    bounds = _relaxed(pricing, cuts[some], every).tolist()
    best = Settled(known, np.inf, place, None)
    open_ = sorted(zip(bounds, some, every, strict=True), key=lambda each: -each[0])
    least, branches = np.inf, 0
    while open_:
        bound, place, choices = open_.pop()
        if bound >= best.seconds * (1.0 - PROVEN) or branches == BRANCHES:
            least = min(least, bound)
            continue
        best, bound, rest = _narrowed(pricing, cuts, place, choices, best)
        if not rest:
            least = min(least, bound)
        branches += bool(rest)
        open_ += [(max(bound, low), place, part) for low, part in rest]
    return Settled(best.seconds, min(least, best.seconds), best.place, best.again)


def _narrowed(
    pricing: Pricing, cuts: IntArray, place: int, choices: Open, best: Settled
) -> tuple[Settled, float, list[tuple[float, Open]]]:
    """Closes choices of a cut as long as that rules out others.

    Returns:
        The best that is known, seconds that no open choice beats, and where one may be faster both parts of them.
    """
    while all(map(len, choices)):
        enough = best.seconds * (1.0 - PROVEN)
        places = [(stage, one) for stage, each in enumerate(choices) for one in range(len(each))]
        tried = [choices, *(_with(choices, *each) for each in places)]
        bounds = _relaxed(pricing, np.repeat(cuts[[place]], len(tried), axis=0), tried)
        if bounds[0] >= enough:
            return best, float(bounds[0]), []
        each = np.split(bounds[1:], np.cumsum([len(part) for part in choices])[:-1])
        least = [part[[low.argmin()]] for part, low in zip(choices, each, strict=True)]
        seconds = float(_relaxed(pricing, cuts[[place]], [least])[0])
        if seconds < best.seconds:
            full, again, _ = np.concatenate(least).T.astype(np.int64)
            best = Settled(seconds, np.inf, place, np.stack([full, again - full]))
            enough = seconds * (1.0 - PROVEN)
        kept = [part[low < enough] for part, low in zip(choices, each, strict=True)]
        if sum(map(len, kept)) == len(places):
            if max(map(len, kept)) == 1:
                return best, seconds, []
            slowest = [low.max() if len(low) > 1 else 0.0 for low in each]
            stage = int(np.argmax(slowest))
            slow = each[stage] == slowest[stage]
            parts = [
                (float(low), [part[mask] if at == stage else part for at, part in enumerate(kept)])
                for low, mask in ((slowest[stage], slow), (bounds[0], ~slow))
            ]
            return best, float(bounds[0]), parts
        choices = kept
    return best, enough, []


def _with(choices: Open, stage: int, place: int) -> Open:
    return [each[[place]] if at == stage else each for at, each in enumerate(choices)]


def _relaxed(pricing: Pricing, cuts: IntArray, choices: Sequence[Open]) -> Array:
    """Seconds that no combination of these choices beats, a list of them for every cut; ``(n,)``."""
    if not choices:
        return np.empty(0)
    lows = np.array([[each.min(axis=0) for each in stages] for stages in choices])
    full, again = (lows[..., column].astype(np.int64) for column in (0, 1))
    return np.asarray(pricing.schedules(cuts, full, again - full) + lows[..., 2].max(axis=1))


def _undominated(choices: Array) -> Array:
    """Those of which no other is as small in everything and smaller in something."""
    better = (choices[:, None] <= choices).all(axis=-1)
    return np.asarray(choices[~(better & ~better.T).any(axis=0)])
