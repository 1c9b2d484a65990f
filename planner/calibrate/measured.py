"""One measured run, to stand beside a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.calibrate.operator_times import operator_times, read_operator_times
from planner.calibrate.profiler import by_activity, is_trace, load_trace
from planner.calibrate.readings import memory_gib, step_seconds
from planner.calibrate.runs import Run, read_runs
from planner.errors import PlannerError
from planner.plan.schema import Plan
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
    operators: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step by the ids of operators, as far as they are known."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """What ran, as far as the row says it, in words: numbers that a plan has as well."""

    @property
    def times(self) -> dict[str, float]:
        """Seconds by the ids of what was measured: the step, and operators."""
        return ({} if self.step is None else {"step": self.step}) | dict(self.operators)


def measured_run(path: Path, plan: Plan) -> MeasuredRun:
    """The run of a file: one row in the format of ``evaluate``, a profiler's trace of one rank, or times of operators.

    Args:
        path: the row in ``.jsonl``, the trace in ``.json`` or ``.json.gz``, the times in ``.csv``.
        plan: beside which it is to stand.

    Raises:
        PlannerError: the file cannot be read (F01), is none of them, or does not hold exactly one run (F02).
    """
    if is_trace(path):
        trace = load_trace(path)
        parts = by_activity(trace)
        times = operator_times(trace, plan)
        return MeasuredRun(step=parts["step"], parts=parts, operators=times)
    if path.suffix == ".csv":
        return MeasuredRun(step=None, operators=read_operator_times(path, plan))
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
