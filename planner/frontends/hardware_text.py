"""Chips and clusters as the text of files that read back as the same."""

from __future__ import annotations

from dataclasses import asdict

from planner.frontends.hardware_files import links
from planner.frontends.yaml_source import dump_yaml
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.units import GB, GIB, MIB, TERA, US, Json


def dump_chip(chip: Chip) -> str:
    """A chip as the text of a file that reads back as the same chip."""
    return dump_yaml(_chip_data(chip))


def dump_cluster(cluster: Cluster) -> str:
    """A cluster with its chip as the text of a file that reads back as the same cluster."""
    data = {
        "name": cluster.name,
        "num_chips": cluster.num_chips,
        "chips_per_host": cluster.chips_per_host,
        "host_bandwidth_gbps": _written(cluster.host_bandwidth, GB),
        "host_sharers": cluster.host_sharers,
        "host_memory_gib": cluster.host_memory and _written(cluster.host_memory, GIB),
        "host_memory_bandwidth_gbps": _written(cluster.host_memory_bandwidth, GB),
        "levels": [_level_data(level) for level in cluster.levels],
        "chip": _chip_data(cluster.chip),
        "assumed": list(cluster.assumed),
        "sources": dict(cluster.sources),
        "calibrated": cluster.calibrated and _stated(asdict(cluster.calibrated)),
    }
    return dump_yaml(_stated(data))


def _chip_data(chip: Chip) -> dict[str, Json]:
    return _stated(
        {
            "name": chip.name,
            "vendor": chip.vendor,
            "family": chip.family,
            "cluster": chip.cluster,
            "memory_gib": _written(chip.memory_bytes, GIB),
            "memory_bandwidth_gbps": _written(chip.memory_bandwidth, GB),
            "peak_tflops": {name: _written(peak, TERA) for name, peak in chip.peak.items()},
            "matmul_efficiency": dict(chip.matmul_efficiency),
            "matmul_latency_us": _written(chip.matmul_latency, US),
            "matmul_sharpness": chip.matmul_sharpness,
            "attention_efficiency": chip.attention_efficiency,
            "memory_efficiency": chip.memory_efficiency,
            "launch_us": _written(chip.launch, US),
            "watts": chip.watts,
            "price_per_hour": chip.price,
            "measured": chip.measured,
            "sources": dict(chip.sources),
        }
    )


def _level_data(level: Level) -> dict[str, Json]:
    usual = level.all_to_all_doubling == links()[level.link or "unknown"].all_to_all_doubling
    return _stated(
        {
            "name": level.name,
            "size": level.size,
            "link": level.link,
            "bandwidth_gbps": _text_rate(level.bandwidth),
            "efficiency": level.efficiency,
            "latency_us": _written(level.latency, US),
            "ramp_mib": _written(level.ramp_bytes, MIB),
            "oversubscription": level.oversubscription,
            "sharers": level.sharers if level.sharers > 1 else None,
            "full_mesh": level.full_mesh,
            "all_to_all_doubling": None if usual else level.all_to_all_doubling,
            "note": level.note,
        }
    )


def _stated(data: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in data.items() if value not in (None, "", [], {})}


def _text_rate(rate: float) -> str:
    """A link's rate with its unit: no doubt about bits and bytes, and no check of what is plausible."""
    return f"{_written(rate, GB)} GB/s"


def _written(value: float, unit: float) -> float | int:
    """A number in a unit, with no more digits than it takes to read the same value back."""
    for digits in range(1, 18):
        short = float(f"{value / unit:.{digits}g}")
        if short * unit == value:
            return int(short) if short.is_integer() and short < 1e15 else short
    return value / unit
