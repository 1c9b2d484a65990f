"""Time as solvers see it: seconds that pass, or none at all where an answer must be the same every time."""

from __future__ import annotations

import time
from collections.abc import Callable

BLINK = 0.05
"""Seconds for which nothing need be interrupted."""


class Clock:
    """Seconds since it was made; a stopped clock always says 0, so that only counts of work end a loop."""

    def __init__(self, *, stopped: bool = False) -> None:
        self.stopped, self.begin = stopped, time.perf_counter()

    def now(self) -> float:
        """Seconds since the start."""
        return 0.0 if self.stopped else time.perf_counter() - self.begin

    def allows(self, seconds: float, last: float) -> bool:
        """Whether what takes so long ends in time; always on a stopped clock."""
        return self.stopped or self.now() + seconds <= last


class Deadline:
    """Seconds that some work may take from now on; none pass on a stopped clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.begin, self.seconds = clock, clock.now(), seconds

    def past(self, share: float = 1.0, seconds: float = 0.0) -> bool:
        """Whether more than this share of the time is gone, or will be after so many seconds more."""
        return not self.clock.allows(seconds, self.begin + share * self.seconds)

    def parts(self, count: int, work: Callable[[int, int], None], share: float = 1.0) -> bool:
        """Does work from one number to another in parts of a blink each; whether all of it was done in time."""
        at, many, real = 0, 1, Clock()
        while at < count and not self.past(share):
            begin, end = real.now(), min(count, at + many)
            work(at, end)
            at, many = end, many * 2 if real.now() - begin < BLINK else max(1, many // 2)
        return at >= count


NEVER = Deadline(Clock(stopped=True), 1.0)
"""Past at no time."""
