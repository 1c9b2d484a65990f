"""A cluster: chips, and the network as an ordered list of levels from the closest to the farthest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.hardware.chip import Chip
from planner.units import Array, Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One tier of the network, such as all chips of a node or all nodes of a rack.

    A collective that moves S bytes (S as nccl-tests counts it: the full gathered buffer of an all-gather)
    among members of one level takes ``latency * log2(members) + f S / achieved * (1 + sqrt(ramp_bytes / S))``
    with the usual ring factor f.
    """

    name: str
    """What people call it: ``node``, ``rack``, ``pod``, ``network``."""
    size: int | None
    """Chips in one group of this level, all inner levels included; None where nothing limits it."""
    bandwidth: float
    """Bytes/s on the wire, for one chip and one direction."""
    efficiency: float
    """Fraction of ``bandwidth`` that large messages reach as bus bandwidth."""
    latency: float
    """Seconds for one doubling of the members."""
    ramp_bytes: float
    """Message size at which time is twice that of bandwidth alone."""
    oversubscription: float = 1.0
    """By how much the links above the group are fewer than the chips could fill; at least 1."""
    sharers: int = 1
    """Chips next to one another that share a network card: ``bandwidth`` is the part of each while all send, and one
    that sends alone has all of it."""
    full_mesh: bool = False
    """Whether every pair of chips owns its own link, so that few members reach only few links."""
    all_to_all_doubling: float = 1.0
    """Share of its rate that an all-to-all keeps with each doubling of its members, from two on."""
    link: str = ""
    """Kind of link in ``hardware_profiles/links.yaml`` whose numbers were taken, if any."""
    note: str = ""
    """What else there is to know about it."""

    @property
    def achieved(self) -> float:
        """Bytes/s that large messages reach when a whole group takes part, for one chip and direction."""
        return self.bandwidth * self.efficiency / self.oversubscription

    def achieved_by(self, members: Number) -> Array:
        """Bytes/s that large messages reach when only so many members of a group take part.

        A switch gives every member its full rate. In a full mesh each pair owns one link, so n of N chips
        reach ``(n - 1) / (N - 1)`` of it.

        Shapes: that of ``members``.

        Source: MI355X all-reduce of 2, 4, 8 chips: 59, 165, 393 GB/s; MI300X of 2, 8: 48, 313 GB/s.
        """
        if not self.full_mesh or self.size is None:
            return np.full_like(members, self.achieved, dtype=np.float64)
        links = np.maximum(np.asarray(members) - 1, 1) / max(self.size - 1, 1)
        return np.asarray(self.achieved * np.minimum(links, 1.0), dtype=np.float64)

    def sent_by(self, senders: Number) -> Array:
        """Bytes/s of each of so many chips next to one another that send at the same time.

        Shapes: that of ``senders``.
        """
        return np.asarray(self.achieved * self.sharers / np.clip(senders, 1, self.sharers))

    def ringed_by(self, inside: Number, host: int) -> Array:
        """Share of its rate that rings reach which have so many of a host's chips.

        Where chips share cards a ring leaves a host by the card that it came in by: that of its only chip there, or one
        that two of its chips share. Several that share none have of each card the way in or the way out.

        Shapes: that of ``inside``.

        Source: vTrain's A100 nodes with four cards for eight chips: gradients over two or four chips a node take twice
            what those over one or eight take; BLOOM's on such nodes, over two, 1.7 times those over one.
        """
        chips = np.asarray(inside)
        apart = (chips > 1) & (chips * self.sharers <= host)
        return np.where(apart & (self.sharers > 1), 0.5, 1.0)

    def kept_by(self, members: Number) -> Array:
        """Share of the rate that an all-to-all keeps among so many members in all.

        Shapes: that of ``members``.

        Source: expert dispatch and combine on a supernode of Ascend 910C, 8 to 128 dies: 135, 105, 98, 86, 69 GB/s
            (sgl-project/sgl-kernel-npu), within 8 % of 0.88 a doubling; NVLink and InfiniBand keep their rate.
        """
        doublings = np.maximum(np.log2(members) - 1.0, 0.0)
        return np.asarray(self.all_to_all_doubling**doublings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a profile remembers of the measured runs that it was fitted on."""

    trainer: str
    """The trainer that ran them; another one spends its time elsewhere."""
    runs: int
    """Runs that it was fitted on."""
    step_error: float
    """Half width of the interval that holds 80 % of further runs, as a share of the step."""
    memory_error: float | None = None
    """The same of memory; None where the runs did not measure it."""


@dataclass(frozen=True, slots=True)
class Host:
    """What one chip has of its host."""

    rate: float
    """Bytes/s between the chip and host memory, one direction."""
    memory: float
    """Bytes of host memory; infinite where nobody knows."""
    bandwidth: float
    """Bytes/s of the host's memory, datasheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """So many chips of one kind and the levels that join them."""

    name: str
    """How the user asked for it, or the profile's name."""
    chip: Chip
    """The chip that all of them are."""
    num_chips: int
    """Chips that training uses."""
    levels: tuple[Level, ...]
    """Tiers of the network, innermost first; sizes nest and the outermost has no limit."""
    chips_per_host: int
    """Chips that one host drives; a job gets whole hosts."""
    host_bandwidth: float
    """Bytes/s between a chip and its host's memory, one direction, achieved while the others are silent."""
    host_sharers: int = 1
    """Chips that share one link to the host."""
    host_memory: float | None = None
    """Bytes of host memory a chip, where known."""
    host_memory_bandwidth: float = 25e9
    """Bytes/s of the host's memory, datasheet, divided among its chips; left out, two sockets of DDR4 for 8 chips."""
    assumed: tuple[str, ...] = ()
    """What nobody stated or measured about this cluster, one clause each, to be shown with every answer."""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Where each number comes from, by profile key."""
    calibrated: Calibration | None = None
    """The user's own runs that chip and network were fitted on, if any."""

    @property
    def groups(self) -> tuple[int, ...]:
        """How many of this cluster's chips stand in one group of each level; 0 where one group holds all.

        A job that cannot fill its groups is spread evenly in whole hosts where that works out: 512 chips on
        racks of 72 take 64 of each of 8 racks.
        """
        groups: list[int] = []
        inner = 1
        for level in self.levels:
            if level.size is None or level.size >= self.num_chips:
                groups.append(0)
            else:
                unit = math.lcm(inner, self.chips_per_host)
                inner = _evenly(level.size, unit if unit <= level.size else inner, self.num_chips)
                groups.append(inner)
        return tuple(groups)

    @property
    def host(self) -> Host:
        """What a chip has of its host while all chips of the job use theirs.

        A job gets whole hosts: one that is smaller than a host has all of it.

        Source: ZeRO-Infinity (arXiv 2104.07857), section 4: 12 GB/s for one V100 of a DGX-2 become 3 for each of 16.
        """
        idle = max(1.0, self.chips_per_host / self.num_chips)
        bandwidth = self.host_memory_bandwidth * idle
        sharers = min(self.host_sharers, self.num_chips)
        return Host(
            rate=min(self.host_bandwidth / sharers, bandwidth),
            memory=math.inf if self.host_memory is None else self.host_memory * idle,
            bandwidth=bandwidth,
        )

    @property
    def depth(self) -> int:
        """How many levels, from the innermost, the chips of this cluster need."""
        return next(
            (depth for depth, group in enumerate(self.groups, 1) if group == 0), len(self.levels)
        )


def _evenly(size: int, unit: int, num_chips: int) -> int:
    """The largest multiple of ``unit`` that divides the chips and more than half fills a group, or a full one."""
    full = size - size % unit
    return next((held for held in range(full, size // 2, -unit) if num_chips % held == 0), full)
