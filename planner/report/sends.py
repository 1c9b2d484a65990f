"""What the stages of a drawn pipeline hand to one another: when a send begins, where to, how long it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.plan.figures import Timeline, TimelineRow


@dataclass(frozen=True, slots=True)
class Sent:
    """One send of a stage."""

    place: int
    """Of the pass whose result it is."""
    down: bool
    """Activations go down to the output, gradients up to the input."""
    other: int
    """Stage that gets it."""
    start: float
    """Seconds."""
    end: float


def sent(
    drawn: Timeline, row: TimelineRow, chunks: int, passes: Sequence[tuple[float, float, int]]
) -> Iterator[Sent]:
    """Activations to the stage of the next chunk, gradients to that of the one before; one at a time each way.

    Args:
        drawn: the picture.
        row: the stage.
        chunks: how many it has.
        passes: start, end and place of every operation, in order.
    """
    free = {True: 0.0, False: 0.0}
    for _, end, place in passes:
        kind, chunk = row.kinds[place], row.chunk[place]
        if kind == "W":
            continue
        down = kind == "F"
        other, boundary = _next(drawn, row.stage, chunk, chunks, back=not down)
        if other is None or not drawn.sends[boundary]:
            continue
        start = max(end, free[down])
        free[down] = start + drawn.sends[boundary]
        yield Sent(place, down, other, start, free[down])


def _next(
    drawn: Timeline, stage: int, chunk: int, chunks: int, *, back: bool
) -> tuple[int | None, int]:
    """The stage that a pass is handed to, if another, and the boundary that it crosses."""
    count, folded = drawn.num_stages, drawn.folded
    depth = [[stage + count * turn for turn in range(chunks)], [stage, 2 * count - 1 - stage]]
    after = depth[folded][chunk] + (-1 if back else 1)
    if not 0 <= after < count * chunks:
        return None, 0
    turn, place = divmod(after, count)
    other = count - 1 - place if folded and turn % 2 else place
    if other == stage:
        return None, 0
    low, high = min(stage, other), max(stage, other)
    return other, low if high - low == 1 and (folded or (stage < other) != back) else count - 1
