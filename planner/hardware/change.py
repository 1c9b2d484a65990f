"""What-ifs: a cluster with one of its numbers changed, by a factor or to a value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from planner.errors import PlannerError, listed, nearest
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.units import parse_quantity

Kind: TypeAlias = Literal["flops", "bandwidth", "time", "bytes", "dollars", "watts", "share"]
EXAMPLES: dict[Kind, str] = {
    "flops": "989 TFLOPS",
    "bandwidth": "400 Gb/s or 50 GB/s",
    "time": "5 us",
    "bytes": "80 GiB",
    "dollars": "2.50",
    "watts": "700",
    "share": "0.8",
}
_FORM = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=\s*(\S.*?)\s*")
_FACTOR = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s*[x×]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HardwareNumber:
    """One number of a cluster that can be another."""

    id: str
    """Such as ``chip.peak`` or ``node.bandwidth``."""
    label: str
    kind: Kind
    value: float
    """Now; in bytes, bytes/s, seconds, FLOP/s, dollars an hour, watts, or a share of 1; 0 where it is not known."""
    put: Callable[[float], Cluster]
    """The cluster with another value."""

    def times(self, factor: float) -> Cluster:
        """The cluster with the value multiplied; a share stops at 1."""
        value = self.value * factor
        return self.put(min(1.0, value) if self.kind == "share" else value)


def hardware_numbers(cluster: Cluster) -> dict[str, HardwareNumber]:
    """Every number that can be changed, by id: the chip's, the host's, then each level's from the closest on."""
    found = [*_of_chip(cluster), *_of_host(cluster)]
    for index, level in enumerate(cluster.levels[: cluster.depth]):
        found += _of_level(cluster, index, level)
    return {number.id: number for number in found}


def _of_chip(cluster: Cluster) -> list[HardwareNumber]:
    chip = cluster.chip
    best = max(chip.peak, key=lambda name: (name == "bf16", name == "fp16", chip.peak[name]))
    reached = chip.matmul_efficiency

    def put(change: Callable[[float], Chip]) -> Callable[[float], Cluster]:
        return lambda value: replace(cluster, chip=change(value))

    return [
        HardwareNumber("chip.peak", "peak FLOP/s of a chip", "flops", chip.peak[best],
                       put(lambda v: replace(chip, peak=_scaled(chip.peak, v / chip.peak[best])))),
        HardwareNumber("chip.bandwidth", "memory bandwidth of a chip", "bandwidth", chip.memory_bandwidth,
                       put(lambda v: replace(chip, memory_bandwidth=v))),
        HardwareNumber("chip.memory", "memory of a chip", "bytes", chip.memory_bytes,
                       put(lambda v: replace(chip, memory_bytes=v))),
        HardwareNumber("chip.matmul_efficiency", "matrix efficiency of a chip", "share", reached[best],
                       put(lambda v: replace(chip, matmul_efficiency=_scaled(reached, v / reached[best], most=1.0)))),
        HardwareNumber("chip.matmul_latency", "latency of a matrix product", "time", chip.matmul_latency,
                       put(lambda v: replace(chip, matmul_latency=v))),
        HardwareNumber("chip.attention_efficiency", "attention efficiency of a chip", "share",
                       chip.attention_efficiency, put(lambda v: replace(chip, attention_efficiency=v))),
        HardwareNumber("chip.memory_efficiency", "memory efficiency of a chip", "share", chip.memory_efficiency,
                       put(lambda v: replace(chip, memory_efficiency=v))),
        HardwareNumber("chip.launch", "time between two kernels", "time", chip.launch,
                       put(lambda v: replace(chip, launch=v))),
        HardwareNumber("chip.price", "price of a chip-hour", "dollars", chip.price or 0.0,
                       put(lambda v: replace(chip, price=v))),
        HardwareNumber("chip.watts", "power of a chip", "watts", chip.watts or 0.0,
                       put(lambda v: replace(chip, watts=v))),
    ]  # fmt: skip


def _of_host(cluster: Cluster) -> list[HardwareNumber]:
    return [
        HardwareNumber("host.bandwidth", "bandwidth of the link to the host", "bandwidth", cluster.host_bandwidth,
                       lambda v: replace(cluster, host_bandwidth=v)),
        HardwareNumber("host.memory_bandwidth", "bandwidth of the host's memory", "bandwidth",
                       cluster.host_memory_bandwidth, lambda v: replace(cluster, host_memory_bandwidth=v)),
    ]  # fmt: skip


