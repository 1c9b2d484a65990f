"""What the fit knows of runs that it has not seen: each source, chip or program left out in turn.

    python -m benchmarks.cross                # by source, chip and software of the calibration runs

For every part the numbers are fitted again without its runs, from the same priors, and its runs are predicted: where
*held out* is far from *all*, a number rests on that part alone; where *all* itself is large, the model is wrong and no
number mends it. Steps are linear in the logs of the factors between two exact pricings, which makes a fit take seconds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.fit import cases, parameters
from planner.calibrate.evaluate import predict
from planner.calibrate.fit import NOISE, Parameter, apply, owners, touches
from planner.calibrate.readings import step_seconds
from planner.calibrate.row_task import Case
from planner.units import Array, BoolArray

MOVED = 0.02
"""Log of the factor by which a number is moved to see what depends on it."""
PRICINGS, ROUNDS = 2, 15
"""Exact pricings of a fit, and rounds of reweighting between two of them."""


@dataclass(frozen=True)
class Problem:
    """The calibration runs, the numbers that they depend on, and how."""

    cases: Sequence[Case]
    parameters: Sequence[Parameter]

    @cached_property
    def measured(self) -> Array:
        return np.log([step_seconds(case.run)[0] or np.nan for case in self.cases])

    @cached_property
    def weight(self) -> Array:
        sizes = Counter(case.run.group for case in self.cases)
        return np.array([sizes[case.run.group] ** -0.5 for case in self.cases]) / NOISE

    @cached_property
    def slopes(self) -> Array:
        """Change of log step by log factor; shape ``(runs, parameters)``."""
        base = self.errors(np.zeros(len(self.parameters)))
        found = np.zeros((len(self.cases), len(self.parameters)))
        for column, p in enumerate(self.parameters):
            mine = [i for i, case in enumerate(self.cases) if touches(p, case)]
            x = np.zeros(len(self.parameters))
            x[column] = MOVED
            found[mine, column] = (self.errors(x, mine) - base[mine]) / MOVED
        return found

    def errors(self, x: Array, which: Sequence[int] | None = None) -> Array:
        """Log of predicted over measured step under these log factors."""
        chosen = range(len(self.cases)) if which is None else which
        factors = dict(zip(self.parameters, np.exp(x).tolist(), strict=True))
        steps = [found.step for found in predict([apply(self.cases[i], factors) for i in chosen])]
        return np.asarray(np.log(steps) - self.measured[list(chosen)])

    def fitted(self, seen: BoolArray) -> Array:
        """Log factors from the priors and the runs that are seen; the loss is that of ``planner.calibrate.fit``."""
        x = np.zeros(len(self.parameters))
        for _ in range(PRICINGS):
            x = self._reweighted(x, self.errors(x), seen)
        return x

    def _reweighted(self, start: Array, errors: Array, seen: BoolArray) -> Array:
        width = np.array([p.width for p in self.parameters])
        centre = np.log([p.centre for p in self.parameters])
        low, high = (np.log([getattr(p, end) for p in self.parameters]) for end in ("low", "high"))
        rest = errors - self.slopes @ start
        x = start
        for _ in range(ROUNDS):
            rows = seen * self.weight * soft(self.weight * (rest + self.slopes @ x))
            held = soft((x - centre) / width) / width
            left = np.vstack([rows[:, None] * self.slopes, np.diag(held)])
            right = np.concatenate([-rows * rest, held * centre])
            solution = np.linalg.lstsq(left, right, rcond=None)[0]
            x = np.clip(solution, np.minimum(low, 0.0), np.maximum(high, 0.0))
        return x


def soft(z: Array) -> Array:
    """Root of the weight that a residual keeps under the loss ``2 (√(1 + z²) − 1)``."""
    return np.asarray((1.0 + z**2) ** -0.25)


def source(case: Case) -> str:
    """Who published a run: releases and submissions of one publisher are one source."""
    text = re.sub(r"MLPerf Training v[\d.]+ result, (\w+).*", r"MLPerf, \1", case.run.source)
    return re.split(r" \(|, release|, NeMo|, v\d|\d{4}, ", text)[0][:44]


PARTS: dict[str, Callable[[Case], str]] = {
    "source": source,
    "chip": lambda case: case.task.cluster.chip.name,
    "software": lambda case: min(owners(case)["software"]),
}


def group_mean(problem: Problem, errors: Array, which: Sequence[int]) -> float:
    """Mean absolute error of each group of runs, averaged over groups."""
    groups: dict[str, list[float]] = defaultdict(list)
    for i, error in zip(which, errors, strict=True):
        groups[problem.cases[i].run.group].append(abs(float(np.expm1(error))))
    return float(np.mean([np.mean(values) for values in groups.values()]))


def main() -> None:
    timed = [case for case in cases() if step_seconds(case.run)[0]]
    problem = Problem(timed, parameters(timed))
    everything = problem.fitted(np.ones(len(timed), dtype=bool))
    for name, part_of in PARTS.items():
        print(f"\n{'left out: ' + name:46s} runs     all  held out    bias")
        totals = []
        for part in sorted({part_of(case) for case in timed}):
            mine = [i for i, case in enumerate(timed) if part_of(case) == part]
            seen = np.array([part_of(case) != part for case in timed])
            unseen = problem.errors(problem.fitted(seen), mine)
            pair = (
                group_mean(problem, problem.errors(everything, mine), mine),
                group_mean(problem, unseen, mine),
            )
            totals.append(pair)
            bias = float(np.expm1(unseen).mean())
            shown = "  ".join(f"{100 * value:6.1f}" for value in (*pair, bias))
            print(f"{part:46s} {len(mine):4d}  {shown}")
        shown = "  ".join(f"{100 * value:6.1f}" for value in np.mean(totals, axis=0))
        print(f"{'mean':46s} {len(timed):4d}  {shown}")


if __name__ == "__main__":
    main()
