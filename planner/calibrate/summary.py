"""An evaluation as plain data: totals, errors by group, chip or trainer, and every row."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from planner.calibrate.evaluate import Evaluation, RowResult
from planner.calibrate.metrics import Outcomes, Spread, Sweep, by, outcomes, spread, sweeps
from planner.units import Json

KEYS = ("group", "chip", "trainer", "software")
"""What errors can be split by."""
ROW_FIELDS = (
    "id", "group", "chip", "trainer", "software", "quality", "judged",
    "predicted_step_seconds", "measured_step_seconds", "measured_from", "step_error",
    "predicted_memory_gib", "measured_memory_gib", "memory_kind", "memory_error",
    "predicted_total_gib", "predicted_fits", "measured_fits",
    "assumed", "broken_rules", "skipped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Errors:
    """How far off some rows are."""

    step: Spread | None
    memory: Spread | None
    outcomes: Outcomes


@dataclass(frozen=True, slots=True)
class Ranking:
    """Order of layouts over all sweeps."""

    sweeps: tuple[Sweep, ...]

    @property
    def rank_correlation(self) -> float | None:
        """Mean over sweeps; None without any."""
        return _mean([sweep.rank_correlation for sweep in self.sweeps])

    @property
    def regret(self) -> float | None:
        return _mean([sweep.regret for sweep in self.sweeps])

    @property
    def worst_regret(self) -> float | None:
        return max((sweep.regret for sweep in self.sweeps), default=None)


@dataclass(frozen=True, slots=True)
class Summary:
    """What an evaluation says as a whole; totals count rows that are complete and of quality A or B."""

    rows: int
    priced: int
    judged: int
    skipped: dict[str, int]
    """Rows by the reason why they were not priced."""
    total: Errors
    parts: dict[str, dict[str, Errors]]
    """By ``group``, ``chip``, … then by its value."""
    ranking: Ranking

    @property
    def gate(self) -> float | None:
        """The error that a limit is compared with: that of the step, of memory where no step was measured."""
        judged = self.total.step or self.total.memory
        return None if judged is None else judged.mean


def errors_of(rows: Sequence[RowResult]) -> Errors:
    """Both errors and the outcomes of some rows."""
    return Errors(spread(rows, "step"), spread(rows, "memory"), outcomes(rows))


def summarise(evaluation: Evaluation, keys: Sequence[str] = ()) -> Summary:
    """Totals, and the same split by some of ``KEYS``."""
    judged = evaluation.judged
    reasons = Counter(row.skipped for row in evaluation.rows if row.skipped is not None)
    return Summary(
        rows=len(evaluation.rows),
        priced=len(evaluation.priced),
        judged=len(judged),
        skipped=dict(reasons.most_common()),
        total=errors_of(judged),
        parts={
            key: {name: errors_of(rows) for name, rows in by(judged, key).items()} for key in keys
        },
        ranking=Ranking(sweeps(judged)),
    )


def as_json(evaluation: Evaluation, summary: Summary) -> dict[str, Json]:
    """Everything as plain data."""
    ranking = summary.ranking
    return {
        "rows": [_row(row) for row in evaluation.rows],
        "summary": {
            "rows": summary.rows,
            "priced": summary.priced,
            "judged": summary.judged,
            "skipped": summary.skipped,
            "total": _errors(summary.total),
            "by": {
                key: {name: _errors(errors) for name, errors in parts.items()}
                for key, parts in summary.parts.items()
            },
            "ranking": {
                "sweeps": [asdict(sweep) for sweep in ranking.sweeps],
                "rank_correlation": ranking.rank_correlation,
                "regret": ranking.regret,
                "worst_regret": ranking.worst_regret,
            },
        },
    }


def as_csv(evaluation: Evaluation) -> str:
    """Every row as a line of comma-separated values."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(ROW_FIELDS)
    for row in evaluation.rows:
        writer.writerow([_cell(value) for value in _row(row).values()])
    return stream.getvalue()


def _row(row: RowResult) -> dict[str, Json]:
    values = {name: getattr(row, name) for name in ROW_FIELDS}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _cell(value: Json) -> Json:
    return "; ".join(value) if isinstance(value, list) else value


def _errors(errors: Errors) -> dict[str, Json]:
    found = errors.outcomes
    return {
        "step": errors.step and asdict(errors.step),
        "memory": errors.memory and asdict(errors.memory),
        "fits": asdict(found)
        | {
            "right": found.right,
            "right_of_fits": found.right_of_fits,
            "right_of_ooms": found.right_of_ooms,
        },
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
