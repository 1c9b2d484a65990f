"""The page of an evaluation: totals, errors by part, order of layouts, the rows that are furthest off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.calibrate.evaluate import Evaluation, RowResult
from planner.calibrate.metrics import Outcomes, Spread, worst
from planner.calibrate.summary import Errors, Ranking, Summary
from planner.report.tables import BLANK, Column, Line, flow, styled, table
from planner.units import show_seconds

MOST_PARTS = 40
"""Lines of one split; the rest is in ``--format json``."""
NONE = "–"


def page(evaluation: Evaluation, summary: Summary, top: int, width: int) -> list[Line]:
    """All of it, in reading order."""
    lines = _head(summary, width)
    lines += [BLANK, *_parts("", {"total": summary.total}, width)]
    for key, parts in summary.parts.items():
        lines += [BLANK, *_parts(key, parts, width)]
    if summary.ranking.sweeps:
        lines += [BLANK, *_ranking(summary.ranking)]
    found = worst(evaluation.judged, top)
    if found:
        lines += [BLANK, *styled(["  Furthest off"], "head"), *_rows(found, width)]
    return lines


def _head(summary: Summary, width: int) -> list[Line]:
    runs = "1 run" if summary.rows == 1 else f"{summary.rows:,} runs"
    first = f"{runs}: {summary.priced:,} priced, {summary.judged:,} of them judged"
    lines = styled(flow([f"{first} (complete, quality A or B)."], " ", width, "  ", 2))
    if summary.skipped:
        lines += styled(["  Not priced:"], "dim")
        lines += styled(
            [f"  {count:6,}  {reason}" for reason, count in list(summary.skipped.items())[:12]],
            "dim",
        )
    return lines


def _parts(key: str, parts: Mapping[str, Errors], width: int) -> list[Line]:
    """A table of errors; the largest come first where there are too many lines."""
    items = list(parts.items())
    if len(items) > MOST_PARTS:
        items = sorted(items, key=lambda item: -(item[1].step.mean if item[1].step else 0.0))
        items = items[:MOST_PARTS]
    steps, memories = [e.step for _, e in items], [e.memory for _, e in items]
    fits = [e.outcomes for _, e in items]
    columns = [
        Column(heading=key, cells=[name[:44] for name, _ in items], left=True),
        Column(heading="groups", cells=[_count(s) for s in steps], drop=4),
        Column(heading="step error", cells=[_percent(_part(s, "mean")) for s in steps]),
        Column(heading="median", cells=[_percent(_part(s, "median")) for s in steps], drop=3),
        Column(heading="bias", cells=[_signed(_part(s, "bias")) for s in steps]),
        Column(heading="≤ 15 %", cells=[_percent(_part(s, "close"), 0) for s in steps], drop=2),
        Column(heading="memory error", cells=[_percent(_part(m, "mean")) for m in memories]),
        Column(heading="bias", cells=[_signed(_part(m, "bias")) for m in memories], drop=5),
        Column(heading="fit right", cells=[_outcome(f) for f in fits], drop=1),
    ]
    return table(columns, width)


def _ranking(ranking: Ranking) -> list[Line]:
    text = (
        f"  {len(ranking.sweeps)} sweeps of layouts: rank correlation "
        f"{ranking.rank_correlation or 0.0:.2f}, regret {_percent(ranking.regret)}"
        f" on average, {_percent(ranking.worst_regret)} at worst."
    )
    return styled([text])


def _rows(rows: Sequence[RowResult], width: int) -> list[Line]:
    return table(
        [
            Column(heading="run", cells=[row.id[:56] for row in rows], left=True),
            Column(heading="predicted", cells=[_time(r.predicted_step_seconds) for r in rows]),
            Column(heading="measured", cells=[_time(r.measured_step_seconds) for r in rows]),
            Column(heading="error", cells=[_signed(row.step_error) for row in rows]),
            Column(heading="chip", cells=[row.chip for row in rows], left=True, drop=1),
        ],
        width,
    )


def _time(value: float | None) -> str:
    return NONE if value is None else show_seconds(value)


def _count(errors: Spread | None) -> str:
    return NONE if errors is None else str(errors.groups)


def _part(errors: Spread | None, name: str) -> float | None:
    return None if errors is None else float(getattr(errors, name))


def _percent(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{100 * value:.{digits}f} %"


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:+.1f} %"


def _outcome(found: Outcomes) -> str:
    """Right verdicts of all, where some run did not fit."""
    total = found.fit_fit + found.fit_oom + found.oom_fit + found.oom_oom
    return f"{found.fit_fit + found.oom_oom} of {total}" if total else NONE
