"""What a report draws besides the answer: computed only where one is asked for, since it takes longer than the answer.

Long lists stand in columns, so that a plan with figures stays small.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.plan.part import Part


class TimelineRow(Part):
    """What one pipeline stage executes, from left to right; columns of equal length."""

    stage: int
    kinds: str
    """One letter an operation: ``F`` forward, ``B`` backward; ``I`` and ``W`` where the gradient of the input comes
    first and those of the weights later."""
    chunk: tuple[int, ...]
    """Model chunk of the stage, 0 is nearest to the input."""
    micro_batch: tuple[int, ...]
    start: tuple[float, ...]
    """Seconds from the start of the step, those left out not counted; to a millionth of the picture."""
    seconds: dict[str, tuple[float, ...]]
    """How long an operation takes, by its letter, for each chunk."""
    held: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Bytes by which activations grow with an operation, by its letter, for each chunk; less than 0 where it ends."""
    always: float = 0.0
    """Bytes that are there all the time."""
    hidden: float = 0.0
    """Seconds of reducing gradients behind the last backward pass."""
    exposed: float = 0.0
    """Seconds of reducing gradients, and gathering weights, after it."""
    update: float = 0.0
    """Seconds of the optimizer."""


class Timeline(Part):
    """Stages × micro-batches of one step. Its repeating middle may be left out: every period is like the one shown."""

    makespan: float
    """Seconds from the first forward to the last backward, all micro-batches."""
    drawn: float
    """Seconds of the picture: the makespan without what is left out."""
    rows: tuple[TimelineRow, ...]
    """All stages, or the first, the last, and some between where they are many."""
    num_stages: int
    num_micro_batches: int
    sends: tuple[float, ...] = ()
    """Seconds of a send over the boundary behind every stage, hidden ones included; the last leads to the first."""
    folded: bool = False
    """The two chunks of every stage stand in a V."""
    left_out: int = 0
    """Micro-batches in the part that is not drawn."""
    left_out_at: float = 0.0
    """Where in the picture that part belongs, seconds."""
    left_out_seconds: float = 0.0
    """How long it takes."""


class AxisPlace(Part):
    """Where a mesh axis lies on the network."""

    axis: str
    size: int
    stride: int
    """Chips from one rank to the next."""
    members: tuple[int, ...]
    """Ranks that each level joins, innermost first; their product is ``size``."""


class Landscape(Part):
    """Layouts that the rules allow, each priced exactly: columns of equal length, fastest first.

    Where there are too many, the fastest of each small field of the picture stand for their neighbours.
    """

    step: tuple[float, ...]
    memory: tuple[float, ...]
    """Bytes on the fullest chip, the median."""
    dp: tuple[int, ...]
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]
    vpp: tuple[int, ...]
    micro_batch: tuple[int, ...]
    recompute: tuple[str, ...]
    front: tuple[int, ...]
    """Places of those that no other is faster than with less memory, fastest first."""
    fits: tuple[bool, ...]
    """Whether each is within the limit in nine of ten runs."""
    allowed: int
    """Layouts that the rules allow."""
    near: int
    """Of these, how many lie within the picture."""
    most_step: float
    """Right edge of the picture, seconds."""
    most_memory: float
    """Its upper edge, bytes."""


class Sensitivity(Part):
    """What the step would be if one number of the hardware were another."""

    name: str
    """Stable id, such as ``chip.peak`` or ``node.bandwidth``."""
    label: str
    share: float
    """By how much the number is changed, down and up: 0.2; an efficiency rises to 1 at most."""
    low: float | None
    """Seconds with the number lowered; None where nothing fits."""
    high: float | None
    """Seconds with the number raised."""
    searched: bool = False
    """The best layout was searched anew; otherwise the plan's own was priced again."""


class Traffic(Part):
    """All collectives of one kind over one axis."""

    axis: str
    kind: str
    phase: str
    calls: int
    """How many: of one micro-batch through all layers, or of one step for gradients and gathered states."""
    bytes: float
    """Of their full buffers as nccl-tests counts them, together."""
    seconds: float
    """Of all of them together."""
    exposed: float
    """Seconds that nothing hides; of gradients and states this is known for the step only (``step.gradients``)."""
    each: Literal["micro-batch", "step"]


class RuleCost(Part):
    """What the plan would gain without one rule."""

    rule: str
    alone: int
    """Layouts that only this rule keeps out."""
    best: float | None
    """Step of the best of them, seconds; None where none can run and fit."""
    note: str
    """Why there is none; empty where there is one."""
    stopped: bool = False
    """Time ran out: there may be a better one."""


class Source(Part):
    """Where a number comes from."""

    key: str
    text: str


class Figures(Part):
    """What a report draws besides the answer."""

    roofline: float
    """Seconds that the model's FLOPs take at the data sheet's peak of the chips used."""
    timeline: Timeline
    axes: tuple[AxisPlace, ...]
    """From innermost to outermost; the expert axes after them."""
    traffic: tuple[Traffic, ...]
    """Longest first."""
    sensitivities: tuple[Sensitivity, ...]
    """Largest effect first."""
    landscape: Landscape | None
    """None where nothing was searched."""
    rules: tuple[RuleCost, ...]
    """Of the memory limit and the rules that removed most; empty where nothing was searched."""
    sources: tuple[Source, ...]
    """Of the hardware's numbers."""
