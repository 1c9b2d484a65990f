"""The pipeline of a plan as a file for chrome://tracing and Perfetto.

A process for every stage that the plan draws, and in it a lane for what it computes, one for each direction in which it
sends, and one for collectives that end the step; its memory is a counter. Slices of a lane never overlap.

Source: Trace Event Format (Google): complete events ``X`` in microseconds, counters ``C``, names ``M``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

from planner.plan.figures import Timeline, TimelineRow
from planner.plan.schema import Plan
from planner.report.sends import sent
from planner.units import GIB, Json

COMPUTE, DOWN, UP, COLLECTIVES = 1, 2, 3, 4
LANES = {
    COMPUTE: "compute",
    DOWN: "send activations",
    UP: "send gradients",
    COLLECTIVES: "collectives",
}
WORDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradients"}
MICRO = 1e6
ROUNDING = 2e-6
"""Share of the picture below which a gap is rounding."""


def render_trace(plan: Plan) -> str:
    """The timeline of a plan that has figures, as JSON.

    Raises:
        ValueError: the plan was made without figures.
    """
    if plan.figures is None:
        raise ValueError("a trace needs the figures of a plan")
    drawn = plan.figures.timeline
    events = [event for row in drawn.rows for event in _process(plan, drawn, row)]
    whole: dict[str, Json] = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"made_by": plan.made_by, "model": plan.model.name, "step_seconds": plan.step},
    }
    return json.dumps(whole, separators=(",", ":")) + "\n"


def _process(plan: Plan, drawn: Timeline, row: TimelineRow) -> Iterator[Json]:
    """Everything of one stage."""
    stage = plan.stages[row.stage]
    held = " and ".join(layers for layers in stage.layers if layers) or "no layers"
    yield _name(row.stage, "process_name", f"stage {row.stage}: layers {held}")
    yield {
        "ph": "M", "pid": row.stage, "tid": 0, "name": "process_sort_index",
        "args": {"sort_index": row.stage},
    }  # fmt: skip
    for lane, word in LANES.items():
        yield _name(row.stage, "thread_name", word, lane)
    passes = _passes(drawn, row)
    yield from _computed(drawn, row, passes)
    yield from _sent(plan, drawn, row, passes)
    yield from _ended(row, passes[-1][1])
    yield from _memory(row, passes)


def _passes(drawn: Timeline, row: TimelineRow) -> list[tuple[float, float, int]]:
    """Start, end and place of every operation; what comes behind the part left out is moved behind it.

    Times of the picture are rounded: an operation ends at the latest when the next one starts.
    """
    starts = [
        start + (drawn.left_out_seconds if drawn.left_out and start >= drawn.left_out_at else 0.0)
        for start in row.start
    ]
    lengths = (row.seconds[kind][chunk] for kind, chunk in zip(row.kinds, row.chunk, strict=True))
    nexts = [*starts[1:], float("inf")]
    return [
        (start, min(start + length, after), place)
        for place, (start, length, after) in enumerate(zip(starts, lengths, nexts, strict=True))
    ]


def _computed(
    drawn: Timeline, row: TimelineRow, passes: list[tuple[float, float, int]]
) -> Iterator[Json]:
    """Operations, what a stage waits between them, and the part that is left out."""
    for start, end, place in passes:
        kind, micro = row.kinds[place], row.micro_batch[place]
        yield _slice(row.stage, COMPUTE, f"{WORDS[kind]} {micro}", start, end, {
            "micro_batch": micro, "chunk": row.chunk[place],
        })  # fmt: skip
    least = ROUNDING * drawn.drawn
    if passes[0][0] > least:
        yield _slice(row.stage, COMPUTE, "waiting", 0.0, passes[0][0])
    for (_, end, before), (start, _, after) in pairwise(passes):
        if start - end <= least:
            continue
        cut = drawn.left_out and row.start[before] < drawn.left_out_at <= row.start[after]
        word = f"{drawn.left_out} micro-batches more, as before" if cut else "waiting"
        yield _slice(row.stage, COMPUTE, word, end, start)


def _sent(
    plan: Plan, drawn: Timeline, row: TimelineRow, passes: list[tuple[float, float, int]]
) -> Iterator[Json]:
    """Activations to the stage of the next chunk, gradients to that of the one before."""
    for each in sent(drawn, row, len(plan.stages[row.stage].layers), passes):
        lane = DOWN if each.down else UP
        yield _slice(row.stage, lane, f"to stage {each.other}", each.start, each.end, {
            "micro_batch": row.micro_batch[each.place], "chunk": row.chunk[each.place],
        })  # fmt: skip


def _ended(row: TimelineRow, end: float) -> Iterator[Json]:
    """What ends a step: gradients, behind the last backward pass as far as they fit, and the optimizer."""
    if row.hidden > 0:
        yield _slice(row.stage, COLLECTIVES, "gradients, hidden", max(0.0, end - row.hidden), end)
    if row.exposed > 0:
        yield _slice(row.stage, COLLECTIVES, "gradients", end, end + row.exposed)
        yield _slice(row.stage, COMPUTE, "waiting", end, end + row.exposed)
    if row.update > 0:
        start = end + row.exposed
        yield _slice(row.stage, COMPUTE, "optimizer", start, start + row.update)


def _memory(row: TimelineRow, passes: list[tuple[float, float, int]]) -> Iterator[Json]:
    """Activations held, beside what is always there."""
    changes = [(0.0, 0.0)]
    for start, end, place in passes:
        kind, chunk = row.kinds[place], row.chunk[place]
        if kind in row.held:
            changes.append((start if kind == "F" else end, row.held[kind][chunk]))
    held = 0.0
    for at, change in sorted(changes, key=lambda each: each[0]):
        held += change
        yield {
            "ph": "C", "pid": row.stage, "tid": 0, "name": "memory (GiB)", "ts": _micro(at),
            "args": {
                "always": round(row.always / GIB, 4), "activations": round(max(held, 0.0) / GIB, 4),
            },
        }  # fmt: skip


def _slice(
    pid: int, lane: int, name: str, start: float, end: float, args: dict[str, Json] | None = None
) -> Json:
    """A complete event; its end is rounded, not its length, so that neighbours do not overlap."""
    first = _micro(start)
    event: dict[str, Json] = {
        "ph": "X", "pid": pid, "tid": lane, "name": name, "ts": first,
        "dur": round(_micro(end) - first, 3),
    }  # fmt: skip
    return event | ({"args": args} if args else {})


def _name(pid: int, kind: str, text: str, lane: int = 0) -> Json:
    return {"ph": "M", "pid": pid, "tid": lane, "name": kind, "args": {"name": text}}


def _micro(seconds: float) -> float:
    return round(MICRO * seconds, 3)
