"""Plans that leave chips idle, where their number divides badly: fewer may be faster, or all that can be used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.hardware.cluster import Cluster
from planner.search.engine import Outcome
from planner.search.space import Space
from planner.units import show_seconds

EASY = (2, 3)
"""Prime factors that batches, layers and widths of models usually have."""
FEW = 64
"""Chips up to which every number above half of them is tried."""
MOST = 4
"""Numbers that are tried beyond."""
WORTH = 1e-4
"""Share of the step that idle chips must gain; using all is simpler."""


def divides_badly(num_chips: int) -> bool:
    """Whether a number of chips has a prime factor that models and batches seldom have.

    >>> [count for count in range(2, 20) if divides_badly(count)]
    [5, 7, 10, 11, 13, 14, 15, 17, 19]
    """
    return not _easy(num_chips)


def fewer(cluster: Cluster) -> tuple[int, ...]:
    """Numbers of chips to try instead of all: more than half, all of them or, of many, the largest that divide well.

    Returns:
        Ascending.
    """
    chips = cluster.num_chips
    counts = range(chips - 1, chips // 2, -1)
    if chips > FEW:
        return tuple(sorted([count for count in counts if _easy(count)][:MOST]))
    return tuple(reversed(counts))


def _easy(number: int) -> bool:
    for prime in EASY:
        while number % prime == 0:
            number //= prime
    return number == 1


def better(whole: Outcome, part: Outcome) -> tuple[Outcome, str]:
    """The faster of two outcomes, one that uses all chips and one that does not, and why any are idle."""
    if part.best is None:
        return whole, ""
    cluster = part.best.task.cluster
    if whole.best is None:
        done = "fits" if len(whole.space.candidates) else "is allowed by the rules"
        return _joined(part, whole), f"no layout of all {cluster.num_chips:,} {done}."
    step, all_used = float(part.step[0]), float(whole.step[0])
    if step >= all_used * (1.0 - WORTH):
        return whole, ""
    told = f"all {cluster.num_chips:,} would take {show_seconds(all_used)} a step."
    return _joined(part, whole), told


def _joined(part: Outcome, whole: Outcome) -> Outcome:
    """An outcome that speaks for the layouts of both searches."""
    one, other = part.space, whole.space
    names = {*one.removed, *other.removed}
    space = Space(
        one.candidates,
        one.searched + other.searched,
        {name: one.removed.get(name, 0) + other.removed.get(name, 0) for name in names},
        one.operators,
    )
    bound = float(np.minimum(part.bound, whole.bound)) if whole.stopped else part.bound
    return replace(part, space=space, bound=bound, stopped=part.stopped or whole.stopped)
