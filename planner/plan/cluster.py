"""What a plan runs on: a cluster in a few numbers, or pools of different chips and the ways to use them."""

from __future__ import annotations

from pydantic import Field

from planner.plan.part import Count, Part, Positive, Share


class LevelFacts(Part):
    """One tier of the network."""

    name: str
    size: Count
    """Chips in one group."""
    bandwidth: Positive
    """Bytes/s a chip and direction, on the wire."""
    achieved: Positive
    """Bytes/s a chip and direction that large collectives reach."""
    latency: Share
    """Seconds for one step of a collective."""


class PoolFacts(Part):
    """One of several pools of different chips."""

    name: str
    chip: str
    vendor: str = ""
    """Who makes the chip."""
    num_chips: Count
    chips_used: int
    """Chips that the plan uses."""
    memory: Positive
    """Usable bytes on a chip."""
    memory_limit: Positive
    """Bytes a chip that a plan may use."""
    peak: Positive
    """FLOP/s of one chip in the recipe's precision, dense, data sheet."""
    levels: tuple[LevelFacts, ...]
    price: float | None = None
    """Dollars for one chip-hour."""


class ClusterFacts(Part):
    """The cluster in a few numbers; of pools of different chips, the average chip, and what each of them has."""

    name: str
    chip: str
    num_chips: Count
    memory: Positive
    """Usable bytes on a chip."""
    peak: Positive
    """FLOP/s of one chip in the recipe's precision, dense, data sheet."""
    levels: tuple[LevelFacts, ...]
    price: float | None = None
    """Dollars for one chip-hour."""
    watts: float | None = None
    """Power limit of a chip, where known."""
    efficiency_sources: dict[str, str] = Field(default_factory=dict)
    """Where the chip's efficiencies come from, by key; the first word says how: fitted, measured, borrowed, assumed,
    calibrated on own runs, or stated."""
    pools: tuple[PoolFacts, ...] = ()
    """Pools of different chips; empty where all are alike."""
    link: LevelFacts | None = None
    """The network between pools."""


class Use(Part):
    """One way to use pools of different chips, and the best that it does."""

    text: str
    """In words: ``only h100-sxm``, ``stages on both``."""
    chips: int
    """Chips that it uses."""
    step: Positive | None
    """Seconds of its fastest step; None where nothing fits, or where it is known to be slower than the plan."""
    note: str = ""
    """Why there is no step, or what the step rests on."""
    gap: float | None = None
    """Share by which a plan of this way may at most be faster than its step; 0 is proved, None where it has none."""


def kind_of(cluster: str) -> str:
    """A cluster's name without its number of chips; pools are named whole.

    >>> kind_of("h100-sxm:32x8"), kind_of("my.yaml"), kind_of("h100-sxm:8 + t4:4")
    ('h100-sxm', 'my.yaml', 'h100-sxm:8 + t4:4')
    """
    name, colon, size = cluster.rpartition(":")
    return name if colon and size[:1].isdigit() and "+" not in cluster else cluster
