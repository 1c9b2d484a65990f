"""The best division of a layout's layers over its stages, and what each of them recomputes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from planner.cost.cut import uniform
from planner.cost.orders import Schedule
from planner.cost.partition import even_cut
from planner.cost.prices import Prices, with_cut
from planner.cost.step import makespans, memory_of_stages, stage_times, step_seconds
from planner.cost.table import KEY_AXIS
from planner.search.stages.chunked import Chunked
from planner.search.stages.on_pools import ChunkedOnPools, Looked, OnPools
from planner.search.stages.options import Mixing
from planner.search.stages.paths import Met
from planner.search.stages.single import Single
from planner.units import Array


@dataclass(frozen=True, slots=True, eq=False)
class Refined:
    """A layout with its best cut."""

    prices: Prices
    step: float
    """Seconds."""
    memory: float
    """Bytes on the fullest chip; the median."""
    gap: float
    """Share by which an unknown cut may still be faster."""


def refine(
    p: Prices, mixing: Mixing, limit: float | Array, reached: float = np.inf
) -> Refined | None:
    """The best cut of a layout.

    Args:
        p: the layout, a table of one row.
        mixing: how its layers may differ in what they recompute; ``alike`` keeps the layout's mode.
        limit: bytes, of the median; of all stages or of each.
        reached: seconds of a step; slower cuts may be left out.

    Returns:
        None where no cut fits, or none is faster than what is reached, where the order of the schedule follows the
        stages' times, or where something is in host memory.
    """
    schedule = Schedule(int(p.rows.schedule[0]))
    alone = int(p.rows.pp[0]) == 1 and mixing == "alike"
    if alone or schedule.adaptive or p.rows.offload[0]:
        return None
    wide, slower, rest = _wide(p)
    return _best(_cuts(wide, mixing, limit), wide, limit, (reached - rest) / slower)


def _best(
    search: Chunked | Single, wide: Prices, limit: float | Array, longest: float
) -> Refined | None:
    """The best of the cuts that are found, within so many seconds of the schedule and what follows it."""
    best, least = None, np.inf
    for cut, gap in search.cuts(longest):
        rows = replace(wide.rows, recompute=np.array([cut.base]))
        found, memory = _exact(with_cut(wide.stated(rows), cut), gap)
        if not (memory <= limit).all():
            continue
        least = min(least, found.step * (1.0 - gap))
        if best is None or found.step < best.step:
            best = found
    return best and replace(best, gap=max(0.0, 1.0 - least / best.step))


def refine_chunks(
    p: Prices, mixing: Mixing, limit: float | Array, reached: float, met: Met, how: Looked
) -> tuple[Refined | None, float]:
    """The same of several chunks a stage on pools, and seconds of a step that no cut beats.

    Args:
        p: as of :func:`refine`, as the next three are.
        mixing: how layers may differ in what they recompute.
        limit: bytes.
        reached: seconds of a step.
        met: paths of schedules that are known, and are then.
        how: how cuts are looked for.
    """
    wide, slower, rest = _wide(p)
    search = ChunkedOnPools(wide, mixing, limit, met, how)
    found = _best(search, wide, limit, (reached - rest) / slower)
    return found, search.beaten * slower + rest


def _wide(p: Prices) -> tuple[Prices, float, float]:
    """A layout with an even cut, how much slower a pipeline is than its schedule, and what a step takes besides."""
    pp, vpp = int(p.rows.pp[0]), int(p.rows.vpp[0])
    layers = even_cut(p.task.model.num_layers, pp, vpp)
    overhead = p.task.trainer.overhead
    wide = with_cut(_alone(p), uniform(layers, int(p.rows.recompute[0])))
    return wide, 1.0 + overhead.jitter * (pp > 1), overhead.step + float(p.sends.ends[0])


def _cuts(wide: Prices, mixing: Mixing, limit: float | Array) -> Chunked | Single:
    """What finds the cuts of a layout."""
    if int(wide.rows.vpp[0]) > 1 or int(wide.rows.pp[0]) == 1:
        return Chunked(wide, mixing, limit)
    return (Single if wide.mix is None else OnPools)(wide, mixing, limit)


def _alone(p: Prices) -> Prices:
    """A layout with its own row of the table of blocks alone."""
    rows = {
        each.name: getattr(p.table, each.name).take(p.key, axis=KEY_AXIS[each.name])
        for each in fields(p.table)
    }
    mix = p.mix and replace(p.mix, parts=tuple(map(_alone, p.mix.parts)))
    return replace(p, table=replace(p.table, **rows), key=np.zeros(1, dtype=np.int64), mix=mix)


def _exact(p: Prices, gap: float) -> tuple[Refined, Array]:
    """A candidate with its cut, and the memory of its stages."""
    times = stage_times(p)
    step = step_seconds(p, times, makespans(p, times))
    memory = memory_of_stages(p, times.blocks).total[0]
    return Refined(p, float(step[0]), float(memory.max()), gap), memory
