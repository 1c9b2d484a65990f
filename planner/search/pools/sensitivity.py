"""What a step on several pools would take if one number of their hardware were another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.prices import Prices, with_cut
from planner.cost.step import exact
from planner.hardware.change import HardwareNumber
from planner.hardware.cluster import Cluster
from planner.plan.figures import Sensitivity
from planner.search.pools.place import Seats, Site, placed, spread
from planner.search.sensitivity import SHARE, UNTIMED, largest_first


def pool_sensitivities(
    site: Site,
    plan: Prices,
    numbers: tuple[dict[str, HardwareNumber], ...],
    link: dict[str, HardwareNumber],
) -> tuple[Sensitivity, ...]:
    """The step on pools with every number of each, and of the network between them, a fifth lower and higher.

    Numbers on which the step does not depend are left out.

    Args:
        site: the question.
        plan: the layout, a table of one row, which is priced again; its stages stand on pools.
        numbers: of every pool, by id.
        link: of the network between pools, by id; what they change is a cluster of which it is the only level.
    """
    found = []
    for place, (task, own) in enumerate(zip(site.tasks, numbers, strict=True)):
        for number in own.values():
            if number.id not in UNTIMED:
                name, label = (
                    f"{task.cluster.name}.{number.id}",
                    f"{number.label}, {task.cluster.name}",
                )
                steps = (_step(_with_pool(site, place, cluster), plan) for cluster in _both(number))
                found.append(_sensitivity(name, label, steps))
    for number in link.values():
        steps = (_step(replace(site, link=cluster.levels[0]), plan) for cluster in _both(number))
        found.append(_sensitivity(number.id, f"{number.label} between pools", steps))
    moved = [each for each in found if each.low != each.high]
    return largest_first(moved, _step(site, plan))


def _both(number: HardwareNumber) -> Iterator[Cluster]:
    return (number.times(1 + sign * SHARE) for sign in (-1, 1))


def _sensitivity(name: str, label: str, steps: Iterator[float]) -> Sensitivity:
    low, high = steps
    return Sensitivity(name=name, label=label, share=SHARE, low=low, high=high)


def _with_pool(site: Site, place: int, cluster: Cluster) -> Site:
    tasks = list(site.tasks)
    tasks[place] = replace(tasks[place], cluster=cluster)
    return replace(site, tasks=tuple(tasks))


def _step(site: Site, plan: Prices) -> float:
    """Seconds of the layout on changed pools."""
    assert plan.mix is not None
    stands = plan.mix.stands
    if (stands.sum(axis=0) > 1).any():
        priced = spread(site, plan.rows)
    else:
        priced = placed(site, plan.rows, _seats(stands.argmax(axis=0).tolist()))
    return float(exact(priced if plan.cut is None else with_cut(priced, plan.cut)).step[0])


def _seats(of_stage: list[int]) -> Seats:
    pools = tuple(dict.fromkeys(of_stage))
    return Seats(pools, tuple(of_stage.count(pool) for pool in pools))
