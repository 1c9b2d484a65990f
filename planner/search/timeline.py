"""When each operation of a pipeline runs, few enough to be drawn.

A long schedule repeats after its warm-up (:mod:`planner.cost.makespan`), so a shorter one with whole periods cut out of
its middle shows all of it. What is cut out, where, and how long it takes is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.makespan import makespan, timed_program
from planner.cost.memory import TERMS
from planner.cost.orders import FORWARD, NOTHING, Schedule, group_size
from planner.cost.prices import ends_of
from planner.cost.program import Program, simulate
from planner.cost.step import StageTimes, schedule_costs
from planner.plan.figures import Timeline, TimelineRow
from planner.search.breakdown import Breakdown
from planner.units import Array

LEGIBLE, MOST = 800, 6000
"""Operations that can be told apart in one picture, and the most that are drawn; stages beyond that are left out."""
ALWAYS = ("weights", "gradients", "optimizer", "runtime")
"""Kinds of memory that are there all the time."""
FEWEST = 5
"""Micro-batches that are drawn at least."""
SAME, ALIKE = 1e-6, 3e-3
"""Shares of the picture by which starts may differ: rounding; and what nobody can see, where nothing is the same."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Micro-batches left out of the middle of a schedule."""

    micro_batches: int
    at: float
    seconds: float


