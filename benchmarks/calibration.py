"""What a few measured runs of one's own are worth: on every sweep of layouts, some runs given, the error of the others.

    python -m benchmarks.calibration             # one, three and five runs given
    python -m benchmarks.calibration --write     # the table into benchmarks/README.md

A sweep is a set of layouts of one model and batch on one cluster. Each of its runs is given alone, whichever it is;
then three and five at a time, from up to six places spread over the file's order. Only the other runs count. How wide
priors are is told by the runs of all other groups.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.accuracy import RUNS
from benchmarks.trust import residuals, spreads
from planner.calibrate.calibrate import Checked, factors, step_error
from planner.calibrate.evaluate import evaluate, predict
from planner.calibrate.fit import apply
from planner.calibrate.metrics import questions
from planner.calibrate.readings import step_seconds
from planner.calibrate.row_task import Case, case_of
from planner.calibrate.runs import read_runs
from planner.trainers.trust import Spread, chosen

GIVEN = (1, 3, 5)
TRIES = 6
"""Choices of three or five runs that are given, at most."""
README = Path(__file__).with_name("README.md")
NOTE = """Mean error of the runs of a sweep that were not given, with the profile as shipped and fitted on one,
three and five runs (`shardwright calibrate`); the target with one given is 5 %. The one is each of the runs in turn,
and how wide priors are is told by the runs of all other groups. Sweeps that would have fewer than three runs left are
not in a column, so that means of different columns are over different sweeps. The last column is the share of the runs
inside the 80 % interval that the profile then states."""
BEGIN, END = "<!-- calibration: begin -->", "<!-- calibration: end -->"


@dataclass(frozen=True)
class Outcome:
    """One sweep with some runs given, averaged over the choices."""

    before: float
    after: float
    """Mean error of the runs that were not given, with the profile as it was and as fitted."""
    inside: float
    """Share of them in the interval that the calibrated profile states."""


def choices(count: int, given: int) -> list[list[int]]:
    """Which runs are given: each alone, or several evenly apart from up to ``TRIES`` places on."""
    if given == 1:
        return [[index] for index in range(count)]
    starts = sorted({round(x) for x in np.linspace(0, count - 1, min(count, TRIES))})
    step = max(1, count // given)
    found = {tuple(sorted((start + i * step) % count for i in range(given))) for start in starts}
    return [list(some) for some in sorted(found)]


def outcome(cases: Sequence[Case], given: int, known: Spread) -> Outcome | None:
    """The sweep with so many runs given; None where too few are left."""
    if len(cases) < given + 3:
        return None
    measured = np.array([step_seconds(case.run)[0] for case in cases], dtype=float)
    before = np.array([found.step for found in predict(cases)])
    results = []
    for some in choices(len(cases), given):
        found = factors([cases[i] for i in some], known)
        fitted = {item.parameter: item.factor for item in found}
        after = np.array([p.step for p in predict([apply(case, fitted) for case in cases])])
        rows = [Checked("", measured[i], before[i], after[i]) for i in some]
        wide = step_error(rows, found, known)
        rest = np.setdiff1d(np.arange(len(cases)), some)
        errors = [np.abs(values[rest] / measured[rest] - 1).mean() for values in (before, after)]
        inside = np.abs(measured[rest] / after[rest] - 1) <= wide
        results.append((*errors, inside.mean()))
    return Outcome(*np.mean(results, axis=0).tolist())


def table() -> str:
    """Markdown: a line a sweep."""
    runs = {run.id: run for run in read_runs(RUNS["validation"])}
    lines = [
        "| sweep | runs | as shipped | 1 given | 3 given | 5 given | inside ±, 1 given |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    columns: list[list[float]] = []
    sets = {name: evaluate(path).judged for name, path in RUNS.items()}
    seen = [
        r for name in sets for r in residuals(sets[name], "step", held_out=name != "calibration")
    ]
    for members in questions(sets["validation"]):
        first = members[0]
        others = spreads([r for r in seen if r.group != first.group])
        known = chosen(others, "step", first.family, first.trainer)
        cases = [case_of(runs[row.id]) for row in members]
        found = [outcome(cases, given, known) for given in GIVEN]
        alone = found[0]
        assert alone is not None
        values = [alone.before, *(math.nan if o is None else o.after for o in found), alone.inside]
        columns.append(values)
        lines.append(
            f"| {first.group[:40].replace('|', '/')} | {len(members)} | {' | '.join(map(shown, values))} |"
        )
    for name, of in (("mean", np.nanmean), ("median", np.nanmedian)):
        values = of(np.array(columns), axis=0).tolist()
        lines.append(f"| **{name}** |  | {' | '.join(shown(v, 2) for v in values)} |")
    return "\n".join(lines)


def shown(value: float, digits: int = 1) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.{digits}f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into benchmarks/README.md")
    options = parser.parse_args()
    text = table()
    print(text)
    if options.write:
        old = README.read_text() if README.exists() else "# Benchmarks\n"
        if BEGIN not in old:
            old += f"\n## Calibration\n\n{NOTE}\n\n{BEGIN}\n{END}\n"
        head, rest = old.split(BEGIN)
        README.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
