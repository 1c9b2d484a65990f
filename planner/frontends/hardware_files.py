"""What stands in files of chips, clusters and links, and the same as the engine's own objects."""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar

from pydantic import Field, WithJsonSchema

from planner.errors import Fault, nearest
from planner.frontends.catalog import data_folder
from planner.frontends.fields import (
    Description,
    Fraction,
    Gibibytes,
    HostRate,
    LinkRate,
    Mebibytes,
    MemoryRate,
    Microseconds,
    Teraflops,
)
from planner.frontends.yaml_source import KeyPath, YamlSource, load_packaged
from planner.hardware.chip import Chip
from planner.hardware.cluster import Level
from planner.units import GB, Json

MAX_CHIPS = 10_000_000
"""Larger counts are slips; nobody has that many chips in one job."""
NIC_GIGABITS = (200, 400, 800, 1600, 3200)
"""Rates of network cards in Gb/s that people write where GB/s is meant."""

AtLeastOne = Annotated[int, Field(ge=1, le=MAX_CHIPS)]


class Peak(Description):
    """Dense FLOP/s by precision, datasheet."""

    bf16: Teraflops | None = None
    fp16: Teraflops | None = None
    fp8: Teraflops | None = None
    fp4: Teraflops | None = None
    fp32: Teraflops | None = None


class Efficiency(Description):
    """Fraction of peak that large products sustain in training, by precision."""

    bf16: Fraction | None = None
    fp16: Fraction | None = None
    fp8: Fraction | None = None
    fp4: Fraction | None = None
    fp32: Fraction | None = None


class ChipFile(Description):
    """One file of ``hardware_profiles/chips``, or the ``chip`` of a user's cluster."""

    name: str
    """Canonical name; the file's name in ``hardware_profiles``."""
    aliases: list[str] = Field(default_factory=list)
    """Other spellings of the name."""
    base: str = ""
    """Name of a chip that has all that this file leaves out."""
    vendor: str = ""
    """Who makes it."""
    family: str = ""
    """Generation."""
    cluster: str = ""
    """Cluster profile whose levels ``CHIP:COUNT`` uses."""
    memory_gib: Gibibytes
    """What a process can allocate, not the label."""
    memory_bandwidth_gbps: MemoryRate
    """GB/s of device memory, datasheet."""
    peak_tflops: Peak
    """Dense TFLOPS by precision, datasheet."""
    matmul_efficiency: Efficiency = Efficiency(bf16=0.6)
    """By precision; one that is left out has that of the 16-bit format."""
    matmul_latency_us: Microseconds = 5e-6
    """Time of a product however small."""
    matmul_sharpness: Annotated[float, Field(ge=1, le=100, strict=False)] = 2.0
    """Exponent that joins compute and memory time: 1 adds them, large takes the larger."""
    attention_efficiency: Fraction = 0.4
    """Of 16-bit peak: fused causal attention, forward, long sequence, head dim 128."""
    memory_efficiency: Fraction = 0.85
    """Of memory bandwidth: streaming kernels."""
    launch_us: Microseconds = 2.5e-6
    """Between two kernels that the host queues back to back."""
    watts: Annotated[float, Field(ge=1, le=1e6, strict=False)] | None = None
    """Power limit of the chip."""
    price_per_hour: Annotated[float, Field(ge=0, le=1e6, strict=False)] | None = None
    """Dollars a chip and hour; its source says whose offer."""
    measured: str = "nothing; usual values of a modern accelerator"
    """Which efficiencies were measured, and from which chip the others are borrowed."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Where each number comes from, by key."""


class LevelFile(Description):
    """One of a cluster's ``levels``; what it leaves out comes from its kind of link."""

    name: str
    """What people call it: node, rack, network."""
    size: AtLeastOne | None = None
    """Chips in one group of this level, inner levels included; left out where nothing limits it."""
    link: str = "unknown"
    """Kind of link in ``links.yaml``."""
    bandwidth_gbps: LinkRate | None = None
    """GB/s on the wire, for one chip and one direction."""
    efficiency: Fraction | None = None
    """Fraction of the wire that large messages reach as bus bandwidth."""
    latency_us: Microseconds | None = None
    """Time of one doubling of the members."""
    ramp_mib: Mebibytes | None = None
    """Message size that takes twice as long as bandwidth alone would."""
    oversubscription: Annotated[float, Field(ge=1, le=1000, strict=False)] = 1.0
    """By how much the links above the group are fewer than the chips could fill."""
    sharers: AtLeastOne = 1
    """Chips next to one another that share a network card, all of which one has that sends alone."""
    full_mesh: bool | None = None
    """Whether each pair of chips owns its own link."""
    all_to_all_doubling: Fraction | None = None
    """Share of its rate that an all-to-all keeps with each doubling of its members, from two on."""
    note: str = ""
    """What else there is to know."""


