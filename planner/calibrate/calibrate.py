"""A cluster's profile from a few measured steps of its own: one run is worth a lot.

Much of what is left of the error is a constant of the cluster and its software, and runs of one cluster say it: its
chip's speed as a whole and, where several runs differ in how much they communicate, that of its links. Each is a factor
on the profile's numbers with a prior (:mod:`planner.calibrate.fit`): as wide as runs of the chip's family differ from
cluster to cluster, against the scatter of the layouts of one. So a single run moves the profile most of the way to it,
not all the way, and what the runs cannot tell stays as the profile has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.calibrate.evaluate import Predicted, predict
from planner.calibrate.fit import Fitted, Parameter, apply, fit, owners, slopes_of
from planner.calibrate.own_cluster import case_on, profile
from planner.calibrate.readings import memory_gib, step_seconds
from planner.calibrate.row_task import Case
from planner.calibrate.runs import Run, read_runs
from planner.calibrate.shapes import NotPricedError
from planner.errors import PlannerError, listed
from planner.frontends.hardware_text import dump_cluster
from planner.hardware.cluster import Calibration, Cluster
from planner.trainers.generations import holder
from planner.trainers.registry import get_trainer
from planner.trainers.trust import Spread, spread
from planner.units import GIB, US

NORMAL = 1.2816
"""Half width of the 80 % interval of a normal distribution, in standard deviations."""
NETWORK_WIDTHS = (0.3, 0.5)
"""Standard deviation of the prior on a network's factor, log: inside a node, and between nodes, where cards, their
number and what else runs there differ from cluster to cluster."""
MEMORY_WIDTH = 0.2
"""The same of the memory's speed beside that of the chip as a whole: passes that software fuses or does not."""
HOST_WIDTH = 0.25
"""The same of what the host takes to launch an operator. Source: ``benchmarks.fit`` holds it as wide."""
LEAST_WIDTH = 0.045
"""The same of a chip's, where runs of its family hardly differ. Source: groups of calibration runs, whose means differ
by 4.2 % on A100 and 5.3 % on H100 (Megatron) while their runs differ by 4.8 and 4.9 % from their group's."""
IDENTIFIED = 0.8
"""A factor is identified where its spread after the fit is below this share of its prior's."""
NETWORK_UNTOLD = ("network as the profile has it; your runs do not tell",)
"""What a plan assumes where no link's factor was identified."""
PRIOR_RUNS = 4.0
"""Runs that the scatter known from other clusters weighs as, beside what the user's own runs show."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One run beside its prediction with the profile as it was, and as it is now."""

    id: str
    measured: float
    """Seconds."""
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A profile fitted on runs, and what these could not say."""

    cluster: Cluster
    factors: tuple[Fitted, ...]
    rows: tuple[Checked, ...]
    skipped: Mapping[str, str]
    """Runs that were not used, and why."""
    unidentified: tuple[str, ...]
    """What stays as the profile has it, one clause each."""

    @property
    def text(self) -> str:
        """The profile as a YAML file."""
        return dump_cluster(self.cluster)


def calibrate(
    runs: Path | str | Sequence[Run], cluster: Cluster | str, trainer: str | None = None
) -> Calibrated:
    """Fit a cluster's profile on runs of its own.

    Args:
        runs: one or more measured steps, or their file; those without are used for memory only.
        cluster: the profile to begin with, as ``--cluster`` names it.
        trainer: what ran them; None where the rows say so themselves.

    Raises:
        PlannerError: no run has a measured step that can be priced on this cluster (K01), or several trainers (K02).
    """
    runs = read_runs(Path(runs)) if isinstance(runs, Path | str) else runs
    cluster = profile(cluster) if isinstance(cluster, str) else cluster
    cases, skipped = _cases(runs, cluster, trainer)
    timed = [case for case in cases if step_seconds(case.run)[0]]
    if not timed:
        raise PlannerError.of(
            "K01",
            "no run has a measured step that can be priced on this cluster.",
            *[f"{name}: {why}." for name, why in list(skipped.items())[:5]],
        )
    names = sorted({case.software.trainer.name for case in timed})
    if len(names) > 1:
        raise PlannerError.of(
            "K02",
            f"the runs were made by {listed(names, 'and')}; a profile is fitted on one trainer.",
            "Give each its own file, or say with --trainer what ran them.",
        )
    known = spread("step", cluster.chip.family, names[0])
    found = factors(timed, known)
    fitted = {item.parameter: item.factor for item in found}
    before = predict(cases)
    after = predict([apply(case, fitted) for case in cases])
    rows = tuple(
        Checked(case.run.id, step_seconds(case.run)[0] or math.nan, one.step, other.step)
        for case, one, other in zip(cases, before, after, strict=True)
        if step_seconds(case.run)[0]
    )
    untold = _unidentified(timed, found)
    own = Calibration(
        trainer=names[0],
        runs=len(timed),
        step_error=_rounded(step_error(rows, found, known)),
        memory_error=_memory_error(cases, before, cluster),
    )
    return Calibrated(
        _noted(cluster, timed, fitted, found, own), tuple(found), rows, skipped, untold
    )


def _cases(
    runs: Sequence[Run], cluster: Cluster, trainer: str | None
) -> tuple[list[Case], dict[str, str]]:
    program = None if trainer is None else get_trainer(trainer)
    cases: list[Case] = []
    skipped: dict[str, str] = {}
    for run in runs:
        try:
            case = case_on(run, cluster, program)
        except NotPricedError as reason:
            skipped[run.id] = str(reason)
            continue
        if step_seconds(run)[0] is None and memory_gib(run)[0] is None:
            skipped[run.id] = "nothing measured"
        else:
            cases.append(case)
    return cases, skipped


def factors(cases: Sequence[Case], known: Spread) -> list[Fitted]:
    """Factors on the chip's speed and, from two runs on, on its memory's and each link's, from runs of one cluster.

    One run cannot tell computing from communicating and from the host: what these may be off by is noise to it, so that
    it says the less of the chip the more of its step they take, and what is left of its difference is put on the chip.
    On sweeps of published runs more factors make the error of the other runs larger where one is given and smaller
    where three are.
    """
    chip = cases[0].task.cluster.chip
    noise = math.log1p(known.noise) / NORMAL
    used = set().union(*(owners(case)["link"] for case in cases))
    nearest = cases[0].task.cluster.levels[0].link
    links = [
        Parameter("link", name, "network", NETWORK_WIDTHS[name != nearest], 0.1, 1.5)
        for name in sorted(used)
    ]
    whole = math.log1p(known.half) / NORMAL
    width = max(LEAST_WIDTH, math.sqrt(max(0.0, whole**2 - noise**2)))
    most = 1.0 / max(*chip.matmul_efficiency.values(), chip.attention_efficiency)
    chosen = [Parameter("chip", chip.name, "compute", width, low=0.2, high=max(most, 1 + 1e-6))]
    if len(cases) > 1:
        most = 1.0 / chip.memory_efficiency
        chosen += [
            Parameter("chip", chip.name, "memory_efficiency", MEMORY_WIDTH, 0.2, most),
            *links,
        ]
        return fit(cases, chosen, noise=noise)
    runs_by = owners(cases[0])["software"]
    hosts = [Parameter("software", holder(n, "operator"), "operator", HOST_WIDTH) for n in runs_by]
    widths = np.array([p.width for p in (*links, *hosts)])
    apart = slopes_of(cases[0], (*links, *hosts)) * widths
    return fit(cases, chosen, noise=math.hypot(noise, *apart))


def step_error(rows: Sequence[Checked], found: Sequence[Fitted], known: Spread) -> float:
    """Half width of the interval that holds 80 % of further runs of this cluster.

    The scatter of layouts, known from other clusters and seen in these runs, and what the chip's factor is still
    uncertain by; never more than without the runs.
    """
    scatter = (math.log1p(known.noise) / NORMAL) ** 2
    seen = sum(math.log(row.after / row.measured) ** 2 for row in rows)
    variance = (PRIOR_RUNS * scatter + seen) / (PRIOR_RUNS + len(rows)) + found[0].spread ** 2
    return min(math.expm1(NORMAL * math.sqrt(variance)), known.half)


def _memory_error(
    cases: Sequence[Case], predicted: Sequence[Predicted], cluster: Cluster
) -> float | None:
    """The same of memory, which is not fitted; None where no run measured it."""
    errors = [
        math.log(found.memory[kind] / GIB / value)
        for case, found in zip(cases, predicted, strict=True)
        for value, kind in (memory_gib(case.run),)
        if value is not None
    ]
    if not errors:
        return None
    known = spread("memory", cluster.chip.family, cases[0].software.trainer.name)
    prior = (math.log1p(known.half) / NORMAL) ** 2
    variance = (PRIOR_RUNS * prior + float(np.square(errors).sum())) / (PRIOR_RUNS + len(errors))
    return _rounded(math.expm1(NORMAL * math.sqrt(variance)))


def _rounded(share: float) -> float:
    return round(share, 4)


def _unidentified(cases: Sequence[Case], found: Sequence[Fitted]) -> tuple[str, ...]:
    """What the runs do not tell, in words."""
    texts = []
    if len(cases) == 1:
        texts.append(
            "compute and network apart: one run's difference is put on the chip as a whole"
        )
    texts += [
        f"passes over memory of {item.parameter.owner} apart from its products: these steps take both alike"
        for item in found
        if item.parameter.field == "memory_efficiency" and not _told(item)
    ]
    texts += [
        f"the network over {item.parameter.owner}: too small a part of these steps"
        for item in found
        if item.parameter.kind == "link" and not _told(item)
    ]
    used = set().union(*(owners(case)["link"] for case in cases))
    levels = cases[0].task.cluster.levels
    unused = [level.name for level in levels if level.link and level.link not in used]
    if unused:
        texts.append(f"the network of level {listed(unused, 'and')}: no run reached it")
    if all(memory_gib(case.run)[0] is None for case in cases):
        texts.append("memory: no run measured it")
    return tuple(texts)


def _told(item: Fitted) -> bool:
    return item.spread <= IDENTIFIED * item.parameter.width


def _noted(
    cluster: Cluster,
    cases: Sequence[Case],
    fitted: Mapping[Parameter, float],
    found: Sequence[Fitted],
    own: Calibration,
) -> Cluster:
    """The profile with its factors, and where they come from."""
    changed = _short(replace(apply(cases[0], fitted).task.cluster, num_chips=cluster.num_chips))
    ids = ", ".join(case.run.id for case in cases[:3]) + ("" if len(cases) <= 3 else ", …")
    runs = f"{own.runs} run{'s' * (own.runs > 1)} of this cluster ({ids})"
    parts = listed(
        [
            f"{item.parameter.field} of {item.parameter.owner} × {item.factor:.3f} ± {item.spread:.3f}"
            for item in found
        ],
        "and",
    )
    unknown = not any(item.parameter.kind == "link" and _told(item) for item in found)
    chip = replace(
        changed.chip,
        measured=f"all, from {runs}",
        sources={
            **changed.chip.sources,
            "calibrated": f"all efficiencies × {found[0].factor:.3f}, {runs}",
        },
    )
    return replace(
        changed,
        chip=chip,
        assumed=(*cluster.assumed, *NETWORK_UNTOLD[: int(unknown)]),
        sources={**changed.sources, "calibrated": f"{parts}; {runs}"},
        calibrated=own,
    )


def _short(cluster: Cluster) -> Cluster:
    """Fitted numbers with four digits: more would only look exact."""
    chip = cluster.chip
    chip = replace(
        chip,
        matmul_efficiency={word: _digits(e) for word, e in chip.matmul_efficiency.items()},
        attention_efficiency=_digits(chip.attention_efficiency),
        memory_efficiency=_digits(chip.memory_efficiency),
        matmul_latency=_micro(chip.matmul_latency),
        launch=_micro(chip.launch),
    )
    levels = tuple(
        replace(level, efficiency=_digits(level.efficiency), latency=_micro(level.latency))
        for level in cluster.levels
    )
    return replace(cluster, chip=chip, levels=levels)


def _micro(seconds: float) -> float:
    """The same of seconds, which profiles state in microseconds: what is written reads back as the same number."""
    return _digits(seconds / US) * US


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
