"""The space around a plan: step against memory of the layouts that the rules allow, few enough to be drawn."""

from __future__ import annotations

import numpy as np

from planner.candidates import RECOMPUTE, concatenate, distinct
from planner.cost.prices import prices
from planner.cost.step import exact
from planner.plan.figures import Landscape
from planner.search.bounded import fits
from planner.search.engine import SAME, Outcome
from planner.trainers.trainer import Task
from planner.units import Array, IntArray

FIELDS = 24
"""Fields of the picture along each of its sides; of each the layout with the least bound is priced."""
WIDEST, TALLEST = 2.0, 1.6
"""Edges of the picture: steps over the best, bytes over the limit."""


def landscape(task: Task, outcome: Outcome) -> Landscape | None:
    """Layouts around the best one, priced exactly; None where nothing was found."""
    if outcome.best is None:
        return None
    candidates, bounded = outcome.space.candidates, outcome.bounded
    best = float(outcome.step[0])
    most_step, most_memory = WIDEST * best, TALLEST * task.memory_limit
    bounds = bounded.steps(task, candidates, np.arange(len(candidates)))
    near = np.flatnonzero(bounds <= most_step)
    memory = bounded.memory(task, candidates, near)
    near, memory = near[memory <= most_memory], memory[memory <= most_memory]
    chosen = near[_spread(bounds[near] / most_step, memory / most_memory)]
    rows = concatenate([outcome.best.rows, candidates.take(chosen)])
    once = np.sort(distinct([getattr(rows, name) for name in SAME])[0])
    rows, own = rows.take(once), once[once < len(outcome.step)]
    found = exact(prices(task, rows))
    step = np.concatenate([outcome.step[own], found.step[len(own) :]])  # winners as divided
    size = np.concatenate([outcome.memory[own], found.memory[len(own) :]])
    order = np.lexsort((size, step))
    step, size = step[order], size[order]
    fit = fits(task, size, found.host[order])
    inside = (step <= most_step) & (size <= most_memory)
    rows, step, size, fit = rows.take(order[inside]), step[inside], size[inside], fit[inside]
    least = np.minimum.accumulate(size)
    front = np.flatnonzero(np.diff(least, prepend=np.inf) < 0)
    names = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch")
    return Landscape.model_validate(
        {name: tuple(getattr(rows, name).tolist()) for name in names}
        | {
            "step": tuple(step.tolist()),
            "memory": tuple(np.round(size).tolist()),
            "recompute": tuple(RECOMPUTE[mode] for mode in rows.recompute),
            "front": tuple(front.tolist()),
            "fits": tuple(fit.tolist()),
            "allowed": len(candidates),
            "near": len(near),
            "most_step": most_step,
            "most_memory": most_memory,
        }
    )


def _spread(x: Array, y: Array) -> IntArray:
    """Places of the leftmost point of every field; x and y are shares of the picture's sides."""
    column, row = ((FIELDS * v).astype(np.int64) for v in (x, y))
    order = np.lexsort((y, x))
    first, _ = distinct([column[order], row[order]])
    return np.asarray(order[first])
