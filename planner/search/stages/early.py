"""What no cut of a table of stages beats, of many tables at once: cheaper than to follow the layers of each."""

from __future__ import annotations

import numpy as np

from planner.cost.bounds import lower_bound
from planner.cost.orders import Schedule
from planner.search.stages.table import StageTable
from planner.units import Array, BoolArray

HALVINGS = 16
"""Steps of the search for the least time in which stages hold all layers."""


def least_seconds(tables: StageTable, after: Array) -> Array:
    """Seconds that the schedule of a cut and what follows it take at least, for each of several tables.

    Args:
        tables: tables under one another: ``forward`` and its like have a leading dimension.
        after: seconds that follow the schedule.

    Shapes: ``after`` and the seconds of the tables ``(n, stages, kinds, sizes)``; result ``(n,)``.

    Units: seconds; infinite where there is no cut.

    Proof:
        A stage that works w_i on a micro-batch runs all m of them, and what follows it follows all. Under 1F1B the path
        that stays on it takes W, (m - p + i) w_i and the sum of w_j for j > i (:mod:`planner.cost.bounds`). Stages
        hold no more layers than they finish in time, which together are all. W is bounded with a price of a layer:
        stages hold what is cheapest less the price of its layers, and all layers are paid for.
    """
    m, p = tables.micro_batches, tables.forward.shape[1]
    own, ends = ((part.min(axis=2)) for part in (tables.forward + tables.backward, after))
    whole = _whole(own, tables)
    with np.errstate(invalid="ignore"):
        values = m * own
        if tables.schedule == Schedule.ONE_F_ONE_B:
            crossed = float(tables.pairs.sum())
            stays = np.maximum(m - p + np.arange(p), 0)
            least = own.min(axis=2) + tables.pairs
            later = np.cumsum(least[:, ::-1], axis=1)[:, ::-1] - least
            turned = crossed + whole[:, None] + np.where(stays > 0, later, 0.0)
            values = np.maximum(values, turned[..., None] + stays[:, None] * own)
        values = np.where(np.isfinite(own), values + ends, np.inf)
    half = whole / 2
    least = lower_bound(tables.schedule, p, m, 1, half, half, tables.send[:-1].min())
    return np.asarray(np.maximum(_filled(values, tables), least + ends.min(axis=2).max(axis=1)))


def _whole(own: Array, tables: StageTable) -> Array:
    """Least seconds of a micro-batch on all stages; ``own`` is ``(n, stages, sizes)``, the result ``(n,)``."""
    sizes, found = tables.sizes, np.full(len(own), -np.inf)
    with np.errstate(invalid="ignore"):
        slopes = np.diff(own, axis=2) / np.diff(sizes)
    known = np.isfinite(slopes)
    none = ~known.any(axis=(1, 2))
    for pick, other in ((np.min, np.inf), (np.max, -np.inf)):
        price = np.where(none, 0.0, pick(np.where(known, slopes, other), axis=(1, 2)))
        paid = (own - price[:, None, None] * sizes).min(axis=2).sum(axis=1)
        found = np.maximum(found, paid + price * tables.num_layers)
    return found


def _filled(values: Array, tables: StageTable) -> Array:
    """The least time in which stages hold all layers, from below; ``(n, stages, sizes)`` to ``(n,)``."""

    def holds(time: Array) -> BoolArray:
        most = np.where(values <= time[:, None, None], tables.sizes, -tables.num_layers - 1)
        held = most.max(axis=2)
        return np.asarray((held >= 0).all(axis=1) & (held.sum(axis=1) >= tables.num_layers))

    high = np.where(np.isfinite(values), values, 0.0).max(axis=(1, 2))
    low = values.min(axis=2).max(axis=1)
    never = ~holds(high)
    low, high = np.where(never, np.inf, low), np.where(never, np.inf, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = holds(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low
