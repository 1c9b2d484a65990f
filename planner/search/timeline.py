"""When each operation of a pipeline runs, few enough to be drawn.

A long schedule repeats after its warm-up (:mod:`planner.cost.makespan`), so a shorter one with whole periods cut out of
its middle shows all of it. What is cut out, where, and how long it takes is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.makespan import makespan, timed_program
from planner.cost.memory import TERMS
from planner.cost.orders import FORWARD, NOTHING, Schedule, group_size
from planner.cost.prices import ends_of
from planner.cost.program import Program, start_times
from planner.plan.figures import Timeline, TimelineRow
from planner.search.breakdown import Breakdown
from planner.units import Array

LEGIBLE, MOST = 800, 6000
"""Operations that can be told apart in one picture, and the most that are drawn; stages beyond that are left out."""
ALWAYS = ("weights", "gradients", "optimizer", "runtime")
"""Kinds of memory that are there all the time."""
FEWEST = 5
"""Micro-batches that are drawn at least."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Micro-batches left out of the middle of a schedule."""

    micro_batches: int
    at: float
    seconds: float


def timeline(b: Breakdown) -> Timeline:
    """The pipeline of one candidate, from its first forward to its last backward."""
    p, times = b.prices, b.times
    forward, backward, weight = times.forward, times.backward, times.weight
    stages, chunks = forward.shape[-2:]
    schedule, m = Schedule(int(p.rows.schedule[0])), int(p.micro_batches[0])
    send = p.sends.boundaries(stages)
    whole = float(makespan(schedule, m, forward, backward, send, weight)[0])
    group = int(group_size(stages, m)) if schedule.grouped else stages
    everything = m // group + 1
    unsteady = schedule == Schedule.GPIPE or schedule.adaptive
    whole_shown = 2 * stages * chunks * m <= LEGIBLE or unsteady
    seconds = dict(zip("FBIW", (forward, backward, backward - weight, weight), strict=True))
    for periods in range(everything if whole_shown else FEWEST // group + 2, everything + 1):
        short = m - group * max(0, m // group - periods)
        program = timed_program(
            schedule, short, forward[0], backward[0], float(send.max()), weight[0]
        )
        starts = start_times(program, forward, backward, send, weight)[0]
        ends = starts + _durations(program, seconds)
        low, high = _steady(program, starts, ends)
        if short == m or low < high:
            break
    drawn = float(ends.max())
    cut = _Cut(m - short, (low + high) / 2, whole - drawn) if short < m else _Cut(0, 0.0, 0.0)
    return Timeline(
        makespan=whole,
        drawn=drawn,
        rows=_rows(b, program, starts, seconds, drawn, cut),
        num_stages=stages,
        num_micro_batches=m,
        sends=tuple((send + p.sends.hidden_boundaries(stages))[0].tolist()),
        folded=bool(p.rows.folded[0]),
        left_out=cut.micro_batches,
        left_out_at=cut.at,
        left_out_seconds=cut.seconds,
    )


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
    kinds = np.stack([*(times[0] for times in seconds.values()), np.zeros(orders.depth.shape)])
    return np.asarray(kinds[orders.kind, stage, orders.chunk])


def _steady(program: Program, starts: Array, ends: Array) -> tuple[float, float]:
    """From when all stages alternate, to when the first stops: seconds, the first not below the second if never."""
    orders = program.orders
    first_backward = np.where(orders.kind == FORWARD, np.inf, starts).min(axis=1)
    entered = (orders.kind == FORWARD) & (orders.chunk == 0)
    last_forward = np.where(entered, ends, 0.0).max(axis=1)
    return float(first_backward.max()), float(last_forward.min())


def _rows(
    b: Breakdown,
    program: Program,
    starts: Array,
    seconds: dict[str, Array],
    drawn: float,
    cut: _Cut,
) -> tuple[TimelineRow, ...]:
    """The stages that are drawn; micro-batches behind the cut bear the numbers that they have in the whole schedule."""
    orders = program.orders
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
    digits = 6 - int(np.floor(np.log10(drawn)))
    return tuple(
        TimelineRow(
            stage=stage,
            kinds="".join(letters[kind] for kind in orders.kind[stage, : counts[stage]]),
            chunk=tuple(orders.chunk[stage, : counts[stage]].tolist()),
            micro_batch=tuple(numbers[stage, : counts[stage]].tolist()),
            start=tuple(np.round(starts[stage, : counts[stage]], digits).tolist()),
            seconds={
                letter: tuple(np.round(seconds[letter][0, stage], digits).tolist())
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
