"""What-ifs on pools: a number of one pool, of all that have it, or of the network between them."""

from __future__ import annotations

from dataclasses import replace

from planner.errors import PlannerError
from planner.hardware.change import HardwareNumber, changed, hardware_numbers
from planner.hardware.cluster import Cluster
from planner.hardware.pools import Pools, joined, slowest_link, told

LINK = "link"
"""What the network between pools is called."""


def changed_pools(pools: Pools, text: str) -> Pools:
    """Pools under a what-if: ``t4.peak=2x``, ``link.bandwidth=0.5x``, or ``chip.price=2.10`` of every pool that has it.

    A network between pools that nobody stated follows theirs.

    Raises:
        PlannerError: nothing has such a number, or the value is none (C05).
    """
    text = text.strip()
    if text.startswith(f"{LINK}."):
        found, words = changed(as_cluster(pools), text)
        link = replace(found.levels[0], name=pools.link.name)
        return replace(pools, link=link, assumed=(*pools.assumed, f"what if: {words}"))
    own = {pool.name: text.removeprefix(f"{pool.name}.") for pool in pools.pools}
    named = {name: rest for name, rest in own.items() if rest != text}
    new = {}
    refused = None
    for pool in pools.pools:
        if named and pool.name not in named:
            continue
        try:
            new[pool.name] = _with_words(pool, own[pool.name])
        except PlannerError as error:
            refused = error
    if refused is not None and not new:
        hint = f"On pools also POOL.NUMBER and {LINK}.NUMBER, as {pools.pools[-1].name}.peak=2x."
        raise PlannerError(*(replace(fault, fix=(*fault.fix, hint)) for fault in refused.faults))
    return _rejoined(pools, tuple(new.get(pool.name, pool) for pool in pools.pools))


def _with_words(pool: Cluster, text: str) -> Cluster:
    found, words = changed(pool, text)
    return replace(found, assumed=(*found.assumed, f"what if: {words}"))


def _rejoined(pools: Pools, new: tuple[Cluster, ...]) -> Pools:
    """Changed pools, whose network follows them if it did before."""
    if pools.link != slowest_link(pools.pools):
        return replace(pools, pools=new)
    link = joined(pools.name, new).link
    words = {told(pools.link): told(link)}
    return replace(
        pools, pools=new, link=link, assumed=tuple(words.get(text, text) for text in pools.assumed)
    )


def as_cluster(pools: Pools) -> Cluster:
    """The network between pools as the only level of a cluster, so that it changes as any level does."""
    level = replace(pools.link, name=LINK, size=None)
    return replace(pools.pools[0], name=pools.name, levels=(level,), num_chips=2)


def link_numbers(pools: Pools) -> dict[str, HardwareNumber]:
    """The numbers of the network between pools."""
    found = hardware_numbers(as_cluster(pools))
    return {name: number for name, number in found.items() if name.startswith(f"{LINK}.")}
