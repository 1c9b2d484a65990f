"""The plan of a question on pools of different chips."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.prices import Prices
from planner.errors import listed
from planner.hardware.cluster import Level
from planner.hardware.pools import Pools, blended
from planner.plan.cluster import ClusterFacts, LevelFacts, PoolFacts, Use
from planner.plan.schema import Plan, Proof
from planner.search.alternatives import rows_of, seated
from planner.search.answer import (
    Header,
    assembled,
    efficiency_sources,
    level_facts,
    removed_facts,
)
from planner.search.breakdown import breakdown
from planner.search.pools.place import Site
from planner.search.pools.uses import Way
from planner.trainers.trainer import Task
from planner.units import show_seconds

PROVEN = 1e-3
"""Share by which a cut that nobody looked at may be faster; as of the stages of any plan."""


def build_plan(
    site: Site, pools: Pools, found: Sequence[Way], header: Header, own: Prices | None = None
) -> Plan:
    """The plan of the fastest way; there is one that fits.

    Args:
        site: the question.
        pools: as the user named them.
        found: all ways, fastest first.
        header: what the plan carries besides.
        own: the user's own layout, which stands among the rows.
    """
    best = found[0]
    task, priced = _fullest(site, best)
    removed = () if best.outcome is None else removed_facts(task, best.outcome.space)
    plan = assembled(
        task,
        priced,
        header,
        alternatives=rows_of(best.rows, own),
        removed=removed,
        proof=_proof(found),
    )
    return on_pools(plan, site, pools, priced, found)


def price_placed(site: Site, pools: Pools, priced: Prices, header: Header, proof: Proof) -> Plan:
    """The plan of a layout that the user states on pools."""
    b = breakdown(priced, 0)
    task = b.prices.at(b.fullest).task
    plan = assembled(task, priced, header, alternatives=(), removed=(), proof=proof)
    return on_pools(plan, site, pools, priced)


def on_pools(
    plan: Plan, site: Site, pools: Pools, priced: Prices, ways: Sequence[Way] = ()
) -> Plan:
    """A plan with what is known of the pools; stages of a pool alone get its name."""
    used = _chips_used(site, priced)
    stages = plan.stages
    if priced.mix is None:
        task = priced.task
        told = {"chip": task.cluster.chip.name, "memory_limit": task.memory_limit}
        stages = tuple(stage.model_copy(update=told) for stage in stages)
    pace = breakdown(priced, 0).prices.task.cluster.chip
    facts = pool_facts(site, pools, used).model_copy(
        update={"efficiency_sources": efficiency_sources(pace)}
    )
    idle = [
        f"{pool.num_chips - pool.chips_used} of {pool.num_chips} chips of {pool.name}"
        for pool in facts.pools
        if pool.chips_used < pool.num_chips
    ]
    warnings = plan.warnings
    vendors = sorted({pool.vendor for pool in facts.pools if pool.chips_used})
    if len(vendors) > 1:
        what = f"No trainer known here joins chips of {listed(vendors, 'and')} in one job"
        warnings = (*warnings, f"{what}: their collectives come from different libraries.")
    if idle:
        why = _why_idle(plan, ways)
        warnings = (*warnings, f"Left unused: {', '.join(idle)}{why}.")
    return plan.model_copy(
        update={
            "cluster": facts,
            "stages": stages,
            "degrees": seated(priced),
            "uses": tuple(map(_use, ways)),
            "warnings": tuple(text for text in warnings if " idle: " not in text),
        }
    )


def _why_idle(plan: Plan, ways: Sequence[Way]) -> str:
    """What the ways that use more chips take: their best step, or what bounds it."""
    more = [way for way in ways if way.chips > plan.degrees.chips_used]
    known = (way.bound if way.stopped or not way.steps else way.step for way in more)
    least = min(known, default=np.inf)
    if least < plan.step * (1.0 - PROVEN):
        return "; what they would save was not looked at to the end"
    return f", as with them the step takes {show_seconds(least)} or more" if least < np.inf else ""


def pool_facts(site: Site, pools: Pools, used: Sequence[int]) -> ClusterFacts:
    """The pools as the plan shows them."""
    chips = [(task.cluster.chip, task.cluster.num_chips) for task in site.tasks]
    mean, precision = blended(chips), site.tasks[0].recipe.precision
    return ClusterFacts(
        name=pools.name,
        chip=mean.name,
        num_chips=pools.num_chips,
        memory=mean.memory_bytes,
        peak=mean.peak_for(precision),
        levels=(*level_facts(site.tasks[0].cluster),),
        price=mean.price,
        watts=mean.watts,
        pools=tuple(_pool_facts(task, count) for task, count in zip(site.tasks, used, strict=True)),
        link=_level(site.link, pools.num_chips),
    )


def _pool_facts(task: Task, used: int) -> PoolFacts:
    cluster = task.cluster
    return PoolFacts(
        name=cluster.name,
        chip=cluster.chip.name,
        vendor=cluster.chip.vendor,
        num_chips=cluster.num_chips,
        chips_used=used,
        memory=cluster.chip.memory_bytes,
        memory_limit=task.memory_limit,
        peak=cluster.chip.peak_for(task.recipe.precision),
        levels=level_facts(cluster),
        price=cluster.chip.price,
    )


def _level(level: Level, chips: int) -> LevelFacts:
    return LevelFacts(
        name=level.name,
        size=chips,
        bandwidth=level.bandwidth,
        achieved=level.achieved,
        latency=level.latency,
    )


def _chips_used(site: Site, priced: Prices) -> list[int]:
    if priced.mix is not None:
        return list(priced.mix.chips)
    name = priced.task.cluster.name
    ranks = int(priced.rows.ranks[0])
    return [ranks if task.cluster.name == name else 0 for task in site.tasks]


def _fullest(site: Site, best: Way) -> tuple[Task, Prices]:
    """The best layout, and the question on the pool of its fullest stage."""
    priced = best.rows[0]
    b = breakdown(priced, 0)
    return b.prices.at(b.fullest).task, priced


def _use(way: Way) -> Use:
    if not way.steps:
        return Use(text=way.text, chips=way.chips, step=None, note=way.note)
    gap = max(way.gap, 1.0 - way.bound / way.step, 0.0)
    return Use(text=way.text, chips=way.chips, step=way.step, note=way.note, gap=gap)


def _proof(found: Sequence[Way]) -> Proof:
    best = found[0]
    bound = min(best.step, *(way.bound for way in found))
    gap = max(0.0, 1.0 - bound / best.step)
    return Proof(
        optimal=gap < PROVEN,
        bound=bound,
        gap=gap if gap >= PROVEN else 0.0,
        searched=sum(way.searched for way in found),
        allowed=sum(way.searched for way in found),
        fitting=sum(way.searched for way in found),
        refined=sum(way.refined for way in found),
        cut_gap=best.gap,
        stopped=any(way.stopped for way in found),
    )
