"""Makespans of long schedules without simulating all of them, exactly.

After its warm-up a schedule repeats: what a stage does with the next p micro-batches (the next group of them, under
interleaving) is what it did with the last, and every start is the maximum of earlier ends plus durations. All that
follows an operation waits for few operations before it: :class:`Steady` counts them. If these start exactly one
constant later than they did a period before, on all stages, so does whatever follows them, by induction over the
operations. A short schedule that shows this gives the makespan of any longer one.

1F1B does after one micro-batch what it did before, so that its starts may repeat after any number of them: that of the
stages between which forwards and gradients go back and forth the longest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.cost.adaptive import adaptive_order
from planner.cost.bounds import makespan_equal, stage_bound
from planner.cost.orders import NOTHING, Orders, Schedule, group_size
from planner.cost.program import (
    Program,
    Timing,
    compile_orders,
    compile_schedule,
    simulate,
)
from planner.units import Array, BoolArray, IntArray, Number, unique

PERIODS = 3
"""Periods in the first short schedule: warm-up, one that repeats, and the drain."""
SAME = 1e-10
"""Relative difference of two periods that rounding may cause."""
KEPT = 4096
"""Makespans that are remembered: a plan is looked at again when it is refined, shown and compared."""
_KNOWN: dict[tuple[object, ...], float] = {}


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
    p = forward.shape[-2]
    if p == 1:
        return makespan_equal(1, m, 1, forward.sum((-2, -1)), backward.sum((-2, -1)))
    if schedule == Schedule.GPIPE:
        return stage_bound(schedule, np.asarray(m), forward, backward, send)
    delay = np.broadcast_to(send, forward.shape[:-1])
    late = np.zeros_like(backward) if weight is None else weight
    if schedule.adaptive:
        timings = adaptive_timings(schedule, m, forward, backward, delay, late, np.zeros(1))
        return np.stack([timing.makespan for timing, _ in timings])
    costs = (forward, backward, delay, late)
    keys = [
        (schedule, p, m, *(part[row].tobytes() for part in costs)) for row in range(len(forward))
    ]
    found = {key: _KNOWN[key] for key in keys if key in _KNOWN}
    new = [row for row, key in enumerate(keys) if key not in found]
    if new:
        seconds = _formula(schedule, m, *(part[new] for part in costs)).tolist()
        found |= {keys[row]: value for row, value in zip(new, seconds, strict=True)}
        if len(_KNOWN) + len(new) > KEPT:
            _KNOWN.clear()
        _KNOWN.update(found)
    return np.array([found[key] for key in keys])


def _formula(
    schedule: Schedule, m: int, forward: Array, backward: Array, send: Array, weight: Array
) -> Array:
    """The makespan of a schedule whose order is a formula; shapes as in :func:`makespan`."""
    p, v = forward.shape[-2:]
    result = np.empty(len(forward))
    open_rows = np.arange(len(forward))
    periods = PERIODS
    group = int(group_size(p, m)) if v > 1 and not schedule.folded else p
    each = v * (3 if schedule.splits and schedule != Schedule.DUALPIPEV else 2)
    turn = np.full(len(forward), group)
    if schedule == Schedule.ONE_F_ONE_B:
        turn = slowest_run((forward + backward)[..., 0], send)[1]
    while len(open_rows):
        after = turn[open_rows]
        short = m - after * np.maximum(0, (m - periods * group) // after)
        size = int(short[0])
        if (short != size).any():
            size = min(m, (periods + 1) * group)
            short = short if size < m else np.full_like(short, m)
        there, back, delay, late = (part[open_rows] for part in (forward, backward, send, weight))
        program = compile_schedule(schedule, p, size, v, group)
        timing = simulate(program, there, back, delay, late, short)
        found = timing.makespan
        settled = np.ones(len(open_rows), dtype=bool)
        if (short < m).any():
            part = steady(program, group, group * each)
            part = replace(part, end=part.end - (size - int(short.min())) * each)
            period, settled = _settled(part, after * each, timing)
            settled |= short == m
            found = found + (m - short) // after * period
        result[open_rows[settled]] = found[settled]
        open_rows = open_rows[~settled]
        periods *= 2
    return result


def slowest_run(seconds: Array, send: Array) -> tuple[Array, IntArray]:
    """The period of long 1F1B schedules, and how many stages make it: those whose sends and seconds have that mean.

    Gradient and forward of a micro-batch go back and forth between the ends of a run of stages, which takes as many
    micro-batches as it has stages. So do its starts repeat.

    Args:
        seconds: of every stage, forward and backward.
        send: delay of every boundary.

    Shapes: ``(n, stages)`` each; results ``(n,)``.

    Units: seconds.
    """
    pairs = np.concatenate([np.zeros_like(send[:, :1]), 2.0 * send[:, :-1]], axis=1)
    row, place = np.arange(len(seconds)), np.arange(seconds.shape[1])
    longest, count = seconds.max(axis=1), np.ones(len(seconds), np.int64)
    while True:
        whole = np.cumsum(seconds - longest[:, None] + pairs, axis=1)
        before = whole - seconds + longest[:, None]
        least = np.minimum.accumulate(before, axis=1)
        first = np.maximum.accumulate(np.where(before == least, place, 0), axis=1)
        last = (whole - least).argmax(axis=1)
        first = first[row, last]
        more = (whole - least)[row, last] > SAME * longest
        if not more.any():
            return longest, count
        num = last + 1 - first
        mean = longest + (whole[row, last] - before[row, first]) / num
        longest, count = np.where(more, mean, longest), np.where(more, num, count)


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


@dataclass(frozen=True, slots=True)
class Steady:
    """The part of a schedule in which every stage repeats what it did a period before; places in the order tables."""

    start: int
    """First operation, on all stages, that is one of a period before with later micro-batches."""
    end: int
    """Behind the last such operation."""
    reach: int
    """Operations of a stage before one of these places that anything behind it may wait for."""


@lru_cache(maxsize=64)
def steady(program: Program, group: int, length: int) -> Steady:
    """The longest steady part of a schedule.

    A longer schedule has periods put in at its end, and goes on from there with later micro-batches.

    Args:
        program: the schedule.
        group: micro-batches of a period.
        length: operations of a stage in a period.
    """
    orders, size = program.orders, program.orders.kind.shape[1]
    before, after = np.s_[:, :-length], np.s_[:, length:]
    same = orders.kind[after] == orders.kind[before]
    same &= orders.chunk[after] == orders.chunk[before]
    same &= orders.microbatch[after] == orders.microbatch[before] + group
    same &= orders.kind[after] != NOTHING
    breaks = length + np.flatnonzero(~same.all(axis=0))
    ends = np.append(breaks, size)
    starts = np.append(length, breaks + 1)
    longest = int((ends - starts).argmax())
    start, end = int(starts[longest]), int(ends[longest])
    place = np.empty(program.number.size, np.int64)
    place[program.number] = np.arange(size)
    sent = program.hop < len(orders.kind)
    waits, source = place[sent], place[program.after_data[sent] - 1]
    reach = (at - source[waits >= at].min(initial=at - 1) for at in (end - length, end))
    return Steady(start, end, int(max(reach)))


def _settled(part: Steady, length: IntArray, timing: Timing) -> tuple[Array, BoolArray]:
    """Seconds of a period of ``length`` operations, and for which rows every later one provably takes as long.

    Shapes: ``length`` and results ``(n,)``, as the timing's makespan.
    """
    first, end = part.end - part.reach, part.end
    seconds, settled = np.zeros(len(length)), np.zeros(len(length), dtype=bool)
    if first < part.start:
        return seconds, settled
    before = int(length.max())
    starts = timing.between(first - before, end)
    for each in unique(length).tolist():
        rows = np.flatnonzero(length == each)
        some = starts[rows]
        later = some[..., before:] - some[..., before - each : before - each + part.reach]
        low, high = later.min(axis=(-2, -1)), later.max(axis=(-2, -1))
        seconds[rows], settled[rows] = high, high - low <= SAME * high
    return seconds, settled
