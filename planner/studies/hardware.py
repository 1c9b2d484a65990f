"""A number of the hardware explained: what it is, where it comes from, and what the step does with another."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planner.asking import sensitive
from planner.frontends.pools_file import read_pools
from planner.hardware.change import hardware_numbers
from planner.hardware.cluster import Cluster
from planner.plan.derivation import Unit
from planner.plan.facts import Fact, Facts
from planner.studies.again import Again

UNITS: Mapping[str, Unit] = MappingProxyType({
    "flops": "FLOP/s", "bandwidth": "B/s", "time": "s", "bytes": "B", "dollars": "$", "watts": "W", "share": "%",
})  # fmt: skip
WORDS = {
    "peak": "peak_tflops",
    "bandwidth": "memory_bandwidth_gbps",
    "memory": "memory_gib",
    "matmul_latency": "matmul_latency_us",
    "launch": "launch_us",
    "price": "price_per_hour",
}
"""Keys of a chip's file that are other words than those of what-ifs."""


def hardware_item(again: Again, word: str) -> Facts | None:
    """The number of the plan's hardware with this id; None where it has no such number.

    Args:
        again: the plan, whose layout is priced with the number a fifth lower and higher.
        word: as ``--what-if`` and tables of sensitivities call it: ``node.bandwidth``, ``h100-sxm.chip.peak``.
    """
    rows = [fact for cluster, id in _places(again, word) for fact in _told(cluster, word, id)]
    for each in sensitive(again.question, again.plan) if rows else ():
        if each.name == word:
            ends = ((each.low, "lower"), (each.high, "higher"))
            rows[1:1] = [_step(seconds, f"{100 * each.share:.0f} % {way}") for seconds, way in ends]
    return Facts(word, tuple(rows)) if rows else None


def _places(again: Again, word: str) -> list[tuple[Cluster, str]]:
    """The clusters that have the number, and its id there."""
    question = again.question
    pools = read_pools(question.cluster, question.folders)
    if pools is None:
        cluster = again.known.task.cluster
        return [(cluster, word)] if word in hardware_numbers(cluster) else []
    parts = [(pool, word.removeprefix(f"{pool.name}.")) for pool in pools.pools]
    return [(pool, id) for pool, id in parts if id in hardware_numbers(pool)]


def _told(cluster: Cluster, word: str, id: str) -> list[Fact]:
    """The value and its source."""
    number = hardware_numbers(cluster)[id]
    part, _, key = id.partition(".")
    sources = cluster.chip.sources if part == "chip" else cluster.sources
    name = WORDS.get(key, key) if part == "chip" else part
    name = f"host_{key}_gbps" if part == "host" else name
    value = Fact(word, number.value, UNITS[number.kind], number.label)
    return [value, Fact("source", sources.get(name, "not stated"), "", "")]


def _step(seconds: float | None, way: str) -> Fact:
    """The step with the number a fifth other."""
    if seconds is None:
        return Fact(way, "nothing fits", "", "")
    return Fact(way, seconds, "s", "a step of this layout")
