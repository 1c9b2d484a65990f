"""Stages × micro-batches of one step, one path for all operations of a kind on a stage."""

from __future__ import annotations

from itertools import groupby

from markupsafe import Markup

from planner.plan.figures import Timeline, TimelineRow
from planner.report.html.svg import drawing, element, text, ticks
from planner.report.numbers import time_unit
from planner.report.sends import sent
from planner.units import show_seconds

WIDTH, LEFT, TOP = 1000.0, 64.0, 8.0
KINDS = {
    "F": ("forward", "forward"),
    "B": ("backward", "backward"),
    "I": ("backward", "backward, inputs"),
    "W": ("late", "backward, weights"),
}
"""Colours and words of the kinds of operation, by their letters."""
SENDS = ("sends", "sends, hidden ones too")
BREAK, APART = 30.0, 130.0
"""Width of the gap that stands for what is left out, and the room for the words below it."""


def legend(timeline: Timeline) -> list[tuple[str, str]]:
    """Colours and words of the kinds that are drawn."""
    drawn = {letter for row in timeline.rows for letter in row.kinds}
    kinds = [entry for letter, entry in KINDS.items() if letter in drawn]
    return [*kinds, SENDS] if timeline.num_stages > 1 and any(timeline.sends) else kinds


def draw(timeline: Timeline) -> Markup:
    """The drawing; the script finds stages, micro-batches and times in its ``data-`` attributes."""
    rows = timeline.rows
    height = max(10.0, min(26.0, 420.0 / len(rows)))
    gap = 5.0 if height > 14 else 2.0
    room = WIDTH - LEFT - (BREAK if timeline.left_out else 0)
    scale = room / timeline.drawn
    lanes = [
        element(
            "g", *_lane(row, TOP + index * (height + gap), height, scale, timeline),
            _sends(row, TOP + index * (height + gap) + height, gap, scale, timeline),
            class_="lane", data_stage=row.stage,
        )
        for index, row in enumerate(rows)
    ]  # fmt: skip
    labels = [
        text(
            LEFT - 8, TOP + i * (height + gap) + height / 2 + 4, f"stage {row.stage}", "axis", "end"
        )
        for i, row in enumerate(rows)
    ]
    bottom = TOP + len(rows) * (height + gap)
    clip = element("clipPath", element("rect", x=LEFT, y=0, width=WIDTH - LEFT, height=bottom + 30),
                   id="timeline-clip")  # fmt: skip
    moving = element(
        "g", *lanes, *_gap(timeline, scale, bottom), *_axis(timeline, scale, bottom), id="timeline-moving"
    )  # fmt: skip
    inside = element("g", moving, clip_path="url(#timeline-clip)")
    words = (
        f"Timeline of {timeline.num_stages} stages and {timeline.num_micro_batches} micro-batches"
    )
    return drawing("timeline-drawing", WIDTH, bottom + 26, words, clip, *labels, inside)


def _x(seconds: float, scale: float, timeline: Timeline) -> float:
    behind = timeline.left_out and seconds >= timeline.left_out_at
    return LEFT + seconds * scale + (BREAK if behind else 0)


def _lane(
    row: TimelineRow, y: float, height: float, scale: float, timeline: Timeline
) -> list[Markup]:
    """One stage: its waiting as a bed, its operations as one path for each kind and parity of the chunk."""
    width = timeline.drawn * scale + (BREAK if timeline.left_out else 0)
    bed = element("rect", x=LEFT, y=y, width=width, height=height, class_="bed")
    order = sorted(
        range(len(row.kinds)), key=lambda i: (row.kinds[i], row.chunk[i] % 2, row.start[i])
    )
    paths = []
    for (kind, odd), places in groupby(order, key=lambda i: (row.kinds[i], row.chunk[i] % 2)):
        mine = list(places)
        spans = [_span(row, i, scale, timeline) for i in mine]
        shape = "".join(f"M{x:.5g} {y:.5g}h{w:.3g}v{height:.3g}h-{w:.3g}z" for x, w in spans)
        color, words = KINDS[kind]
        paths.append(
            element(
                "path", d=shape, class_=f"op {color}{' odd' if odd else ''}", data_kind=words,
                data_micro=" ".join(str(row.micro_batch[i]) for i in mine),
                data_chunk=" ".join(str(row.chunk[i]) for i in mine) if len(row.seconds["F"]) > 1 else None,
            )
        )  # fmt: skip
    return [bed, *paths]


def _sends(row: TimelineRow, y: float, room: float, scale: float, timeline: Timeline) -> Markup:
    """What a stage sends, as a strip below it."""
    ends = (
        start + row.seconds[k][c]
        for start, k, c in zip(row.start, row.kinds, row.chunk, strict=True)
    )
    passes = [
        (start, end, place) for place, (start, end) in enumerate(zip(row.start, ends, strict=True))
    ]
    shape, height = "", 0.6 * room
    for each in sent(timeline, row, len(row.seconds["F"]), passes):
        left, right = _x(each.start, scale, timeline), _x(each.end, scale, timeline)
        shape += f"M{left:.5g} {y + 0.2 * room:.5g}h{max(right - left, 0.05):.3g}v{height:.3g}H{left:.5g}z"
    return element("path", d=shape, class_="sends") if shape else Markup()


def _span(row: TimelineRow, i: int, scale: float, timeline: Timeline) -> tuple[float, float]:
    """Left edge and width; an operation that the gap cuts goes on behind it."""
    start, seconds = row.start[i], row.seconds[row.kinds[i]][row.chunk[i]]
    left, right = _x(start, scale, timeline), _x(start + seconds, scale, timeline)
    return left, max(right - left, 0.05)


def _gap(timeline: Timeline, scale: float, bottom: float) -> list[Markup]:
    """A torn strip over what is left out."""
    if not timeline.left_out:
        return []
    x = LEFT + timeline.left_out_at * scale
    middle = x + BREAK / 2
    shown = (
        f"{timeline.left_out:,} more in the same rhythm, {show_seconds(timeline.left_out_seconds)}"
    )
    label = text(middle, bottom + 18, shown, "torn", "middle")
    return [element("rect", x=x, y=0.0, width=BREAK, height=bottom + 2, class_="torn-strip"), label]


def _axis(timeline: Timeline, scale: float, bottom: float) -> list[Markup]:
    """Seconds since the start of the step, round ones on both sides of the gap."""
    size, unit = time_unit(timeline.makespan)
    step = (ticks(timeline.drawn / size, 9)[1:2] or [timeline.drawn / size])[0]
    middle = LEFT + timeline.left_out_at * scale + BREAK / 2
    found = []
    for count in range(int(timeline.makespan / size / step * (1 + 1e-9)) + 1):
        seconds = count * step * size
        if timeline.left_out_at < seconds < timeline.left_out_at + timeline.left_out_seconds:
            continue
        later = timeline.left_out_seconds if seconds > timeline.left_out_at else 0.0
        x = _x(seconds - later, scale, timeline)
        if x > WIDTH - 30 or (timeline.left_out and abs(x - middle) < APART):
            continue
        found.append(element("path", d=f"M{x:.1f} {bottom:.1f}v5", class_="tick"))
        anchor = "start" if count == 0 else "middle"
        found.append(text(x, bottom + 18, f"{count * step:.4g} {unit}", "axis", anchor))
    return found
