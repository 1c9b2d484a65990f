"""How much of a chip's memory a plan may use."""

from __future__ import annotations

from planner.errors import PlannerError
from planner.hardware.chip import Chip
from planner.units import GIB, show_bytes


def memory_limit(text: str | None, chip: Chip) -> float:
    """Bytes a chip: all that is usable, a share of it, or GiB, never more than there is."""
    usable = chip.memory_bytes
    if text is None:
        return usable
    number = text.strip().removesuffix("%").lower().removesuffix("gib").strip()
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    limit = usable * value / 100 if text.strip().endswith("%") else value * GIB
    if limit <= 0 or limit != limit:
        raise PlannerError.of(
            "L01",
            f"--memory-limit '{text}' is not understood.",
            "Write it in GiB like 76, or like 90%.",
        )
    if limit > usable * (1 + 1e-9):
        raise PlannerError.of(
            "L01",
            f"--memory-limit {text} is more than {chip.name} has.",
            f"Usable are {show_bytes(usable)} a chip.",
        )
    return limit