def _of_level(cluster: Cluster, index: int, level: Level) -> list[HardwareNumber]:
    def put(change: Callable[[float], Level]) -> Callable[[float], Cluster]:
        def changed(value: float) -> Cluster:
            levels = list(cluster.levels)
            levels[index] = change(value)
            return replace(cluster, levels=tuple(levels))

        return changed

    name = level.name
    crowding = HardwareNumber(f"{name}.all_to_all_doubling", f"all-to-all of twice as many on the {name}", "share",
                              level.all_to_all_doubling,
                              put(lambda v: replace(level, all_to_all_doubling=min(v, 1.0))))  # fmt: skip
    return [
        HardwareNumber(f"{name}.bandwidth", f"bandwidth of the {name}", "bandwidth", level.bandwidth,
                       put(lambda v: replace(level, bandwidth=v))),
        HardwareNumber(f"{name}.latency", f"latency of the {name}", "time", level.latency,
                       put(lambda v: replace(level, latency=v))),
        HardwareNumber(f"{name}.efficiency", f"efficiency of the {name}", "share", level.efficiency,
                       put(lambda v: replace(level, efficiency=v))),
        HardwareNumber(f"{name}.ramp", f"ramp of the {name}", "bytes", level.ramp_bytes,
                       put(lambda v: replace(level, ramp_bytes=v))),
        *([crowding] if level.all_to_all_doubling < 1.0 else []),
    ]  # fmt: skip


def _scaled(rates: Mapping[str, float], factor: float, most: float = math.inf) -> dict[str, float]:
    """Numbers by precision, all multiplied."""
    return {name: min(most, rate * factor) for name, rate in rates.items()}


def changed(cluster: Cluster, text: str) -> tuple[Cluster, str]:
    """A cluster under a what-if such as ``node.bandwidth=0.5x``, ``chip.memory=192 GiB`` or ``chip.price=2.10``.

    Returns:
        The cluster, and the change in words.

    Raises:
        PlannerError: the cluster has no such number, or the value is none (C05).
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise PlannerError.of(
            "C05", f"--what-if '{text}' is not NUMBER=VALUE.", "Write it like node.bandwidth=0.5x"
        )
    known = hardware_numbers(cluster)
    number = known.get(match[1]) or known.get(f"chip.{match[1]}")
    if number is None:
        raise _unknown(cluster, match[1], known)
    factor = _FACTOR.fullmatch(match[2])
    value = number.value * float(factor[1]) if factor else _value(text, match[2], number.kind)
    if not 0 < value < 1e30:
        raise PlannerError.of("C05", f"--what-if '{text}' must leave more than nothing.")
    if number.kind == "share" and value > 1:
        raise PlannerError.of(
            "C05", f"--what-if '{text}' makes {number.label} {value:g}; it is at most 1."
        )
    words = f"{number.label} {'× ' if factor else ''}{match[2].rstrip('xX×').strip()}"
    return _stated(number.put(value), number.id.removeprefix("chip.")), words


def _stated(cluster: Cluster, key: str) -> Cluster:
    """The cluster, whose number has no source any more but the what-if."""
    if key not in cluster.chip.sources:
        return cluster
    sources = {**cluster.chip.sources, key: "stated: a what-if"}
    return replace(cluster, chip=replace(cluster.chip, sources=sources))


def _unknown(cluster: Cluster, word: str, known: Mapping[str, HardwareNumber]) -> PlannerError:
    close = listed(nearest(word, known))
    return PlannerError.of(
        "C05",
        f"{cluster.name} has no number '{word}'. Nearest: {close}.",
        f"Numbers: {listed(list(known), 'and')}.",
    )


def _value(text: str, value: str, kind: Kind) -> float:
    try:
        if kind in ("dollars", "watts", "share"):
            return float(value.removeprefix("$").removesuffix("W").strip())
        return parse_quantity(value, kind)
    except ValueError:
        raise PlannerError.of(
            "C05",
            f"--what-if '{text}': '{value}' is no value of this number.",
            f"Write it as a factor like 0.5x, or like {EXAMPLES[kind]}",
        ) from None
