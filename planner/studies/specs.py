"""Clusters as people name them: with other numbers of chips, and what a price may call them by."""

from __future__ import annotations

from collections.abc import Mapping

from planner.asking import read
from planner.errors import PlannerError
from planner.frontends.cluster_file import is_mixed
from planner.frontends.pools_file import read_pools
from planner.plan.cluster import kind_of
from planner.question import Question


def with_chips(cluster: str, count: int) -> str:
    """A cluster's name with another number of chips.

    Raises:
        PlannerError: pools, of which one number does not say how many of each (C06).

    >>> with_chips("h100-sxm:32x8", 64), with_chips("my.yaml", 8)
    ('h100-sxm:64', 'my.yaml:8')
    """
    if is_mixed(cluster):
        raise PlannerError.of(
            "C06",
            f"--cluster {cluster}: of {count:,} chips it is not said how many are of which pool.",
            "Name each size: --cluster 'A:8 + B:4' --cluster 'A:16 + B:8'",
        )
    return f"{kind_of(cluster)}:{count}"


def scaled(cluster: str, num_chips: int, factor: float) -> str:
    """A cluster of so many times as many chips; of pools each is scaled. Empty where that is no whole number of each.

    >>> scaled("h100-sxm:8", 8, 2), scaled("h100-sxm:8 + t4:2x2", 12, 0.5), scaled("t4:1", 1, 0.5)
    ('h100-sxm:16', 'h100-sxm:4 + t4:1x2', '')
    """
    if not is_mixed(cluster):
        chips = int(num_chips * factor)
        return with_chips(cluster, chips) if chips else ""
    found = []
    for part in cluster.split("+"):
        name, _, count = part.strip().rpartition(":")
        first, by, rest = count.partition("x")
        size = int(first) * factor if first.isdigit() else 0.5
        if size < 1 or size != int(size):
            return ""
        found.append(f"{name}:{int(size)}{by}{rest}")
    return " + ".join(found)


def stated_prices(question: Question, dollars: Mapping[str, float]) -> tuple[str, ...]:
    """What-ifs that put stated prices in their places: of the chip, or of each pool that is named."""
    if not dollars:
        return ()
    given = {name.lower(): value for name, value in dollars.items()}
    return tuple(
        f"{number}={given[name]:.12g}"
        for number, names in _called(question).items()
        if (name := next((name for name in given if name in names), None))
    )


def names_of(question: Question) -> set[str]:
    """Everything that a price may be stated for."""
    return set().union(*_called(question).values())


def _called(question: Question) -> dict[str, set[str]]:
    """The prices of a question's cluster, by what-if, with the names of what they are paid for."""
    whole = {question.cluster.lower(), kind_of(question.cluster).lower()}
    try:
        pools = read_pools(question.cluster, question.folders)
        if pools is not None:
            return {
                f"{pool.name}.price": {pool.name.lower(), pool.chip.name.lower()}
                for pool in pools.pools
            }
        cluster = read(question).task.cluster
    except PlannerError:
        return {"chip.price": whole}
    return {"chip.price": whole | {cluster.name.lower(), cluster.chip.name.lower()}}
