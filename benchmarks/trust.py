"""How far predictions go: the spread of residuals by chip family and trainer, and whether the intervals hold.

    python -m benchmarks.trust             # the table, and the share of runs inside their intervals
    python -m benchmarks.trust --write     # into planner/trainers/trust.json

A residual is measured over predicted, minus 1. Validation runs count as they are. The fit has seen the calibration
runs, whose residuals are therefore smaller: they count times one factor, the ratio of both sets' spreads. Every group
of runs weighs the same, and each class is mixed with all runs at the weight of ``KIN`` groups, so that two lucky groups
do not make a narrow interval.

The check leaves each validation group out: its runs must lie in the interval that all *other* groups give. The factor
for memory's upper quantile rests on calibration runs alone, since it decides what fits.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from benchmarks.accuracy import RUNS
from planner.calibrate.evaluate import RowResult, evaluate
from planner.calibrate.metrics import Quantity, error_of, outcomes, questions
from planner.trainers.trust import PATH, key
from planner.units import Json

COVERED = 0.8
"""Share of the runs that an interval holds."""
KIN = 2.0
"""Groups that all other runs weigh as, in the spread of a class."""
LEAST_UPPER, MOST_UPPER = 1.02, 1.05
"""Physical limits of the upper factor: allocators and drivers differ by some per cent from run to run; what is further
off is an error of the model, and not for a factor to hide."""
TAIL = 1.9
"""90 % quantile over the median size of a normal residual, 1.28 / 0.67: the middle of the runs says how wide the tail
is, whatever the few say that the model has wrong."""
LEAST_GROUP = 3
"""Runs that a group must have to show a spread around its own mean."""
LEAST_GROUPS = 3
"""Groups of runs that a class needs to have a spread of its own."""


@dataclass(frozen=True, slots=True)
class Residual:
    """How far one run was from its prediction."""

    group: str
    family: str
    trainer: str
    value: float
    """Measured over predicted, minus 1."""
    error: float
    """Predicted over measured, minus 1."""
    held_out: bool
    """The fit has not seen it."""


def residuals(rows: Iterable[RowResult], quantity: Quantity, *, held_out: bool) -> list[Residual]:
    """Of every row that has a measurement; of memory, one of the steady peak that plans show."""
    if quantity == "memory":
        rows = [row for row in rows if row.memory_kind != "first-step"]
    return [
        Residual(row.group or row.id, row.family, row.trainer, -error / (1 + error), error, held_out)
        for row in rows
        if (error := error_of(row, quantity)) is not None
    ]  # fmt: skip


def quantile(values: Sequence[float], weights: Sequence[float], level: float) -> float:
    """The smallest value below which this share of the weight lies.

    >>> quantile([3.0, 1.0, 2.0], [1.0, 1.0, 2.0], 0.7)
    2.0
    """
    order = np.argsort(values)
    share = np.cumsum(np.asarray(weights)[order]) / np.sum(weights)
    return float(np.asarray(values)[order][np.searchsorted(share, min(level, share[-1]))])


def by_group(some: Sequence[Residual], total: float | None = None) -> list[float]:
    """Weights that make every group count the same, 1, or all groups together ``total``."""
    sizes = Counter(r.group for r in some)
    scale = 1.0 if total is None else total / len(sizes)
    return [scale / sizes[r.group] for r in some]


def mixed(
    own: Sequence[Residual],
    everything: Sequence[Residual],
    level: float,
    of: Callable[[Residual], float],
) -> float:
    """A quantile of a class, drawn towards that of all runs; few groups reach further out."""
    groups = len({r.group for r in own})
    both = [of(r) for r in (*own, *everything)]
    weights = by_group(own) + by_group(everything, KIN)
    return quantile(both, weights, level + (1 - level) / (groups + KIN))


def widening(some: Sequence[Residual]) -> float:
    """How much wider residuals are where the fit has not seen the run."""
    spreads = []
    for held_out in (True, False):
        part = [r for r in some if r.held_out == held_out]
        spreads.append(quantile([abs(r.value) for r in part], by_group(part), COVERED))
    return max(1.0, spreads[0] / spreads[1])


def widened(some: Sequence[Residual]) -> list[Residual]:
    """Residuals as if the fit had seen none of the runs."""
    factor = widening(some)
    return [r if r.held_out else replace(r, value=r.value * factor) for r in some]


def within(some: Sequence[Residual]) -> list[Residual]:
    """Residuals around the mean of their group, corrected for the mean's own scatter; small groups have none."""
    groups: dict[str, list[Residual]] = defaultdict(list)
    for r in some:
        groups[r.group].append(r)
    found = []
    for members in groups.values():
        n = len(members)
        if n >= LEAST_GROUP:
            mean = sum(r.value for r in members) / n
            found += [replace(r, value=(r.value - mean) * (n / (n - 1)) ** 0.5) for r in members]
    return found


def classes(some: Sequence[Residual]) -> dict[str, list[Residual]]:
    """Residuals of every pair, family and trainer that has enough groups to speak for itself."""
    found: dict[str, list[Residual]] = defaultdict(list)
    for r in some:
        for name in (key(r.family, r.trainer), r.family, r.trainer):
            found[name].append(r)
    spoken = {
        name: part for name, part in found.items() if len({r.group for r in part}) >= LEAST_GROUPS
    }
    return dict(sorted(spoken.items()))


def half_width(own: Sequence[Residual], everything: Sequence[Residual]) -> float:
    return mixed(own, everything, COVERED, lambda r: abs(r.value))


