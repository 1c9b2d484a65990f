"""One measured run, to stand beside a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planner.calibrate.readings import memory_gib, step_seconds
from planner.calibrate.runs import read_runs
from planner.errors import PlannerError
from planner.units import GIB


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What was measured of a run."""

    name: str
    step: float | None
    """Seconds."""
    memory: float | None
    """Bytes on the fullest chip."""


def measured_run(path: Path) -> MeasuredRun:
    """The one run of a file in the row format of ``evaluate``.

    Raises:
        PlannerError: the file cannot be read (F01), a line is no run, or there is not exactly one (F02).
    """
    runs = read_runs(path)
    if len(runs) != 1:
        raise PlannerError.of(
            "F02", f"{path} holds {len(runs)} runs; one run stands beside a plan.",
            f"Many runs: shardwright evaluate {path}",
        )  # fmt: skip
    memory, _ = memory_gib(runs[0])
    return MeasuredRun(
        name=runs[0].id,
        step=step_seconds(runs[0])[0],
        memory=None if memory is None else memory * GIB,
    )
