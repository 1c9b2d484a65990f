"""What a plan says about its own accuracy: how far measured runs of its kind were from their predictions."""

from __future__ import annotations

from planner.hardware.cluster import Calibration
from planner.plan.schema import Degrees, Trust
from planner.trainers.measured import beyond
from planner.trainers.trainer import Task
from planner.trainers.trust import Spread, spread, upper

UNMEASURED = (0.30, 0.10)
"""Errors of step and memory to expect where nothing alike was measured."""


def trust(task: Task) -> Trust:
    """How far the numbers go, from the narrowest basis that has measured runs.

    The user's own runs come first, where the cluster was calibrated on some; then runs of this chip family under this
    trainer; then runs of this chip family. Without any, the intervals are a guess and say so.
    """
    chip, name = task.cluster.chip, task.trainer.name
    step, memory = (spread(quantity, chip.family, name) for quantity in ("step", "memory"))
    own = task.cluster.calibrated
    if own is not None and own.trainer == name:
        return _calibrated(own, memory)
    if step.basis not in ("pair", "family"):
        basis = f" Measured efficiencies: {chip.measured}." if chip.measured else ""
        text = (
            f"not compared with enough measured runs of {chip.name}'s family yet; "
            f"times may be off by {_percent(UNMEASURED[0])}, memory by {_percent(UNMEASURED[1])}.{basis}"
        )
        return Trust(text=text)
    where = "on this chip family" + ("" if step.basis == "pair" else f", few of them under {name}")
    text = f"±{_percent(step.half)} {where} ({_runs(step)}); memory ±{_percent(memory.half)} ({_runs(memory)}"
    text += ", of other trainers)" if memory.basis in ("family", "all") else ")"
    return Trust(
        text=text,
        step_error=step.half,
        memory_error=memory.half,
        measured=True,
    )


def extrapolated(task: Task, degrees: Degrees) -> tuple[str, ...]:
    """What of a plan lies beyond all measured runs of its chip family, in words."""
    facts = {
        "chips": degrees.chips_used,
        "params": task.model.num_params,
        "seq": task.recipe.seq,
        **{axis: getattr(degrees, axis) for axis in ("tp", "pp", "cp", "ep")},
    }
    return tuple(beyond(task.cluster.chip.family, facts))


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _runs(found: Spread) -> str:
    return f"{found.runs} measured runs, median error {_percent(found.median, 1)}"


def _calibrated(own: Calibration, memory: Spread) -> Trust:
    runs = f"{own.runs} of your runs" if own.runs > 1 else "one of your runs"
    error = memory.half if own.memory_error is None else own.memory_error
    text = f"calibrated on {runs}, ±{_percent(own.step_error)}; memory ±{_percent(error)}"
    if own.memory_error is None:
        text += f" (not measured in them; {_runs(memory)} elsewhere)"
    return Trust(text=text, step_error=own.step_error, memory_error=error, measured=True)


def noise(task: Task) -> float:
    """Share of the step by which two layouts must differ before their order means anything.

    Both run on the same cluster with the same software, so that whatever is wrong with either is wrong with both and
    cancels: what counts is the spread of residuals around the mean of their own group, not that of all runs, which is
    about twice as wide. Of measured pairs further apart than this, nine in ten are in the predicted order.
    """
    return spread("step", task.cluster.chip.family, task.trainer.name).noise


def memory_upper(task: Task, memory: float) -> float:
    """Bytes that nine of ten runs stay under, where the median is ``memory``."""
    return memory * upper(task.trainer.name)
