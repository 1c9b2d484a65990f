"""One measured run, to stand beside a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.calibrate.profiler import is_trace, read_trace
from planner.calibrate.readings import memory_gib, step_seconds
from planner.calibrate.runs import Run, read_runs
from planner.errors import PlannerError
from planner.units import GIB


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What was measured of a run."""

    step: float | None
    """Seconds."""
    memory: float | None = None
    """Bytes on the fullest chip."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step, as :func:`planner.plan.tree.by_activity` divides it; empty where nobody looked."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """What ran, as far as the row says it, in words: numbers that a plan has as well."""


def measured_run(path: Path) -> MeasuredRun:
    """The run of a file: one row in the format of ``evaluate``, or a profiler's trace of one rank.

    Raises:
        PlannerError: the file cannot be read (F01), is neither, or does not hold exactly one run (F02).
    """
    if is_trace(path):
        parts = read_trace(path)
        return MeasuredRun(step=parts["step"], parts=parts)
    runs = read_runs(path)
    if len(runs) != 1:
        raise PlannerError.of(
            "F02",
            f"{path} holds {len(runs)} runs; one run stands beside a plan.",
            f"Many runs: shardwright evaluate {path}",
        )
    memory, _ = memory_gib(runs[0])
    return MeasuredRun(
        step=step_seconds(runs[0])[0],
        memory=None if memory is None else memory * GIB,
        facts=_facts(runs[0]),
    )


def _facts(run: Run) -> dict[str, int]:
    said = {
        "chips": run.hardware.num_chips,
        "global batch": run.parallel.global_batch,
        "seq": run.model.seq,
        "tp": run.parallel.tp,
        "pp": run.parallel.pp,
    }
    return {word: number for word, number in said.items() if number is not None}