class CalibrationFile(Description):
    """What ``shardwright calibrate`` notes of the runs that a profile was fitted on."""

    trainer: str
    """The trainer that ran them."""
    runs: AtLeastOne
    """Runs that it was fitted on."""
    step_error: Annotated[float, Field(ge=0, le=10, strict=False)]
    """Half width of the interval that holds 80 % of further runs, as a share of the step."""
    memory_error: Annotated[float, Field(ge=0, le=10, strict=False)] | None = None
    """The same of memory; left out where it was not measured."""


_COUNTED = " Write 'num_chips', of all hosts together, and 'chips_per_host'."


class ClusterFile(Description):
    """One file of ``hardware_profiles/clusters``, or a user's own."""

    MEANT: ClassVar = dict.fromkeys(
        ("nodes", "num_nodes", "hosts", "num_hosts", "gpus", "gpus_per_node", "chips_per_node"),
        _COUNTED,
    )
    """What others count, and what to write here instead."""
    name: str
    """Canonical name; the file's name in ``hardware_profiles``."""
    aliases: list[str] = Field(default_factory=list)
    """Other spellings of the name."""
    chip: Annotated[Json, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})]
    """A chip's name, or a mapping as in a chip's file, which may name a ``base``."""
    num_chips: AtLeastOne | None = None
    """Chips where the user gives no count; one host if left out."""
    chips_per_host: AtLeastOne
    """Chips that one host drives."""
    host_bandwidth_gbps: LinkRate = 25e9
    """GB/s between a chip and host memory, one direction, achieved while the others are silent."""
    host_sharers: AtLeastOne = 1
    """Chips that share one link to the host."""
    host_memory_gib: Gibibytes | None = None
    """Host memory for one chip."""
    host_memory_bandwidth_gbps: HostRate = 25e9
    """GB/s of the host's memory for one chip, datasheet: that of all sockets divided by the chips."""
    levels: Annotated[list[LevelFile], Field(min_length=1, max_length=8)]
    """The network from the closest tier to the farthest."""
    assumed: list[str] = Field(default_factory=list)
    """What nobody stated or measured; shown with every answer."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Where each number comes from, by key; levels as ``NAME.KEY``."""
    calibrated: CalibrationFile | None = None
    """The user's own runs that chip and network were fitted on."""


class PoolsFile(Description):
    """A user's file of pools of different chips."""

    name: str
    """What people call all of them together."""
    pools: Annotated[list[Json], Field(min_length=2, max_length=8)]
    """Each as after ``--cluster``, or a mapping as in a cluster's file."""
    link: LevelFile | None = None
    """The network between pools; left out, the slower of their outermost levels."""
    assumed: list[str] = Field(default_factory=list)
    """What nobody stated or measured; shown with every answer."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Where each number comes from, by key."""


class Link(Description):
    """One kind of link in ``links.yaml``: what a level of that kind has unless it says otherwise."""

    bandwidth_gbps: LinkRate | None = None
    """GB/s on the wire, for one chip and one direction, as usually built."""
    fastest_gbps: LinkRate | None = None
    """The most that any such link has, where that is more than usual."""
    efficiency: Fraction
    """As of a level."""
    latency_us: Microseconds
    """As of a level."""
    ramp_mib: Mebibytes
    """As of a level."""
    full_mesh: bool = False
    """As of a level."""
    all_to_all_doubling: Fraction = 1.0
    """As of a level."""
    source: str
    """Where the numbers come from."""


@cache
def links() -> dict[str, Link]:
    """Every kind of link by name."""
    raw = load_packaged(data_folder("hardware_profiles") / "links.yaml")
    return {name: Link.model_validate(link) for name, link in raw.items()}


