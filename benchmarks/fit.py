"""Fit chips, links and trainers' software on the calibration runs.

    python -m benchmarks.fit [--write]

Prints every factor with its spread; ``--write`` multiplies the numbers in hardware_profiles/ and in
planner/trainers/generations.json by them and notes, in hardware_profiles/fitted.json and beside the generation's
numbers, the prior, the spread and the rows. The prior is what a number was before any fit, so that a second fit on the
same runs ends where the first did. Validation runs are not read.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

from planner.calibrate.fit import Fitted, Parameter, fit, owners
from planner.calibrate.row_task import Case, case_of
from planner.calibrate.runs import read_runs
from planner.calibrate.shapes import NotPricedError
from planner.trainers.generations import PARTS, PATH, generation, holder
from planner.units import Json

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "benchmarks" / "runs" / "calibration.jsonl"
CHIP_FIELDS = (
    ("matmul_efficiency.bf16", 0.08),
    ("matmul_efficiency.fp8", 0.10),
    ("attention_efficiency", 0.10),
)
SOFTWARE_FIELDS = (
    ("memory_passes", 0.20),
    ("operator", 0.25),
    ("step", 0.5),
    ("tp", 0.25),
    ("tp_gradients", 0.5),
    ("gradients", 0.5),
    ("weights", 0.5),
    ("ep", 0.1),
    ("sends", 0.3),
)
LINK_FIELDS = (("efficiency", 0.10), ("latency", 0.4))
FITTED = ROOT / "hardware_profiles" / "fitted.json"
TWINS = {
    "a100-sxm-80gb": ("a800-sxm-80gb",),
    "ascend-910b2": ("ascend-910b1", "ascend-910b3", "ascend-910b4"),
    "h100-sxm": ("h800-sxm",),
    "v100-sxm-16gb": ("v100-sxm-32gb",),
}
"""Chips of one design that no calibration run was made on: they take the numbers of the one that has runs."""
MOST_EFFICIENT = 0.95
"""No product sustains more of the data sheet's peak."""
UNCHANGED = 0.02
"""Nearer to its prior than this, as a share, and than half of its spread, a number stays as its source has it."""


def cases() -> list[Case]:
    """The calibration runs that count: complete, of quality A or B, priced."""
    found = []
    for run in read_runs(RUNS):
        if not run.judged:
            continue
        try:
            found.append(case_of(run))
        except NotPricedError:
            continue
    return found


def parameters(some: list[Case]) -> list[Parameter]:
    """Every number that these cases can say something about, with the width of its prior and its physical limits.

    Software that hides nothing of a kind of traffic exposes all of it: that is a fact and no number to fit.
    """
    found: dict[tuple[str, str, str], Parameter] = {}
    for case in some:
        mine = owners(case)
        chip = case.task.cluster.chip
        for field, width in CHIP_FIELDS:
            if field.endswith("fp8") and case.task.recipe.precision != "fp8":
                continue
            one = Parameter("chip", chip.name, field, width)
            found["chip", chip.name, field] = replace(
                one, high=MOST_EFFICIENT / _present(one, [case])
            )
        for run_by in mine["software"]:
            for field, width in SOFTWARE_FIELDS:
                name = holder(run_by, field)
                value = _value(name, field)
                shared = field in PARTS["overlap"]
                if value > 0 and _says(case, field) and not (shared and value >= 1.0):
                    high = 1.0 / value if shared else 2.5
                    found["software", name, field] = Parameter(
                        "software", name, field, width, high=high
                    )
        for name in mine["link"]:
            for field, width in LINK_FIELDS:
                found["link", name, field] = Parameter("link", name, field, width)
    notes = _notes()
    return [replace(found[key], centre=_centre(notes, found[key], some)) for key in sorted(found)]


def _notes() -> dict[str, dict[str, dict[str, Json]]]:
    """What is noted of every fitted number, by kind and owner."""
    software = {name: data.get("fitted", {}) for name, data in json.loads(PATH.read_text()).items()}
    return {**json.loads(FITTED.read_text()), "software": software}


def _centre(notes: dict[str, dict[str, dict[str, Json]]], p: Parameter, some: list[Case]) -> float:
    """The prior's value over the present one."""
    note = notes[p.kind].get(p.owner, {}).get(p.field)
    return 1.0 if note is None else float(note["prior"]) / _present(p, some)


