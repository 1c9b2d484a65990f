"""Makespans of long schedules without simulating all of them, exactly.

After its warm-up a schedule repeats: what a stage does with the next p micro-batches (the next group of them, under
interleaving) is what it did with the last, and every start is the maximum of earlier ends plus durations. If all starts
of two whole periods in a row lie exactly one constant later than those of the period before, each later period does
too, by induction over the operations: none looks back further than two periods. A short schedule that shows this gives
the makespan of any longer one.
"""

from __future__ import annotations

import numpy as np

from planner.cost.orders import FORWARD, Schedule, group_size
from planner.cost.schedule import (
    Program,
    compile_schedule,
    makespan_equal,
    simulate,
    stage_bound,
    start_times,
)
from planner.units import Array, Number

PERIODS = 7
"""Periods in the first short schedule: warm-up, three to compare, and the drain."""
SAME = 1e-10
"""Relative difference of two periods that rounding may cause."""


def makespan(
    schedule: Schedule, m: int, forward: Array, backward: Array, send: Number = 0.0
) -> Array:
    """Seconds from the first start to the last end of a schedule of m micro-batches.

    Args:
        schedule: which one.
        m: micro-batches.
        forward: of every chunk of every stage.
        backward: likewise.
        send: delay of every boundary; broadcasts to ``(..., stages)``.

    Shapes: ``forward`` and ``backward`` ``(n, stages, chunks)``; result ``(n,)``.

    Units: seconds.
    """
    p, v = forward.shape[-2:]
    if p == 1:
        return makespan_equal(1, m, 1, forward.sum((-2, -1)), backward.sum((-2, -1)))
    if schedule == Schedule.GPIPE:
        return stage_bound(schedule, np.asarray(m), forward, backward, send)
    result = np.empty(len(forward))
    open_rows = np.arange(len(forward))
    delay = np.broadcast_to(send, forward.shape[:-1])
    periods = PERIODS
    group = int(group_size(p, m)) if schedule == Schedule.INTERLEAVED else p
    while len(open_rows):
        short = m - group * max(0, m // group - periods)
        times = forward[open_rows], backward[open_rows], delay[open_rows]
        program = compile_schedule(schedule, p, short, v, group)
        found = simulate(program, *times).makespan
        settled = np.ones(len(open_rows), dtype=bool)
        if short < m:
            period, settled = _steady(program, group, start_times(program, *times))
            found = found + (m - short) // group * period
        result[open_rows[settled]] = found[settled]
        open_rows = open_rows[~settled]
        periods *= 4
    return result


def _steady(program: Program, group: int, starts: Array) -> tuple[Array, Array]:
    """Seconds of a period of one group, and for which rows the schedule has provably settled into it.

    Shapes: ``starts`` ``(n, stages, 2 m v)``; results ``(n,)``.
    """
    warm = int((program.orders.kind == FORWARD).argmin(axis=1).max()) - 1
    length, end = 2 * group * program.chunks, starts.shape[-1] - warm - 1
    last, middle, first = (
        starts[..., end - k * length : end - (k - 1) * length] for k in (1, 2, 3)
    )
    later = np.concatenate([last - middle, middle - first], axis=-1)
    low, high = later.min(axis=(-2, -1)), later.max(axis=(-2, -1))
    return high, high - low <= SAME * high
