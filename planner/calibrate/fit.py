"""Fit the physical numbers of chips, links and trainers' software on measured runs.

Every parameter is a factor on a number that stands in the data, is shared by all rows of its chip, link or generation
of software, and is pulled towards 1 by a prior as wide as that number is uncertain. The loss is robust and on the log
of predicted over measured step time; every group of rows weighs the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from planner.calibrate.as_run import generation_name
from planner.calibrate.evaluate import predict
from planner.calibrate.readings import step_seconds
from planner.calibrate.row_task import Case
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster
from planner.trainers.generations import holder
from planner.trainers.trainer import Trainer
from planner.units import Array, Json

NOISE = 0.06
"""Expected scatter of a row around the truth, log; residuals beyond it count less and less."""

INSIDE = 0.02
"""How far, log, the search begins within its bounds: from a bound itself no step leads anywhere."""
MOVED = 1e-3
"""Log of the factor by which a number is moved to see what depends on it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A factor on one number of the data."""

    kind: str
    """``chip``, ``link`` or ``software``."""
    owner: str
    """Name of the chip, the kind of link or the generation."""
    field: str
    """Which number, such as ``matmul_efficiency.bf16`` or ``memory_passes``; ``compute`` is all of a chip's speed and
    ``network`` all of a link's."""
    width: float
    """Standard deviation of the prior on the factor's log."""
    low: float = 0.4
    high: float = 2.5
    """Bounds of the factor."""
    centre: float = 1.0
    """Factor that the prior holds most likely: 1 where the number in the data is the prior's."""

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.field}"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A parameter after the fit."""

    parameter: Parameter
    factor: float
    spread: float
    """Standard deviation of the factor's log after the fit."""
    rows: int
    """Runs that it had a say in."""


def owners(case: Case) -> dict[str, set[str]]:
    """Whose parameters a case depends on."""
    cluster = case.task.cluster
    return {
        "chip": {cluster.chip.name},
        "link": {level.link for level in cluster.levels[: cluster.depth] if level.link},
        "software": {generation_name(case.software, case.traits)},
    }


def touches(parameter: Parameter, case: Case) -> bool:
    """Whether a case is priced with the number that a parameter is a factor on."""
    mine = owners(case)[parameter.kind]
    if parameter.kind == "software":
        return parameter.owner in {holder(name, parameter.field) for name in mine}
    return parameter.owner in mine


def apply(case: Case, factors: Mapping[Parameter, float]) -> Case:
    """The case with every number that it depends on multiplied by its factor."""
    cluster, trainer = case.task.cluster, case.task.trainer
    for parameter, factor in factors.items():
        if factor == 1.0 or not touches(parameter, case):
            continue
        if parameter.kind == "software":
            trainer = _scaled_trainer(trainer, parameter.field, factor)
        elif parameter.kind == "chip":
            cluster = replace(cluster, chip=_scaled_chip(cluster.chip, parameter.field, factor))
        else:
            cluster = _scaled_link(cluster, parameter.owner, parameter.field, factor)
    return replace(case, task=replace(case.task, cluster=cluster, trainer=trainer))


def _scaled_chip(chip: Chip, field: str, factor: float) -> Chip:
    if field == "compute":
        return _faster(chip, factor)
    name, _, precision = field.partition(".")
    value = getattr(chip, name)
    if precision:
        words = ("bf16", "fp16") if precision == "bf16" else (precision,)
        changed = {**value, **{w: value[w] * factor for w in words if w in value}}
    else:
        changed = value * factor
    new: dict[str, Json] = {name: changed}
    return replace(chip, **new)


def _faster(chip: Chip, factor: float) -> Chip:
    """All kernels faster alike, the small ones that wait for their launch too."""
    return replace(
        chip,
        matmul_efficiency={word: e * factor for word, e in chip.matmul_efficiency.items()},
        attention_efficiency=chip.attention_efficiency * factor,
        memory_efficiency=chip.memory_efficiency * factor,
        matmul_latency=chip.matmul_latency / factor,
        launch=chip.launch / factor,
    )


