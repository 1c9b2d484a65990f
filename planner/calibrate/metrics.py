"""How far off: errors averaged over groups, outcomes of fit or not, order of layouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from planner.calibrate.evaluate import RowResult

Quantity: TypeAlias = Literal["step", "memory"]
LEAST_LAYOUTS = 4
"""Layouts of one model on one cluster that a sweep must have to be ranked."""
EQUAL = 1e-9
"""Relative difference below which two prices are one."""
CLOSE = 0.15
"""Error below which a group counts as close."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Errors of one quantity over some rows; relative errors are predicted over measured, minus 1."""

    rows: int
    groups: int
    mean: float
    """Absolute relative error: mean within each group, then over groups."""
    median: float
    """Median within each group, then the mean over groups."""
    median_group: float
    """The middle group's mean."""
    bias: float
    """Signed: mean within each group, then over groups."""
    close: float
    """Share of groups whose mean is within ``CLOSE``."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Fitted or not, predicted and measured."""

    fit_fit: int
    """Predicted to fit, and fitted."""
    fit_oom: int
    """Predicted to fit, and did not."""
    oom_fit: int
    oom_oom: int

    @property
    def right(self) -> float | None:
        return _share(self.fit_fit + self.oom_oom, self.fit_oom + self.oom_fit)

    @property
    def right_of_fits(self) -> float | None:
        return _share(self.fit_fit, self.oom_fit)

    @property
    def right_of_ooms(self) -> float | None:
        return _share(self.oom_oom, self.fit_oom)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Many layouts of one model on one cluster."""

    group: str
    layouts: int
    rank_correlation: float
    """Spearman."""
    regret: float
    """Measured time of the layout that we rank first over the best measured, minus 1; the mean where several are priced
    alike."""


def error_of(row: RowResult, quantity: Quantity) -> float | None:
    """The relative error of a row."""
    return row.step_error if quantity == "step" else row.memory_error


def spread(rows: Iterable[RowResult], quantity: Quantity) -> Spread | None:
    """Errors within groups, then over groups; None where nothing was measured."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        error = error_of(row, quantity)
        if error is not None:
            groups[row.group or row.id].append(error)
    if not groups:
        return None
    means = np.array([np.mean(np.abs(errors)) for errors in groups.values()])
    return Spread(
        rows=sum(len(errors) for errors in groups.values()),
        groups=len(groups),
        mean=float(means.mean()),
        median=float(np.mean([np.median(np.abs(errors)) for errors in groups.values()])),
        median_group=float(np.median(means)),
        bias=float(np.mean([np.mean(errors) for errors in groups.values()])),
        close=float(np.mean(means <= CLOSE)),
    )


def outcomes(rows: Iterable[RowResult]) -> Outcomes:
    """Counts of fitted or not; rows without an outcome do not count."""
    counts: dict[tuple[bool, bool], int] = defaultdict(int)
    for row in rows:
        if row.predicted_fits is not None and row.measured_fits is not None:
            counts[row.predicted_fits, row.measured_fits] += 1
    return Outcomes(
        fit_fit=counts[True, True],
        fit_oom=counts[True, False],
        oom_fit=counts[False, True],
        oom_oom=counts[False, False],
    )


def sweeps(rows: Iterable[RowResult]) -> tuple[Sweep, ...]:
    """Rank correlation and regret of every set of layouts that are alternatives for one another."""
    return tuple(_sweep(members) for members in questions(rows))


def questions(rows: Iterable[RowResult]) -> tuple[list[RowResult], ...]:
    """Rows that are alternatives for one another: one model, batch and cluster, at least ``LEAST_LAYOUTS`` layouts."""
    sets: dict[tuple[object, ...], list[RowResult]] = defaultdict(list)
    for row in rows:
        if row.step_error is not None:
            sets[_question(row)].append(row)
    return tuple(members for members in sets.values() if len(_layouts(members)) >= LEAST_LAYOUTS)


def by(rows: Iterable[RowResult], key: str) -> dict[str, list[RowResult]]:
    """Rows by ``group``, ``chip``, ``trainer`` or ``software``, in the order of names."""
    found: dict[str, list[RowResult]] = defaultdict(list)
    for row in rows:
        found[str(getattr(row, key))].append(row)
    return dict(sorted(found.items()))


def worst(rows: Iterable[RowResult], count: int, quantity: Quantity = "step") -> list[RowResult]:
    """The rows with the largest errors, as a ratio either way."""
    size: Callable[[RowResult], float] = lambda row: abs(  # noqa: E731
        float(np.log1p(max(error_of(row, quantity) or 0.0, -0.999)))
    )
    measured = [row for row in rows if error_of(row, quantity) is not None]
    return sorted(measured, key=size, reverse=True)[:count]


def _question(row: RowResult) -> tuple[object, ...]:
    """What two rows share that are answers to one question."""
    facts = row.features
    shape = ("params_b", "layers", "hidden", "seq", "chips", "precision")
    batch = facts["micro_batches"] * facts["micro_batch"] * facts["dp"]
    return (row.group, batch, *(facts[key] for key in shape))


def _layouts(rows: Sequence[RowResult]) -> set[tuple[object, ...]]:
    keys = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "sharding", "recompute", "sp")
    return {tuple(row.features[key] for key in keys) for row in rows}


def _sweep(rows: Sequence[RowResult]) -> Sweep:
    predicted = np.array([row.predicted_step_seconds for row in rows], dtype=np.float64)
    measured = np.array([row.measured_step_seconds for row in rows], dtype=np.float64)
    chosen = float(measured[predicted <= predicted.min() * (1.0 + EQUAL)].mean())
    return Sweep(
        group=rows[0].group,
        layouts=len(rows),
        rank_correlation=rank_correlation(predicted, measured),
        regret=chosen / float(measured.min()) - 1.0,
    )


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's: the correlation of ranks, equal values sharing the mean of theirs."""
    ranks = [_ranks(values) for values in (one, other)]
    centred = [rank - rank.mean() for rank in ranks]
    scale = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum() / scale) if scale else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[index], dtype=np.float64)


def _share(right: int, wrong: int) -> float | None:
    return right / (right + wrong) if right + wrong else None
