"""Makespans of long schedules without simulating all of them, exactly.

After its warm-up a schedule repeats: what a stage does with the next p micro-batches (the next group of them, under
interleaving) is what it did with the last, and every start is the maximum of earlier ends plus durations. If all starts
of two whole periods in a row lie exactly one constant later than those of the period before, each later period does
too, by induction over the operations: none looks back further than two periods. A short schedule that shows this gives
the makespan of any longer one.
"""

from __future__ import annotations

import numpy as np

from planner.cost.adaptive import adaptive_order
from planner.cost.bounds import makespan_equal, stage_bound
from planner.cost.orders import FORWARD, Orders, Schedule, group_size
from planner.cost.program import (
    Program,
    Timing,
    compile_orders,
    compile_schedule,
    simulate,
)
from planner.units import Array, Number

PERIODS = 7
"""Periods in the first short schedule: warm-up, three to compare, and the drain."""
SAME = 1e-10
"""Relative difference of two periods that rounding may cause."""


def makespan(
    schedule: Schedule,
    m: int,
    forward: Array,
    backward: Array,
    send: Number = 0.0,
    weight: Array | None = None,
) -> Array:
    """Seconds from the first start to the last end of a schedule of m micro-batches.

    Args:
        schedule: which one.
        m: micro-batches.
        forward: of every chunk of every stage.
        backward: likewise.
        send: delay of every boundary; broadcasts to ``(..., stages)``.
        weight: the part of the backward time in which gradients of weights are made; only for split backwards.

    Shapes: ``forward``, ``backward`` and ``weight`` ``(n, stages, chunks)``; result ``(n,)``.

    Units: seconds.
    """
    p, v = forward.shape[-2:]
    if p == 1:
        return makespan_equal(1, m, 1, forward.sum((-2, -1)), backward.sum((-2, -1)))
    if schedule == Schedule.GPIPE:
        return stage_bound(schedule, np.asarray(m), forward, backward, send)
    delay = np.broadcast_to(send, forward.shape[:-1])
    late = np.zeros_like(backward) if weight is None else weight
    if schedule.adaptive:
        timings = adaptive_timings(schedule, m, forward, backward, delay, late, np.zeros(1))
        return np.stack([timing.makespan for timing, _ in timings])
    result = np.empty(len(forward))
    open_rows = np.arange(len(forward))
    periods = PERIODS
    group = int(group_size(p, m)) if v > 1 and not schedule.folded else p
    length = group * v * (3 if schedule.splits and schedule != Schedule.DUALPIPEV else 2)
    while len(open_rows):
        short = m - group * max(0, m // group - periods)
        times = tuple(part[open_rows] for part in (forward, backward, delay, late))
        program = compile_schedule(schedule, p, short, v, group)
        timing = simulate(program, *times)
        found = timing.makespan
        settled = np.ones(len(open_rows), dtype=bool)
        if short < m:
            period, settled = _steady(program, length, timing.starts)
            found = found + (m - short) // group * period
        result[open_rows[settled]] = found[settled]
        open_rows = open_rows[~settled]
        periods *= 4
    return result


def adaptive_timings(
    schedule: Schedule,
    m: int,
    forward: Array,
    backward: Array,
    send: Array,
    weight: Array,
    kept: Array,
) -> list[tuple[Timing, Orders]]:
    """Timings and orders of a schedule that is made for the times of every candidate.

    Args:
        schedule: ZB-1p or ZB-2p.
        m: micro-batches.
        forward: of every stage.
        backward: likewise.
        send: delay of every boundary.
        weight: the part of the backward time in which gradients of weights are made.
        kept: what these still need once the input's gradient is made, as a share of the activations.

    Shapes: times ``(n, stages, 1)``; ``send`` ``(n, stages)``; ``kept`` broadcasts to ``(n,)``.
    """
    found = []
    for row, share in enumerate(np.broadcast_to(kept, len(forward))):
        times = forward[row], backward[row], weight[row]
        program = timed_program(
            schedule, m, times[0], times[1], float(send[row].max()), times[2], float(share)
        )
        timing = simulate(program, times[0], times[1], send[row], times[2])
        found.append((timing, program.orders))
    return found


def timed_program(
    schedule: Schedule,
    m: int,
    forward: Array,
    backward: Array,
    send: float,
    weight: Array,
    kept: float = 0.0,
) -> Program:
    """The program of any schedule for one candidate's times; arguments as in :func:`adaptive_timings`.

    Shapes: times ``(stages, chunks)``.
    """
    p, v = forward.shape
    if schedule.adaptive:
        first, late = forward[:, 0], weight[:, 0]
        gradient = backward[:, 0] - late
        return compile_orders(adaptive_order(schedule, m, first, gradient, late, send, kept))
    return compile_schedule(schedule, p, m, v, int(group_size(p, m)) if v > 1 else p)


def _steady(program: Program, length: int, starts: Array) -> tuple[Array, Array]:
    """Seconds of a period of ``length`` operations, and for which rows the schedule has provably settled into it.

    The last period compared ends with the last forward of a first chunk: from there on the stages drain.

    Shapes: ``starts`` ``(n, stages, operations)``; results ``(n,)``.
    """
    orders = program.orders
    first = (orders.kind == FORWARD) & (orders.chunk == 0)
    end = int(np.where(first, np.arange(first.shape[1]), 0).max(axis=1).min()) + 1
    last, middle, first = (
        starts[..., end - k * length : end - (k - 1) * length] for k in (1, 2, 3)
    )
    later = np.concatenate([last - middle, middle - first], axis=-1)
    low, high = later.min(axis=(-2, -1)), later.max(axis=(-2, -1))
    return high, high - low <= SAME * high
