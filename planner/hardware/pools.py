"""Pools of different chips that train one model: clusters, and the network that joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.units import GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Two or more clusters of one kind of chip each."""

    name: str
    """How the user asked for them, or the profile's name."""
    pools: tuple[Cluster, ...]
    """In the order in which the user gave them; their names differ."""
    link: Level
    """The network between chips of different pools."""
    assumed: tuple[str, ...] = ()
    """What nobody stated about them together, one clause each."""

    @property
    def num_chips(self) -> int:
        """Chips of all pools."""
        return sum(pool.num_chips for pool in self.pools)


def joined(name: str, pools: tuple[Cluster, ...]) -> Pools:
    """Pools between which nobody states a network: it is the slower of theirs."""
    link = slowest_link(pools)
    return Pools(name=name, pools=pools, link=link, assumed=(told(link),))


def told(link: Level) -> str:
    """What is assumed of the network between pools."""
    rate = link.bandwidth / link.oversubscription / GB * 8
    return f"{rate:g} Gb/s a chip between pools (the slower of their networks)"


def blended(chips: Sequence[tuple[Chip, int]]) -> Chip:
    """The average of so many chips of each kind: what the data sheets of all of them together allow one.

    >>> from planner.frontends.cluster_file import read_chip
    >>> mean = blended([(read_chip("v100-sxm-16gb"), 3), (read_chip("t4"), 1)])
    >>> mean.name, mean.peak["fp16"] / 1e12
    ('v100-sxm-16gb + t4', 110.0)
    """
    used = [(chip, count) for chip, count in chips if count]
    if len(used) == 1:
        return used[0][0]
    total = sum(count for _, count in used)
    first = used[0][0]
    common = set.intersection(*(set(chip.peak) for chip, _ in used))

    def mean(values: Sequence[float]) -> float:
        return sum(v * count for v, (_, count) in zip(values, used, strict=True)) / total

    prices = [chip.price for chip, _ in used if chip.price is not None]
    watts = [chip.watts for chip, _ in used if chip.watts is not None]
    return replace(
        first,
        name=" + ".join(dict.fromkeys(chip.name for chip, _ in used)),
        memory_bytes=min(chip.memory_bytes for chip, _ in used),
        peak={
            word: mean([chip.peak[word] for chip, _ in used])
            for word in first.peak
            if word in common
        },
        price=mean(prices) if len(prices) == len(used) else None,
        watts=mean(watts) if len(watts) == len(used) else None,
        sources={"price_per_hour": "of the chips used"},
    )


def slowest_link(pools: tuple[Cluster, ...]) -> Level:
    """The network between pools where nobody states one: the slower of their outermost levels.

    A message leaves one chip by its own card and enters another by that one's, so that the slower card sets the pace.
    """
    outermost = (pool.levels[-1] for pool in pools)
    slow = min(outermost, key=lambda level: level.bandwidth / level.oversubscription)
    return replace(slow, name="between pools", size=None)


def spanning(pool: Cluster, num_chips: int, link: Level) -> Cluster:
    """So many chips like a pool's, of which no more stand together than the pool has; the rest is beyond the link.

    What a stage on several pools looks like from one of its chips.
    """
    inner = [level for level in pool.levels if level.size is not None and level.size < num_chips]
    outer = min(pool.levels[-1], link, key=lambda level: level.bandwidth / level.oversubscription)
    return replace(
        pool, num_chips=num_chips, levels=(*inner, replace(outer, name=link.name, size=None))
    )