def _scaled_trainer(trainer: Trainer, field: str, factor: float) -> Trainer:
    part = next(p for p in ("overlap", "overhead") if hasattr(getattr(trainer, p), field))
    held = getattr(trainer, part)
    return replace(trainer, **{part: replace(held, **{field: getattr(held, field) * factor})})


def _scaled_link(cluster: Cluster, link: str, field: str, factor: float) -> Cluster:
    if field == "network":
        inverse = _scaled_link(cluster, link, "latency", 1 / factor)
        return _scaled_link(inverse, link, "efficiency", factor)
    levels = tuple(
        replace(level, **{field: getattr(level, field) * factor}) if level.link == link else level
        for level in cluster.levels
    )
    return replace(cluster, levels=levels)


def slopes_of(case: Case, parameters: Sequence[Parameter]) -> Array:
    """By how much the log of a case's step moves with the log of each factor.

    Shapes: ``(parameters,)``.
    """
    moved = [case, *(apply(case, {p: float(np.exp(MOVED))}) for p in parameters)]
    steps = np.log([found.step for found in predict(moved)])
    return np.asarray((steps[1:] - steps[0]) / MOVED)


def fit(
    cases: Sequence[Case],
    parameters: Sequence[Parameter],
    *,
    noise: float | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> list[Fitted]:
    """Factors that explain the measured steps of these cases best, given their priors.

    Args:
        cases: rows with a measured step.
        parameters: what may change; those that no case depends on stay at 1.
        noise: scatter of a row around the truth, log, taken as normal; None where groups weigh the same, with that of a
            group, and a robust loss lets some be wrong.
        told: called with a line of progress.
    """
    cases = [case for case in cases if step_seconds(case.run)[0]]
    touched = [[touches(p, case) for p in parameters] for case in cases]
    groups = Counter(case.run.group for case in cases)
    grouped = np.array([groups[case.run.group] ** -0.5 for case in cases]) / NOISE
    weight = grouped if noise is None else np.full(len(cases), 1 / noise)
    measured = np.log([step_seconds(case.run)[0] or np.nan for case in cases])
    width = np.array([p.width for p in parameters])
    centre = np.log([p.centre for p in parameters])

    def errors(x: Array, which: Sequence[int]) -> Array:
        factors = dict(zip(parameters, np.exp(x).tolist(), strict=True))
        steps = [found.step for found in predict([apply(cases[i], factors) for i in which])]
        return np.asarray(np.log(steps) - measured[which])

    def residuals(x: Array) -> Array:
        error = errors(x, range(len(cases)))
        told(f"mean |log error| {np.abs(error).mean():.4f}")
        return np.concatenate([weight * error, (x - centre) / width])

    def slopes(x: Array) -> Array:
        base = errors(x, range(len(cases)))
        found = np.zeros((len(cases), len(parameters)))
        for column, mine in enumerate(map(np.flatnonzero, np.array(touched).T)):
            moved = x.copy()
            moved[column] += MOVED
            found[mine, column] = (errors(moved, mine.tolist()) - base[mine]) / MOVED
        return np.vstack([weight[:, None] * found, np.diag(1 / width)])

    low, high = (np.log([getattr(p, end) for p in parameters]) for end in ("low", "high"))
    found = least_squares(
        residuals,
        np.clip(0.0, low + INSIDE, high - INSIDE),
        bounds=(low, high),
        loss="soft_l1" if noise is None else "linear",
        jac=slopes,
        x_scale=width,
        ftol=1e-4,
        xtol=1e-4,
        max_nfev=12,
    )
    each = zip(
        parameters, found.x, _spread(np.asarray(found.jac)), zip(*touched, strict=True), strict=True
    )
    return [Fitted(p, float(np.exp(x)), float(s), sum(rows)) for p, x, s, rows in each]


def _spread(jacobian: Array) -> Array:
    """Standard deviation of every log factor where residuals have these slopes."""
    return np.asarray(np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian))))
