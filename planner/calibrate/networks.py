"""From the hardware that a row states to a cluster: our chip, the row's own network."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from planner.calibrate.runs import HardwareFacts
from planner.calibrate.shapes import NotPricedError
from planner.calibrate.spellings import plain_chip
from planner.errors import PlannerError
from planner.frontends.cluster_file import read_cluster
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster, Level
from planner.units import GB, GIB

GBIT = 1e9 / 8
RELATIVES: dict[str, tuple[str, dict[str, float]]] = {
    "h100-sxm-96gb-500w": (
        "h100-sxm",
        {"memory_gib": 95.0, "memory_bandwidth_gbps": 2400.0, "watts": 500.0},
    ),
    "mi350x": ("mi355x", {}),
}
"""Chips that rows name and no profile describes: the nearest relative, and what is known to differ."""
CLOCK = 0.4
"""Power of the share of its board power to which a chip is held that its rate follows: dynamic power goes with the
square to the cube of the clock (assumed; no sweep over an H100's power limit is published)."""
_EACH = re.compile(r"(\d+) ?x [^,;]*?(\d+) ?(Gb|GB)(?:/s|ps|/sec)", re.IGNORECASE)
_NODE = re.compile(r"([\d.]+) ?(Gb|GB)/s(?: per node| \()", re.IGNORECASE)
_TOTAL = re.compile(r"= (\d+) Gb/s per node|\((\d+) Gb/s per node\)")
_CHIP = re.compile(r"(\d+) ?(Gb|GB)/s per GPU", re.IGNORECASE)
_PAIRED = re.compile(r"(\d+)x(\d+) ?(Gb|GB)/s", re.IGNORECASE)
_GENERATION = re.compile(r"(\d+) ?x [^,;]*?(Omni-Path|EDR|HDR|NDR|XDR)")
GENERATIONS = {"Omni-Path": 100.0, "EDR": 100.0, "HDR": 200.0, "NDR": 400.0, "XDR": 800.0}
"""Gb/s of a link by its generation, where a text gives no rate."""
_COUNTED = re.compile(r"(\d+) ?x ?(?=[\dA-Z])")
ONE_CARD = 100.0
"""Gb/s of a node up to which it has one card where nobody counts them."""
UNSTATED: dict[str, tuple[float, int]] = {
    "a100-sxm-80gb": (100.0, 2),
    "a100-sxm-40gb": (100.0, 2),
}
"""Gb/s of a chip and chips that share a card, where a row states no rate and clusters of its chip differ. Source: ten
clusters of A100 that state theirs (Selene, Azure, OCI, MosaicML and MegaScale 200; vTrain and Megatron-LLaMA 100 with
four cards a node; AWS, InternEvo and Jean Zay 50 with four), geometric mean 115; runs of the two sources that state
none (Hagemann et al., torchtitan) are 3 to 8 % off with it and 4 to 16 % with 200."""
_BIDIR = re.compile(r"NVLINK.*?(\d+) ?GB/s", re.IGNORECASE)
_INTRA_MODEL = re.compile(r"(\d+) Gb/s intra")


def cluster_of(facts: HardwareFacts) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster of a row, and what of it had to be assumed.

    Raises:
        NotPricedError: no chip, no number of chips, or a chip that no profile describes.
    """
    if facts.chip_key is None or facts.num_chips is None:
        raise NotPricedError(
            f"missing fact: {'chip' if facts.chip_key is None else 'number of chips'}"
        )
    return _cluster(facts.chip_key, facts.num_chips, facts.chips_per_node, facts.intra, facts.inter)


@cache
def _cluster(
    key: str, chips: int, per: int | None, intra: str | None, inter: str | None
) -> tuple[Cluster, tuple[str, ...]]:
    name, differs = RELATIVES.get(key, (key, {}))
    whole = per if per and chips % per == 0 else None
    cluster = _wired(name, whole) or _wired(plain_chip(name), whole)
    if cluster is None:
        raise NotPricedError(f"unsupported chip: {key}")
    cluster = replace(cluster, num_chips=chips, chip=_chip(cluster.chip, key, differs))
    assumed = [f"chip {key} taken as {name}"] if name != key and key in RELATIVES else []
    host = per or cluster.chips_per_host
    inside, between = intra_rate(intra), inter_rate(inter, host)
    switched = "nvswitch" in (intra or "").lower()
    levels = [_stated(level, inside, switched=switched) for level in cluster.levels[:-1]]
    outer = cluster.levels[-1]
    needs_network = cluster.depth == len(cluster.levels)
    if between is not None:
        outer = replace(
            outer, bandwidth=between, oversubscription=1.0, sharers=host // cards(inter, host)
        )
    elif needs_network and len(cluster.levels) > 1:
        rate, sharers = UNSTATED.get(name, (outer.bandwidth / GBIT, outer.sharers))
        outer = replace(outer, bandwidth=rate * GBIT, sharers=sharers)
        assumed.append(f"network {outer.bandwidth / GBIT:g} Gb/s a chip")
    return replace(cluster, levels=(*levels, outer), assumed=()), tuple(assumed)


@cache
def _wired(name: str, per: int | None) -> Cluster | None:
    """The usual cluster of a chip, with nodes of so many chips where its innermost level is a node."""
    try:
        cluster = read_cluster(f"{name}:1")
        if cluster.levels[0].name == "node" and per:
            cluster = read_cluster(f"{name}:1x{per}")
    except PlannerError:
        return None
    return cluster


def _chip(chip: Chip, key: str, differs: dict[str, float]) -> Chip:
    if not differs:
        return chip
    watts = differs.get("watts", chip.watts or 1.0)
    rate = (watts / (chip.watts or watts)) ** CLOCK
    return replace(
        chip,
        name=key,
        watts=watts,
        memory_bytes=differs["memory_gib"] * GIB,
        memory_bandwidth=differs["memory_bandwidth_gbps"] * GB,
        matmul_efficiency={word: e * rate for word, e in chip.matmul_efficiency.items()},
        attention_efficiency=chip.attention_efficiency * rate,
    )


def _stated(level: Level, rate: float | None, *, switched: bool) -> Level:
    """The level with the rate that a row states; behind a switch every pair has all of it."""
    if rate is None or not ("nvlink" in level.link or "pcie" in level.link):
        return level
    return replace(level, bandwidth=rate, full_mesh=level.full_mesh and not switched)


def intra_rate(text: str | None) -> float | None:
    """Bytes/s of one chip and direction inside a node, where a text gives them.

    >>> intra_rate("NVLink4 900GB/s bidir per GPU (NVSwitch)") / 1e9
    450.0
    """
    if not text:
        return None
    slow = _INTRA_MODEL.search(text)
    if slow:
        return float(slow[1]) * GBIT
    found = _BIDIR.search(text)
    return float(found[1]) * GB / 2 if found else None


def inter_rate(text: str | None, chips_per_node: int) -> float | None:
    """Bytes/s of one chip and direction between nodes, where a text gives them.

    >>> inter_rate("RoCE 1600 Gb/s per node (8x200)", 8) / 1e9
    25.0
    >>> inter_rate("IB 400Gb/s per GPU across racks (not printed); NVL72 inside", 4) / 1e9
    50.0
    >>> inter_rate("4x Omni-Path links per node", 8) / 1e9
    6.25
    """
    if not text:
        return None
    part = next((p for p in text.split(", ") if p.startswith("Compute")), text)
    total = _TOTAL.search(part)
    if total:
        return float(total[1] or total[2]) * GBIT / chips_per_node
    one = _CHIP.search(part)
    if one:
        return float(one[1]) * _unit(one[2])
    paired = _PAIRED.search(part) or _EACH.search(part)
    if paired:
        return float(paired[1]) * float(paired[2]) * _unit(paired[3]) / chips_per_node
    node = _NODE.search(part)
    if node:
        return float(node[1]) * _unit(node[2]) / chips_per_node
    links = _GENERATION.search(part)
    return float(links[1]) * GENERATIONS[links[2]] * GBIT / chips_per_node if links else None


def cards(text: str | None, chips_per_node: int) -> int:
    """Network cards of a node: as many as a text counts, one where it gives a node's rate that one card carries.

    >>> cards("10 Gb/s (p3.8xlarge)", 4), cards("RoCE 1600 Gb/s per node (8x200)", 8)
    (1, 8)
    >>> cards("4x Omni-Path links per node", 8), cards("RDMA 400 Gb/s per GPU", 8)
    (4, 8)
    """
    part = next((p for p in (text or "").split(", ") if p.startswith("Compute")), text or "")
    counted = _COUNTED.search(part)
    if counted and chips_per_node % int(counted[1]) == 0:
        return int(counted[1])
    node = _NODE.search(part)
    return 1 if node and float(node[1]) * _unit(node[2]) <= ONE_CARD * GBIT else chips_per_node


def _unit(word: str) -> float:
    return GB if word == "GB" else GBIT
