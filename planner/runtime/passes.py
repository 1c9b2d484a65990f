"""In which order the first stage runs its chunks forwards and backwards, under schedules with whole backward passes."""

from __future__ import annotations

from planner.runtime.program import Program

FORWARD, BACKWARD = 0, 1


def passes(plan: Program, chunk: int) -> list[int]:
    """Passes of a chunk of the first stage, one for every micro-batch each way.

    Source: torch 2.13 pipelining, ScheduleGPipe, Schedule1F1B and ScheduleInterleaved1F1B.
    """
    count, chunks = plan.micro_batches, len(plan.visits) // plan.pp
    rounds = max(1, count // plan.pp)
    together = count // rounds
    first = plan.pp - 1
    if chunks > 1:
        first = (chunks - 1) * together + 2 * first
    if plan.schedule == "gpipe":
        first = count
    total = count * chunks
    first = min(first, total)
    order = [(FORWARD, n) for n in range(first)]
    for n in range(total - first):
        order += [(FORWARD, first + n), (BACKWARD, n)]
    order += [(BACKWARD, n) for n in range(total - first, total)]

    def stands(kind: int, number: int) -> int:
        place = number // together % chunks
        return place if kind == FORWARD else chunks - 1 - place

    return [kind for kind, number in order if stands(kind, number) == chunk]