def _present(p: Parameter, some: list[Case]) -> float:
    """The number as the data have it."""
    if p.kind == "software":
        return _value(p.owner, p.field)
    clusters = (case.task.cluster for case in some if p.owner in owners(case)[p.kind])
    cluster = next(clusters)
    if p.kind == "link":
        level = next(level for level in cluster.levels if level.link == p.owner)
        return float(getattr(level, p.field))
    name, _, precision = p.field.partition(".")
    held = getattr(cluster.chip, name)
    return float(held.get(precision, held.get("fp16", 1.0)) if precision else held)


def _says(case: Case, field: str) -> bool:
    """Whether a case depends on a number of its software at all."""
    row = case.layout
    sharded = int(row.sharding[0]) >= 2
    return {
        "tp": int(row.tp[0]) > 1,
        "tp_gradients": int(row.tp[0]) > 1,
        "ep": int(row.ep[0]) > 1,
        "sends": int(row.pp[0]) > 1,
        "gradients": not sharded and int(row.dp[0] * row.cp[0]) > 1,
        "weights": sharded,
    }.get(field, True)


def _value(name: str, field: str) -> float:
    trainer = generation(name)
    part = trainer.overlap if hasattr(trainer.overlap, field) else trainer.overhead
    return float(getattr(part, field))


def write(fitted: list[Fitted], some: list[Case]) -> None:
    """Multiply the data by the factors."""
    data, hardware = json.loads(PATH.read_text()), json.loads(FITTED.read_text())
    for item in fitted:
        p = item.parameter
        told = abs(item.factor / p.centre - 1.0) >= min(UNCHANGED, item.spread / 2.0)
        if not told and p.centre == 1.0:
            continue
        value = _present(p, some)
        factor = item.factor if told else p.centre
        prior = float(f"{p.centre * value:.4g}")
        software = p.kind == "software"
        notes = (
            data[p.owner].setdefault("fitted", {})
            if software
            else hardware[p.kind].setdefault(p.owner, {})
        )
        notes.pop(p.field, None)
        if told:
            spread = round(item.spread, 3)
            notes[p.field] = {"prior": prior, "spread": spread, "rows": item.rows}
        if software:
            data[p.owner][p.field] = float(f"{value * factor:.4g}")
        elif p.kind == "chip":
            for name in (p.owner, *TWINS.get(p.owner, ())):
                _write_chip(name, p.field, value * factor)
        else:
            _write_link(p, factor)
    PATH.write_text(json.dumps(data, indent=1) + "\n")
    FITTED.write_text(json.dumps(hardware, indent=1, sort_keys=True) + "\n")


def _write_chip(chip: str, field: str, value: float) -> None:
    path = ROOT / "hardware_profiles" / "chips" / f"{chip}.yaml"
    name, _, precision = field.partition(".")
    text = path.read_text()
    words = ("bf16", "fp16") if precision == "bf16" else (precision,)
    line = re.search(rf"(?m)^{name}:.*(?:\n  .*)*", text)
    if line is None:
        raise SystemExit(f"{path} has no {name}")
    scaled = line[0]
    for word in words if precision else (name,):
        scaled = re.sub(
            rf"(\b{word}: )([0-9.]+)",
            lambda m: f"{m[1]}{value:.3g}",
            scaled,
            count=1,
        )
    text = text.replace(line[0], scaled, 1)
    path.write_text(text)


def _write_link(p: Parameter, factor: float) -> None:
    path = ROOT / "hardware_profiles" / "links.yaml"
    key = {"latency": "latency_us"}.get(p.field, p.field)
    head, mark, rest = path.read_text().partition(f"\n{p.owner}:\n")
    rest = re.sub(
        rf"(  {key}: )([0-9.]+)", lambda m: f"{m[1]}{float(m[2]) * factor:.3g}", rest, count=1
    )
    path.write_text(head + mark + rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    some = cases()
    found = fit(some, parameters(some), told=lambda line: print(line, flush=True))
    for item in sorted(found, key=lambda f: f.parameter.name):
        print(
            f"{item.parameter.name:45} × {item.factor:.3f} ± {item.spread:.3f}  ({item.rows} rows)"
        )
    if options.write:
        write(found, some)


if __name__ == "__main__":
    main()
