"""Predictions beside measurements: every row of a file priced as it was run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from planner.calibrate.on_pools import placed
from planner.calibrate.own_cluster import case_on, case_on_pools, profile
from planner.calibrate.readings import KINDS, Kind, features, fits, memory_gib, step_seconds
from planner.calibrate.row_task import Case, case_of
from planner.calibrate.runs import Run, read_runs
from planner.calibrate.shapes import NotPricedError
from planner.candidates import concatenate
from planner.cost.cut import uniform
from planner.cost.memory import TERMS, StageMemory
from planner.cost.prices import Prices, as_stated, prices, with_cut
from planner.cost.states import state_bytes
from planner.cost.step import makespans, memory_of_stages, shapes, stage_times
from planner.cost.step import step_seconds as step_of
from planner.frontends.pools_file import read_pools
from planner.hardware.cluster import Cluster
from planner.hardware.pools import Pools
from planner.recipe import MOMENT_BYTES
from planner.trainers.trust import upper
from planner.units import GIB, Array, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One row: what was predicted, what was measured."""

    id: str
    group: str
    quality: str
    judged: bool
    """Whether the totals count it."""
    chip: str
    trainer: str
    software: str
    family: str = ""
    """Generation of the chip."""
    predicted_step_seconds: float | None = None
    measured_step_seconds: float | None = None
    measured_from: str = ""
    """Field of the row that the measured step comes from."""
    step_error: float | None = None
    """Predicted over measured, minus 1."""
    predicted_memory_gib: float | None = None
    measured_memory_gib: float | None = None
    memory_kind: Kind | None = None
    memory_error: float | None = None
    predicted_total_gib: float | None = None
    """Median of what the chip's memory must hold; the verdict compares its upper quantile."""
    predicted_fits: bool | None = None
    measured_fits: bool | None = None
    assumed: tuple[str, ...] = ()
    broken_rules: tuple[str, ...] = ()
    skipped: str | None = None
    """Why it was not priced; None for a row that was."""
    features: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All rows of a file."""

    rows: tuple[RowResult, ...]

    @property
    def priced(self) -> tuple[RowResult, ...]:
        """Rows that have a prediction."""
        return tuple(row for row in self.rows if row.skipped is None)

    @property
    def judged(self) -> tuple[RowResult, ...]:
        """Rows that the totals count."""
        return tuple(row for row in self.priced if row.judged)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the cost model says of one case."""

    step: float
    memory: Mapping[Kind, float]
    """Bytes by kind of reading."""
    limit: float = np.inf
    """Bytes of the chip that ``memory`` is of, where chips differ."""


def evaluate(path: Path | str, cluster: Cluster | str | None = None) -> Evaluation:
    """Price every run of a file as it was run and set it beside the measurement.

    Args:
        path: the runs.
        cluster: what they ran on, as ``--cluster`` names it; None for what each row says of its chip and network.

    Raises:
        PlannerError: the file cannot be read, or lines of it are no runs.
    """
    own = (read_pools(cluster) or profile(cluster)) if isinstance(cluster, str) else cluster
    return evaluate_runs(read_runs(Path(path)), own)


def evaluate_runs(runs: Sequence[Run], cluster: Cluster | Pools | None = None) -> Evaluation:
    """The same for runs that were read already."""
    cases: dict[str, Case] = {}
    skipped: dict[str, str] = {}
    for run in runs:
        try:
            if isinstance(cluster, Pools):
                cases[run.id] = case_on_pools(run, cluster)
            else:
                cases[run.id] = case_of(run) if cluster is None else case_on(run, cluster)
        except NotPricedError as reason:
            skipped[run.id] = str(reason)
    found = dict(zip(cases, predict(tuple(cases.values())), strict=True))
    rows = tuple(
        _skipped(run, skipped[run.id])
        if run.id in skipped
        else _result(cases[run.id], found[run.id])
        for run in runs
    )
    return Evaluation(rows)


def predict(cases: Sequence[Case]) -> list[Predicted]:
    """Price cases; those of one task share one table of candidates."""
    members: dict[object, list[int]] = defaultdict(list)
    found: dict[int, Predicted] = {}
    for index, case in enumerate(cases):
        task = case.task
        if case.pools or case.division:
            found[index] = predict_case(case)
            continue
        key = (id(task.model), task.cluster, task.recipe, task.trainer.name, task.cut)
        members[key].append(index)
    for indices in members.values():
        table = concatenate([cases[index].layout for index in indices])
        priced = predict_rows(prices(cases[indices[0]].task, table))
        found |= dict(zip(indices, priced, strict=True))
    return [found[index] for index in range(len(cases))]