def timeline(b: Breakdown) -> Timeline:
    """The pipeline of one candidate, from its first forward to its last backward."""
    p = b.prices
    forward, backward, send, _ = schedule_costs(p, b.times)
    times = replace(b.times, forward=forward, backward=backward)
    stages, chunks = times.forward.shape[-2:]
    schedule, m = Schedule(int(p.rows.schedule[0])), int(p.micro_batches[0])
    behind = p.sends.hidden_boundaries(stages) if p.mix is None else p.mix.hidden
    run = partial(_run, schedule, times, send)
    group = int(group_size(stages, m)) if schedule.grouped else stages
    whole = float(makespan(schedule, m, times.forward, times.backward, send, times.weight)[0])
    unsteady = schedule == Schedule.GPIPE or schedule.adaptive
    cut, drawn = _Cut(0, 0.0, 0.0), None
    if not unsteady and 2 * stages * chunks * m > LEGIBLE:
        most = min(m, MOST // (2 * chunks))
        sizes = [m % group + group * n for n in _growing(FEWEST // group + 2, most // group)]
        for short, tolerance in ((n, t) for t in (SAME, ALIKE) for n in sizes):
            drawn, longer = run(short), run(short + group)
            found = _cut(drawn, longer, (m - short) // group, whole, tolerance)
            if found is not None:
                cut = found
                break
    drawn = drawn if drawn is not None and cut.micro_batches else run(m)
    return Timeline(
        makespan=whole,
        drawn=drawn.makespan,
        rows=_rows(b, drawn, cut),
        num_stages=stages,
        num_micro_batches=m,
        sends=tuple((send + behind)[0].tolist()),
        folded=bool(p.rows.folded[0]),
        left_out=cut.micro_batches,
        left_out_at=cut.at,
        left_out_seconds=cut.seconds,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A schedule and when each of its operations starts."""

    program: Program
    starts: Array
    """Seconds; ``(stages, operations)``."""
    ends: Array
    seconds: dict[str, Array]
    """Of every kind, by its letter; ``(stages, chunks)``."""

    @property
    def makespan(self) -> float:
        """Seconds."""
        return float(self.ends.max())

    def by_micro_batch(self) -> Array:
        """Starts by kind, stage, chunk and micro-batch; not a number where a stage has no such operation."""
        orders = self.program.orders
        stage = np.arange(len(orders.kind))[:, None] + np.zeros_like(orders.kind)
        real = orders.kind != NOTHING
        shape = (len(self.seconds), *self.seconds["F"].shape, self.program.microbatches)
        found = np.full(shape, np.nan)
        places = (orders.kind, stage, orders.chunk, orders.microbatch)
        found[tuple(place[real] for place in places)] = self.starts[real]
        return found


def _run(schedule: Schedule, times: StageTimes, send: Array, m: int) -> _Run:
    forward, backward, weight = times.forward, times.backward, times.weight
    program = timed_program(schedule, m, forward[0], backward[0], float(send.max()), weight[0])
    starts = simulate(program, forward, backward, send, weight).starts[0]
    kinds = (forward[0], backward[0], (backward - weight)[0], weight[0])
    seconds = dict(zip("FBIW", kinds, strict=True))
    return _Run(program, starts, starts + _durations(program, seconds), seconds)


def _growing(first: int, end: int) -> Iterator[int]:
    """Numbers of periods, each about half as large again as the one before."""
    while first < end:
        yield first
        first += max(1, first // 2)


def _cut(short: _Run, longer: _Run, periods: int, whole: float, tolerance: float) -> _Cut | None:
    """Where a schedule can be taken apart so that a longer one is the same with whole periods between the parts.

    Args:
        short: the schedule that is drawn.
        longer: the same with one period more.
        periods: how many are left out.
        whole: seconds of the schedule that has them all.
        tolerance: share of the picture by which starts may differ.

    Returns:
        The cut; None where the short one has no time at which all that follows only comes one period later.
    """
    tolerance *= short.makespan
    group = longer.program.microbatches - short.program.microbatches
    period = longer.makespan - short.makespan
    if abs(whole - short.makespan - periods * period) > tolerance:
        return None
    low, high = _steady(short.program, short.starts, short.ends)
    mine, theirs = short.by_micro_batch(), longer.by_micro_batch()
    for at in np.linspace(low, high, 9)[1:-1] if low < high else ():
        behind = mine >= at
        same = np.where(behind, theirs[..., group:], theirs[..., :-group])
        late = np.abs(mine + behind * period - same)
        if not np.any(late > tolerance):
            return _Cut(group * periods, float(at), whole - short.makespan)
    return None


def _held(b: Breakdown) -> dict[str, Array]:
    """Bytes by which activations of layers grow with each kind of operation; ``(stages, chunks)`` each."""
    p, blocks = b.prices, b.times.blocks
    ends = ends_of(p.task)
    saved = blocks[..., :-ends] @ p.table.saved[p.rows.recompute[0], p.key[0], :-ends]
    kept = blocks @ p.table.kept[p.key[0]]
    return {"F": saved, "B": -saved, "I": kept - saved, "W": -kept}


def _durations(program: Program, seconds: dict[str, Array]) -> Array:
    """Seconds of every operation at its place in the orders; ``(stages, operations)``."""
    orders = program.orders
    stage = np.arange(len(orders.kind))[:, None]
    kinds = np.stack([*seconds.values(), np.zeros(orders.depth.shape)])
    return np.asarray(kinds[orders.kind, stage, orders.chunk])


def _steady(program: Program, starts: Array, ends: Array) -> tuple[float, float]:
    """From when all stages alternate, to when the first stops: seconds, the first not below the second if never."""
    orders = program.orders
    first_backward = np.where(orders.kind == FORWARD, np.inf, starts).min(axis=1)
    entered = (orders.kind == FORWARD) & (orders.chunk == 0)
    last_forward = np.where(entered, ends, 0.0).max(axis=1)
    return float(first_backward.max()), float(last_forward.min())


def _rows(b: Breakdown, run: _Run, cut: _Cut) -> tuple[TimelineRow, ...]:
    """The stages that are drawn; micro-batches behind the cut bear the numbers that they have in the whole schedule."""
    starts, seconds = run.starts, run.seconds
    orders = run.program.orders
    stages, operations = starts.shape
    every = -(-stages // max(4, MOST // operations))
    shown = sorted({*range(0, stages, every), stages - 1})
    numbers = orders.microbatch + np.where(starts >= cut.at, cut.micro_batches, 0)
    letters = list(seconds)
    shown_kinds = [letter for kind, letter in enumerate(letters) if (orders.kind == kind).any()]
    counts = (orders.kind != NOTHING).sum(axis=1)
    held = _held(b)
    parts = b.memory.parts[0]
    always = [
        float(parts[stage, [TERMS.index(k) for k in ALWAYS]].sum()) for stage in range(stages)
    ]
    digits = 6 - int(np.floor(np.log10(run.makespan)))
    return tuple(
        TimelineRow(
            stage=stage,
            kinds="".join(letters[kind] for kind in orders.kind[stage, : counts[stage]]),
            chunk=tuple(orders.chunk[stage, : counts[stage]].tolist()),
            micro_batch=tuple(numbers[stage, : counts[stage]].tolist()),
            start=tuple(np.round(starts[stage, : counts[stage]], digits).tolist()),
            seconds={
                letter: tuple(np.round(seconds[letter][stage], digits).tolist())
                for letter in shown_kinds
            },
            held={
                letter: tuple(bytes_of[stage].tolist())
                for letter, bytes_of in held.items()
                if letter in shown_kinds
            },
            always=always[stage],
            hidden=float(b.times.hidden_states[0, stage]),
            exposed=float(b.times.exposed_states[0, stage]),
            update=float(b.times.update[0, stage]),
        )
        for stage in shown
    )
