"""Accuracy against measured runs: the table with its targets, and where the residuals point.

    python -m benchmarks.accuracy                       # table, validation runs, beside the committed one
    python -m benchmarks.accuracy --write               # commit it as the new baseline, and into the README
    python -m benchmarks.accuracy residuals             # trends on the calibration runs, class by class
    python -m benchmarks.accuracy residuals --terms     # and how each parameter would have to move

A trend is the slope of log(predicted / measured) over a feature. ``--terms`` prices every run again with each
parameter 10 % larger: the share of the step that depends on it, and by which factors all of them together, held near
1, would explain a class. A factor far from 1 says where to look, not what to write into a profile.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.calibrate.evaluate import RowResult, evaluate, predict
from planner.calibrate.metrics import error_of, outcomes, spread, sweeps, worst
from planner.calibrate.row_task import Case, case_of
from planner.calibrate.runs import read_runs
from planner.calibrate.shapes import NotPricedError
from planner.cost import kernels

HERE = Path(__file__).parent
RUNS = {
    "calibration": HERE / "runs" / "calibration.jsonl",
    "validation": HERE / "runs" / "validation.jsonl.gz",
}
LATER = HERE / "runs" / "held_out.jsonl.gz"
"""Runs that came when every number was fitted: judged here alone, trust and fits do not read them."""
BASELINE = HERE / "accuracy.json"
README = HERE.parent / "README.md"
BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"
WORSE = 0.002
"""By how much a total may grow before it counts as worse."""
STEP = 1.1
"""Factor by which a parameter is moved to see what depends on it."""
HOLD = 0.05
"""Weight that holds the factors of ``--terms`` near 1."""


def class_of(row: RowResult) -> str:
    """Which kind of chip and trainer a row belongs to."""
    starts: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("Blackwell", ("b200", "b300", "gb200", "gb300")),
        ("Ascend", ("ascend",)),
        ("TPU", ("tpu",)),
        ("V100, T4", ("v100", "t4")),
        ("AMD", ("mi",)),
    )
    for name, words in starts:
        if row.chip.startswith(words):
            return name
    if row.trainer in ("fsdp", "torchtitan"):
        return "FSDP, A100 and Hopper"
    for name, words in (("A100", ("a100", "a800")), ("Hopper", ("h100", "h200", "h800"))):
        if row.chip.startswith(words):
            return f"Megatron-like, {name}"
    return "other"


@dataclass(frozen=True)
class Target:
    """One line of the table."""

    name: str
    limit: float
    of: Callable[[Sequence[RowResult]], float | None]
    least: bool = False
    """The number must reach the limit instead of staying below it."""


def main_rows(rows: Iterable[RowResult]) -> list[RowResult]:
    return [row for row in rows if class_of(row).startswith("Megatron-like")]


def other_rows(rows: Iterable[RowResult]) -> list[RowResult]:
    return [row for row in rows if not class_of(row).startswith("Megatron-like")]


def step_error(rows: Sequence[RowResult]) -> float | None:
    found = spread(rows, "step")
    return None if found is None else found.mean


def close_groups(rows: Sequence[RowResult]) -> float | None:
    found = spread(rows, "step")
    return None if found is None else found.close


def torch_memory(rows: Sequence[RowResult]) -> float | None:
    found = spread([row for row in rows if row.memory_kind in ("allocated", "reserved")], "memory")
    return None if found is None else found.mean


def ranked(
    pick: Callable[[list[float]], float], name: str
) -> Callable[[Sequence[RowResult]], float]:
    return lambda rows: pick([getattr(sweep, name) for sweep in sweeps(rows)] or [math.nan])


def mean(values: list[float]) -> float:
    return float(np.mean(values))


TARGETS = (
    Target("step, A100 and H100, Megatron-like", 0.08, lambda rows: step_error(main_rows(rows))),
    Target("  groups within 15 %", 0.90, lambda rows: close_groups(main_rows(rows)), least=True),
    Target("step, everything else", 0.12, lambda rows: step_error(other_rows(rows))),
    Target("memory, allocated or reserved", 0.06, torch_memory),
    Target("fits or not: right", 0.95, lambda rows: outcomes(rows).right, least=True),
    Target("  of those that fitted", 0.92, lambda rows: outcomes(rows).right_of_fits, least=True),
    Target("  of those that did not", 0.92, lambda rows: outcomes(rows).right_of_ooms, least=True),
    Target("rank correlation in sweeps", 0.90, ranked(mean, "rank_correlation"), least=True),
    Target("regret in sweeps, mean", 0.03, ranked(mean, "regret")),
    Target("regret in sweeps, worst", 0.08, ranked(max, "regret")),
)

HELD_OUT: dict[str, Callable[[Sequence[RowResult]], float | None]] = {
    "held-out runs: step": step_error,
    "held-out runs: groups within 15 %": close_groups,
}
"""What is said of :data:`LATER`, without targets."""


def table(write: bool) -> int:
    """Print the table beside the committed one; 1 where a line is worse."""
    rows = evaluate(RUNS["validation"]).judged
    found = {target.name.strip(): target.of(rows) for target in TARGETS}
    late = evaluate(LATER).judged
    found |= {name: of(late) for name, of in HELD_OUT.items()}
    for name in sorted({class_of(row) for row in rows}):
        found[f"step, {name}"] = step_error([row for row in rows if class_of(row) == name])
    old = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    worse = False
    print(f"{'':44s}  target      now     committed")
    for target in TARGETS:
        key = target.name.strip()
        value, before = found[key], old.get(key)
        sign = -1.0 if target.least else 1.0
        grew = value is not None and before is not None and sign * (value - before) > WORSE
        worse |= grew
        good = value is not None and sign * (value - target.limit) <= 0
        bound = f"{'≥' if target.least else '≤'} {100 * target.limit:.0f} %"
        marks = f"{'✔' if good else ' '}{'  WORSE' if grew else ''}"
        print(f"{target.name:44s}  {bound:>6s}  {shown(value)}  {shown(before)} {marks}")
    for key in [key for key in found if key not in {t.name.strip() for t in TARGETS}]:
        print(f"{key:44s}          {shown(found[key])}  {shown(old.get(key))}")
    if write:
        kept = {key: None if value is None else round(value, 4) for key, value in found.items()}
        BASELINE.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n")
        write_readme(found)
    return 0 if write else int(worse)


def write_readme(found: dict[str, float | None]) -> None:
    """The targets beside what is reached, between the marks of the README."""
    lines = ["| on the validation runs | target | reached |", "| --- | --: | --: |"]
    for target in TARGETS:
        bound = f"{'≥' if target.least else '≤'} {100 * target.limit:.0f} %"
        name = target.name.replace("  ", "… ", 1) if target.name.startswith(" ") else target.name
        lines.append(f"| {name} | {bound} | {shown(found[target.name.strip()]).strip()} |")
    lines += [f"| {name} | | {shown(found[name]).strip()} |" for name in HELD_OUT]
    head, rest = README.read_text(encoding="utf-8").split(BEGIN)
    text = "\n".join(lines)
    README.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def shown(value: float | None) -> str:
    return "      – " if value is None else f"{100 * value:6.1f} %"


def ratio(row: RowResult, quantity: str) -> float:
    """Log of predicted over measured."""
    return math.log1p(max(error_of(row, quantity) or 0.0, -0.999))  # type: ignore[arg-type]


def trends(rows: Sequence[RowResult], quantity: str, count: int = 8) -> list[str]:
    """The features that explain most of the residuals, with slopes or with means of their values."""
    logs = np.array([ratio(row, quantity) for row in rows])
    spread_of = float(((logs - logs.mean()) ** 2).sum())
    found: list[tuple[float, str]] = []
    for name in rows[0].features if spread_of > 0 else ():
        values = [row.features[name] for row in rows]
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            found += numeric(name, np.array(values, dtype=float), logs)
        else:
            found += named(name, [str(v) for v in values], logs, spread_of)
    return [text for _, text in sorted(found, reverse=True)[:count]]


def numeric(name: str, values: np.ndarray, logs: np.ndarray) -> list[tuple[float, str]]:
    flags = name in ("recompute", "sharding", "schedule", "sp", "order")
    axis = values if flags or values.min() <= 0 else np.log2(values)
    if float(np.ptp(axis)) < (0.3 if axis is not values else 1e-6):
        return []
    slope = float(np.polyfit(axis, logs, 1)[0])
    weight = abs(float(np.corrcoef(axis, logs)[0, 1]))
    each = "" if axis is values else " a doubling"
    text = f"{name}: {100 * slope:+.1f} %{each} ({values.min():g} to {values.max():g}), |r| {weight:.2f}"
    return [(weight, text)]


def named(
    name: str, values: list[str], logs: np.ndarray, spread_of: float
) -> list[tuple[float, str]]:
    kinds = sorted(set(values))
    if len(kinds) < 2:
        return []
    members = {kind: np.array([value == kind for value in values]) for kind in kinds}
    means = {kind: float(logs[mask].mean()) for kind, mask in members.items()}
    left = float(sum(((logs[mask] - means[kind]) ** 2).sum() for kind, mask in members.items()))
    weight = math.sqrt(max(0.0, 1 - left / spread_of))
    parts = ", ".join(
        f"{kind} {100 * means[kind]:+.0f} % ({members[kind].sum()})" for kind in kinds
    )
    return [(weight, f"{name}: {parts}, |r| {weight:.2f}")]


def residuals(path: Path, quantity: str, terms: bool, everything: bool) -> None:
    """Trends class by class; only rows that the totals count unless ``everything``."""
    evaluation = evaluate(path)
    rows = [
        row
        for row in (evaluation.priced if everything else evaluation.judged)
        if error_of(row, quantity) is not None  # type: ignore[arg-type]
    ]
    for name in sorted({class_of(row) for row in rows}):
        part = [row for row in rows if class_of(row) == name]
        found = spread(part, quantity)  # type: ignore[arg-type]
        assert found is not None
        print(f"\n{name}: {found.rows} rows, {found.groups} groups, ", end="")
        print(f"mean {100 * found.mean:.1f} %, bias {100 * found.bias:+.1f} %")
        if len(part) > 2:
            print(*(f"    {text}" for text in trends(part, quantity)), sep="\n")
        for row in worst(part, 3, quantity):  # type: ignore[arg-type]
            print(f"    furthest: {row.id} {100 * (error_of(row, quantity) or 0):+.0f} %")  # type: ignore[arg-type]
    if terms and quantity == "step":
        print_terms(path, rows)


def _chip(**factors: float) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        cluster = case.task.cluster
        values = {name: getattr(cluster.chip, name) for name in factors}
        moved = {
            name: {key: value * factors[name] for key, value in old.items()}
            if isinstance(old, dict)
            else old * factors[name]
            for name, old in values.items()
        }
        chip = replace(cluster.chip, **moved)  # type: ignore[arg-type]
        return replace(case, task=replace(case.task, cluster=replace(cluster, chip=chip)))

    return change


def _trainer(part: str, name: str) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        old = getattr(case.task.trainer, part)
        new = replace(old, **{name: getattr(old, name) * STEP})
        return replace(
            case, task=replace(case.task, trainer=replace(case.task.trainer, **{part: new}))
        )

    return change


def _levels(name: str, *, outer: bool | None) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        cluster = case.task.cluster
        last = len(cluster.levels) - 1
        levels = tuple(
            replace(level, **{name: getattr(level, name) * STEP})
            if outer is None or outer == (index == last)
            else level
            for index, level in enumerate(cluster.levels)
        )
        return replace(case, task=replace(case.task, cluster=replace(cluster, levels=levels)))

    return change


MOVES: dict[str, Callable[[Case], Case]] = {
    "matmul efficiency": _chip(matmul_efficiency=STEP),
    "attention efficiency": _chip(attention_efficiency=STEP),
    "memory efficiency": _chip(memory_efficiency=STEP),
    "matmul latency": _chip(matmul_latency=STEP),
    "launch": _chip(launch=STEP),
    "bandwidth inside": _levels("bandwidth", outer=False),
    "bandwidth between": _levels("bandwidth", outer=True),
    "latency": _levels("latency", outer=None),
    "ramp": _levels("ramp_bytes", outer=None),
    **{
        f"{part} {name}": _trainer(part, name)
        for part, names in {
            "overlap": ("tp", "cp", "ep", "gradients", "weights", "sends"),
            "overhead": ("step", "operator", "memory_passes", "jitter"),
        }.items()
        for name in names
    },
}
CONSTANTS = ("BACKWARD_MATMUL", "BACKWARD_ATTENTION", "CAST_BYTES")


def print_terms(path: Path, rows: Sequence[RowResult]) -> None:
    """What the steps of each class depend on, and the factors that would explain its residuals."""
    wanted = {row.id: row for row in rows}
    cases: list[Case] = []
    for run in read_runs(path):
        try:
            cases += [case_of(run)] if run.id in wanted else []
        except NotPricedError:
            continue
    base = np.log([p.step for p in predict(cases)])
    columns = {
        name: (np.log([p.step for p in predict([move(case) for case in cases])]) - base)
        / math.log(STEP)
        for name, move in MOVES.items()
    }
    for name in (name for name in CONSTANTS if hasattr(kernels, name)):
        old = getattr(kernels, name)
        setattr(kernels, name, old * STEP)
        columns[name] = (np.log([p.step for p in predict(cases)]) - base) / math.log(STEP)
        setattr(kernels, name, old)
    table_of = np.stack(list(columns.values()), axis=1)
    logs = np.array([ratio(wanted[case.run.id], "step") for case in cases])
    kinds = np.array([class_of(wanted[case.run.id]) for case in cases])
    groups = np.array([case.run.group for case in cases])
    for kind in sorted(set(kinds)):
        mask = kinds == kind
        share = table_of[mask].mean(axis=0)
        factors, left = explain(table_of[mask], logs[mask], groups[mask])
        print(f"\n{kind}: left after the factors {100 * left:.1f} %")
        order = np.argsort(-np.abs(factors))[:8]
        for index in order:
            part = f"{100 * abs(share[index]):.0f} % of the step"
            print(f"    {list(columns)[index]}: × {math.exp(factors[index]):.2f} ({part})")


def explain(shares: np.ndarray, logs: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, float]:
    """Log factors that explain residuals, each group of weight 1, robust and held near 0."""
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(counts[index])
    factors: np.ndarray = np.zeros(shares.shape[1])
    for _ in range(20):
        left = -logs - shares @ factors
        soft = weight * np.sqrt(np.minimum(1.0, 0.1 / np.maximum(np.abs(left), 1e-9)))
        scaled = shares * soft[:, None]
        square = scaled.T @ scaled + HOLD * np.eye(shares.shape[1])
        factors = np.linalg.solve(square, scaled.T @ (-logs * soft))
    return factors, float(np.abs(-logs - shares @ factors).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("table", "residuals"), default="table")
    parser.add_argument("--write", action="store_true", help="commit the table as the baseline")
    parser.add_argument("--runs", default="calibration", help="calibration, validation or a file")
    parser.add_argument("--of", choices=("step", "memory"), default="step")
    parser.add_argument("--terms", action="store_true", help="what each parameter would explain")
    parser.add_argument("--all", action="store_true", help="rows of quality C as well")
    asked = parser.parse_args()
    if asked.what == "table":
        return table(asked.write)
    residuals(RUNS.get(asked.runs, Path(asked.runs)), asked.of, asked.terms, asked.all)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