def predict_case(case: Case) -> Predicted:
    """A run whose stages are listed, or stand on chips of several kinds."""
    limits = None
    if case.pools:
        found = placed(case.task, case.layout, case.pools)
        p, limits = found.prices, found.limits
    else:
        p = prices(case.task, case.layout)
    if case.division:
        p = with_cut(p, uniform(np.array(case.division), int(case.layout.recompute[0])))
    return predict_rows(p, limits)[0]


def predict_rows(p: Prices, limits: Array | None = None) -> list[Predicted]:
    """Step and memory by kind of reading for all candidates of a task.

    Args:
        p: the candidates.
        limits: bytes of the chips of each stage, where they differ: memory is then that of the fullest for its size.
    """
    n = len(p.rows)
    step = np.empty(n)
    memory: dict[Kind, Array] = {kind: np.empty(n) for kind in KINDS}
    for index in shapes(p):
        part = as_stated(p.take(index))
        times = stage_times(part)
        step[index] = step_of(part, times, makespans(part, times))
        for kind in KINDS:
            kept = memory_of_stages(_as_read(part, kind), times.blocks)
            total = _first_step(part, kept) if kind == "first-step" else kept.total
            fullest = total.argmax(axis=1) if limits is None else (total / limits).argmax(axis=1)
            memory[kind][index] = total[np.arange(len(index)), fullest]
    limit = np.inf if limits is None else float(limits[fullest[0]])
    return [
        Predicted(float(step[i]), {kind: float(memory[kind][i]) for kind in KINDS}, limit)
        for i in range(n)
    ]


def _first_step(p: Prices, kept: StageMemory) -> Array:
    """Peak of the first step: activations without moments, or all states without activations."""
    weights, gradients, optimizer = (kept.parts[..., TERMS.index(k)] for k in TERMS[:3])
    share = MOMENT_BYTES[p.task.recipe.optimizer] / state_bytes(p.task).optimizer
    return np.maximum(kept.total - share * optimizer, weights + gradients + optimizer)


def _as_read(p: Prices, kind: Kind) -> Prices:
    """The same candidates where memory counts only what a kind of reading sees."""
    memory = p.task.trainer.memory
    if kind != "driver":
        memory = replace(memory, runtime_bytes=0.0)
    if kind in ("allocated", "first-step"):
        memory = replace(memory, fragmentation=1.0)
    mix = p.mix and replace(p.mix, parts=tuple(_as_read(part, kind) for part in p.mix.parts))
    return replace(p, task=replace(p.task, trainer=replace(p.task.trainer, memory=memory)), mix=mix)


def _result(case: Case, predicted: Predicted) -> RowResult:
    run = case.run
    step, source = step_seconds(run)
    memory, kind = memory_gib(run)
    expected = predicted.memory[kind] / GIB
    total = predicted.memory["driver"]
    return RowResult(
        id=run.id,
        group=run.group,
        quality=run.quality,
        judged=run.judged,
        chip=" + ".join(pool.chip.name for pool in case.pools or (case.task.cluster,)),
        trainer=case.software.trainer.name,
        software=case.software.name,
        family=case.task.cluster.chip.family,
        predicted_step_seconds=predicted.step,
        measured_step_seconds=step,
        measured_from=source,
        step_error=None if step is None else predicted.step / step - 1.0,
        predicted_memory_gib=expected,
        measured_memory_gib=memory,
        memory_kind=kind if memory is not None else None,
        memory_error=None if memory is None else expected / memory - 1.0,
        predicted_total_gib=total / GIB,
        predicted_fits=total * upper(case.software.trainer.name)
        <= min(case.task.memory_limit, predicted.limit),
        measured_fits=fits(run),
        assumed=case.assumed,
        broken_rules=case.broken,
        features=features(case),
    )


def _skipped(run: Run, reason: str) -> RowResult:
    step, source = step_seconds(run)
    memory, kind = memory_gib(run)
    return RowResult(
        id=run.id,
        group=run.group,
        quality=run.quality,
        judged=run.judged,
        chip=run.hardware.chip_key or "",
        trainer="",
        software=run.parallel.framework or "",
        measured_step_seconds=step,
        measured_from=source,
        measured_memory_gib=memory,
        memory_kind=kind if memory is not None else None,
        measured_fits=fits(run),
        skipped=reason,
    )
