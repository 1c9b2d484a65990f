"""What a stated layout left open: how it was filled in, and what the trainer would do by itself."""

from __future__ import annotations

from pydantic import Field

from planner.plan.degrees import Degrees
from planner.plan.part import Part


class Usual(Part):
    """A stated layout where everything left open has the value that the trainer takes by itself."""

    degrees: Degrees
    step: float
    """Seconds."""
    mfu: float
    """As the plan's own."""
    memory: float
    """Bytes on the fullest chip, the median."""
    fits: bool


class LeftOpen(Part):
    """How what a layout left open was chosen: the fastest that fits; where nothing does, what needs least memory."""

    chosen: dict[str, int | str] = Field(default_factory=dict)
    """What could have been otherwise, in the words of a layout: ``{"mbs": 1, "vpp": 4}``."""
    usual: Usual | None = None
    """None where the trainer would do the same by itself, or its own values cannot run."""
    refused: str = ""
    """Why the trainer's own values cannot run, where they cannot."""
