"""Time as solvers see it: seconds that pass, or none at all where an answer must be the same every time."""

from __future__ import annotations

import time


class Clock:
    """Seconds since it was made; a stopped clock always says 0, so that only counts of work end a loop."""

    def __init__(self, *, stopped: bool = False) -> None:
        self.stopped, self.begin = stopped, time.perf_counter()

    def now(self) -> float:
        """Seconds since the start."""
        return 0.0 if self.stopped else time.perf_counter() - self.begin