def chip_from(file: ChipFile) -> Chip:
    """The chip that a file describes; precisions without an efficiency take that of the 16-bit format."""
    peak = file.peak_tflops.model_dump(exclude_none=True)
    known = file.matmul_efficiency.model_dump(exclude_none=True)
    usual = known.get("bf16") or known.get("fp16") or next(iter(known.values()), 0.6)
    return Chip(
        name=file.name,
        vendor=file.vendor,
        family=file.family,
        memory_bytes=file.memory_gib,
        memory_bandwidth=file.memory_bandwidth_gbps,
        peak=peak,
        matmul_efficiency={precision: known.get(precision, usual) for precision in peak},
        matmul_latency=file.matmul_latency_us,
        matmul_sharpness=file.matmul_sharpness,
        attention_efficiency=file.attention_efficiency,
        memory_efficiency=file.memory_efficiency,
        launch=file.launch_us,
        watts=file.watts,
        price=file.price_per_hour,
        cluster=file.cluster,
        measured=file.measured,
        sources=file.sources,
    )


def level_from(file: LevelFile) -> Level:
    """The level that a part of a cluster's file describes, completed from its kind of link."""
    link = links()[file.link]
    return Level(
        name=file.name,
        size=file.size,
        bandwidth=file.bandwidth_gbps or link.bandwidth_gbps or 0.0,
        efficiency=file.efficiency or link.efficiency,
        latency=file.latency_us or link.latency_us,
        ramp_bytes=file.ramp_mib or link.ramp_mib,
        oversubscription=file.oversubscription,
        sharers=file.sharers,
        full_mesh=link.full_mesh if file.full_mesh is None else file.full_mesh,
        all_to_all_doubling=file.all_to_all_doubling or link.all_to_all_doubling,
        link=file.link,
        note=file.note,
    )


def link_faults(source: YamlSource, path: KeyPath, level: LevelFile) -> list[Fault]:
    """What is wrong with a level beside the link that it is made of; ``path`` is where it stands."""
    link = links().get(level.link)
    if link is None:
        close = ", ".join(nearest(level.link, links()))
        what = f"no link named '{level.link}' in level '{level.name}'. Nearest: {close}."
        return [Fault("C01", what, where=source.where((*path, "link"), value=True))]
    wire = link.fastest_gbps or link.bandwidth_gbps
    if level.bandwidth_gbps is None:
        what = f"level '{level.name}' has no 'bandwidth_gbps', and its link is not known."
        return [] if wire else [Fault("Y04", what, where=source.where(path))]
    raw = source.under(path).data.get("bandwidth_gbps")
    meant = None if isinstance(raw, str) else _meant(level.bandwidth_gbps / GB, wire and wire / GB)
    if meant is None:
        return []
    looks, right = meant
    what = f"bandwidth {raw:g} of level '{level.name}' looks like {looks}"
    what += "; the field is GB/s for one chip and direction."
    fix = f"Write {right:g}, or '{raw:g} Gb/s' with its unit."
    if looks != "Gb/s":
        fix = f"Write {right:g}, or '{raw:g} GB/s' if it really is one direction."
    return [Fault("U01", what, (fix,), source.where((*path, "bandwidth_gbps"), value=True))]


def level_faults(source: YamlSource, file: ClusterFile) -> list[Fault]:
    """What is wrong with levels taken together, or beside the link that they are made of."""
    faults: list[Fault] = []
    inner = 1
    for index, level in enumerate(file.levels):
        path = ("levels", index)
        where = source.where((*path, "size"), value=True)
        last = index == len(file.levels) - 1
        if level.size is None and not last:
            what = f"level '{level.name}' has no 'size'; only the last level may be without limit."
            faults.append(Fault("Y04", what, where=source.where(path)))
        elif level.size is not None and level.size % inner:
            what = f"size {level.size} of level '{level.name}' is not a multiple of the {inner} inside it."
            faults.append(Fault("U02", what, where=where))
        elif level.size is not None and not _even(level.size, file.chips_per_host):
            what = f"size {level.size} of level '{level.name}' does not go with {file.chips_per_host} chips_per_host"
            fix = "One is a multiple of the other; change both where hosts are of another size."
            faults.append(Fault("U02", f"{what}.", (fix,), where))
        inner = level.size or inner
        faults += link_faults(source, path, level)
    return faults


def _even(size: int, host: int) -> bool:
    return size % host == 0 or host % size == 0


def _meant(rate: float, wire: float | None) -> tuple[str, float] | None:
    """What a bare number of GB/s looks like instead, and the number that is meant."""
    if wire is None:
        return ("Gb/s", rate / 8) if rate in NIC_GIGABITS else None
    if rate <= 1.5 * wire:
        return None
    return ("both directions together", rate / 2) if rate <= 2.4 * wire else ("Gb/s", rate / 8)