def spreads(some: Sequence[Residual]) -> dict[str, Json]:
    """The data of one quantity: a spread for every class and for all runs."""
    raw = {"all": list(some)} | classes(some)
    wide = widened(some)
    parts = {"all": wide} | classes(wide)
    inner = within(wide)
    inner_parts = {"all": inner} | classes(inner)
    return {
        name: {
            "half": round(half_width(own, wide), 4),
            "noise": round(half_width(inner_parts.get(name, []), inner), 4),
            "runs": len(own),
            "median": round(median(raw[name]), 4),
        }
        for name, own in parts.items()
    }


def median(some: Sequence[Residual]) -> float:
    """Median error of each group, averaged over groups; those that the fit did not see where there are any."""
    groups: dict[str, list[float]] = defaultdict(list)
    for r in [r for r in some if r.held_out] or some:
        groups[r.group].append(abs(r.error))
    return float(np.mean([np.median(errors) for errors in groups.values()]))


def coverage(some: Sequence[Residual], order: Sequence[str]) -> dict[str, Json]:
    """Share of validation runs inside the interval that the other groups give."""
    wide = widened(some)
    inside: list[tuple[str, bool]] = []
    for group in sorted({r.group for r in some if r.held_out}):
        rest = [r for r in wide if r.group != group]
        parts, halves = classes(rest), dict[str, float]()
        for r in (r for r in wide if r.group == group and r.held_out):
            names = {"pair": key(r.family, r.trainer), "family": r.family, "trainer": r.trainer}
            name = next((names[basis] for basis in order if names[basis] in parts), "all")
            if name not in halves:
                halves[name] = half_width(parts.get(name, rest), rest)
            inside.append((group, abs(r.value) <= halves[name]))
    sizes = Counter(group for group, _ in inside)
    return {
        "runs": len(inside),
        "inside": round(sum(ok for _, ok in inside) / len(inside), 3),
        "groups": len(sizes),
        "inside_by_group": round(sum(ok / sizes[group] for group, ok in inside) / len(sizes), 3),
    }


def upper_factors(some: Sequence[Residual]) -> dict[str, float]:
    """Factor from the median of memory to what nine of ten runs stay under, by trainer; calibration runs alone."""
    found = {}
    for name in ("all", *sorted({r.trainer for r in some})):
        own = [r for r in some if name in ("all", r.trainer)]
        weights = by_group(own) + by_group(some, KIN)
        middle = quantile([abs(r.value) for r in (*own, *some)], weights, 0.5)
        found[name] = round(float(np.clip(1 + TAIL * middle, LEAST_UPPER, MOST_UPPER)), 3)
    return found


def ordered(rows: Sequence[RowResult], some: dict[str, Json]) -> str:
    """Pairs of layouts of one question whose measured order is the predicted one, outside and inside the noise."""
    right: dict[bool, list[bool]] = {True: [], False: []}
    for members in questions(rows):
        names = (key(members[0].family, members[0].trainer), members[0].family, "all")
        noise = some[next(name for name in names if name in some)]["noise"]
        for one, other in combinations(members, 2):
            predicted, measured = (_ratio(one, other, what) for what in ("predicted", "measured"))
            right[abs(predicted) > math.log1p(noise)].append(predicted * measured > 0)
    texts = [f"{np.mean(right[far]):.0%} of {len(right[far])}" for far in (True, False)]
    return f"order right: {texts[0]} pairs further apart than the noise, {texts[1]} pairs within it"


def _ratio(one: RowResult, other: RowResult, what: str) -> float:
    name = f"{what}_step_seconds"
    return math.log(getattr(one, name) / getattr(other, name))


def measured() -> tuple[dict[str, Json], list[str]]:
    """The data, and what the checks say."""
    sets = {name: evaluate(path).judged for name, path in RUNS.items()}
    data: dict[str, Json] = {"made_by": "python -m benchmarks.trust --write", "covered": COVERED}
    told = []
    orders = {"step": ("pair", "family", "trainer"), "memory": ("pair", "trainer", "family")}
    for quantity in ("step", "memory"):
        some = [
            r
            for name, rows in sets.items()
            for r in residuals(rows, quantity, held_out=name == "validation")
        ]
        data[quantity] = spreads(some)
        data[f"{quantity}_check"] = coverage(some, orders[quantity])
        told.append(f"{quantity}: fit's own runs widened × {widening(some):.2f}")
    fitted = residuals(sets["calibration"], "memory", held_out=False)
    data["upper"] = upper_factors(fitted)
    told.append(ordered(sets["validation"], data["step"]))
    for name, rows in sets.items():
        told.append(f"fits, {name}, with the upper factors of the last --write: {outcomes(rows)}")
    return data, told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into planner/trainers/trust.json")
    options = parser.parse_args()
    data, told = measured()
    print(f"{'':24s}      ±    noise  median   runs")
    for quantity in ("step", "memory"):
        for name, found in data[quantity].items():
            shares = "  ".join(f"{100 * found[k]:5.1f} %" for k in ("half", "noise", "median"))
            print(f"{quantity + ' ' + name:24s}{shares}  {found['runs']:5d}")
        check = data[f"{quantity}_check"]
        print(f"inside the {COVERED:.0%} interval of the other groups: {check}")
    print("upper factors of memory:", data["upper"])
    print(*told, sep="\n")
    if options.write:
        PATH.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
