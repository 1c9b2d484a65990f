"""What a person may write after ``--cluster``.

A cluster is a profile by name (``dgx-h100``, ``b200-nvl72:512``), a chip by name and count
(``h100-sxm:256``, ``910b:48x8``: the wiring is that of the chip's usual cluster), or a YAML file of either kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planner.errors import Fault, PlannerError
from planner.frontends.catalog import find, find_chip, nearest_names, unknown_hardware
from planner.frontends.fields import checked
from planner.frontends.hardware_files import (
    MAX_CHIPS,
    ChipFile,
    ClusterFile,
    chip_from,
    level_faults,
    level_from,
)
from planner.frontends.yaml_source import KeyPath, YamlSource, load_packaged, load_yaml
from planner.hardware.change import changed
from planner.hardware.chip import Chip
from planner.hardware.cluster import Calibration, Cluster, Level
from planner.units import GB, Json

_COUNTED = re.compile(r"(?P<what>.*):(?P<count>[^:/\\]*)", re.DOTALL)
_COUNT = re.compile(r"([0-9]{1,9})(?:[xX×]([0-9]{1,9}))?")
ONE_HOST = "one host: the file has no num_chips"
"""What is assumed where neither the file nor the user says how many chips."""
UNMEASURED = "not measured on your cluster"
_TURNED = r"(?P<count>[0-9]{1,9}(?:[xX×][0-9]{1,9})?)"
_BEFORE = re.compile(_TURNED + r"(?: *[xX×*] *| +)(?P<what>[^ ].*)")
_AFTER = re.compile(r"(?P<what>.+?)(?: *[xX×*] *| +)" + _TURNED)
_NODES = re.compile(r"[0-9]{1,9}(?:,[0-9]{1,9})+")


def read_cluster(spec: str, folders: Sequence[Path] = (), *, notes: bool = True) -> Cluster:
    """The cluster that a person means.

    Args:
        spec: ``PROFILE``, ``PROFILE:COUNT``, ``CHIP:COUNT``, ``CHIP:NODESxPER``, ``CHIP:PER,PER…`` for nodes of
            unlike sizes, or a YAML file of a cluster or a chip, with or without a count.
        folders: the user's own data, laid out as the packaged data are and looked up before them.
        notes: whether to say what was taken from a profile; a copy of the profile to be edited must not say so.

    Raises:
        PlannerError: all faults of a file together, or what is wrong with the name or the count.

    >>> read_cluster("h100-sxm:32x4").num_chips
    128
    """
    if is_mixed(spec):
        raise one_kind(spec)
    what, count = _split(spec)
    source = _source(what, folders)
    if source is not None and has_pools(source):
        raise one_kind(spec)
    if source is None and count is None and (turned := _turned(what, folders)):
        raise PlannerError.of("C01", f"no cluster named '{what}'.", *turned)
    if source is None:
        kind = "chip" if count else "cluster"
        raise unknown_hardware(kind, what, folders, asked=f"--cluster {spec}" if count else "")
    cluster, profile = cluster_of(source, folders)
    if count is not None:
        nodes, per = count
        told = tuple(text for text in cluster.assumed if text != ONE_HOST)
        usual = cluster = replace(cluster, assumed=told)
        cluster = (
            replace(cluster, num_chips=nodes) if per is None else _reshaped(cluster, nodes, per)
        )
        if not _NODES.fullmatch(asked := spec.rpartition(":")[2].strip()):
            cluster = cluster if per is None else _whole_hosts(cluster, usual, per)
        else:
            size = f"nodes of {asked} chips count as {nodes} of {per}, whose groups no node cuts"
            cluster = replace(cluster, assumed=(size, *cluster.assumed))
    limit = cluster.levels[-1].size
    if limit is not None and cluster.num_chips > limit:
        what = f"'{cluster.levels[-1].name}', the outermost level of {cluster.name}"
        fix = "Add a level for the network beyond it, or ask for fewer chips."
        raise PlannerError.of("C02", f"{cluster.num_chips} chips do not fit {what} ({limit}).", fix)
    if not (notes and profile):
        return cluster
    if count is None:
        size = (
            f"{cluster.num_chips:,} chips (a usual size of {profile}; --cluster …:COUNT for yours)"
        )
        cluster = replace(cluster, assumed=(size, *cluster.assumed))
    return _with_network_note(cluster, profile)


def is_mixed(spec: str) -> bool:
    """Whether a text names several pools, ``a100-sxm-80gb:64 + h100-sxm:64``; a file may have a plus in its name."""
    return "+" in spec and not Path(spec).exists()


def has_pools(source: YamlSource) -> bool:
    """Whether a file describes pools of different chips."""
    return isinstance(source.data, dict) and "pools" in source.data


def one_kind(spec: str) -> PlannerError:
    """What to say where pools of different chips cannot be asked about."""
    return PlannerError.of(
        "C06",
        f"--cluster {spec} has pools of different chips, and this needs one kind of chip.",
        "plan, price, compare and evaluate take pools; here, ask about one pool at a time.",
    )


def read_chip(spec: str, folders: Sequence[Path] = ()) -> Chip:
    """A chip by name, or from a YAML file of a chip or a cluster.

    Raises:
        PlannerError: no chip has the name, or the file is wrong.
    """
    path = as_path(spec)
    source = own_source(path) if path is not None else _packaged(find_chip(spec, folders))
    if _is_cluster(source):
        return cluster_of(source, folders)[0].chip
    return chip_from(_chip_file(source, source.data, (), folders))


def _split(spec: str) -> tuple[str, tuple[int, int | None] | None]:
    """What stands before the last colon, and the count after it: chips, or nodes and chips in each."""
    parts = _COUNTED.fullmatch(spec)
    if parts is None or parts["count"].strip().endswith((".yaml", ".yml")):
        return spec, None
    text = parts["count"].strip()
    if _NODES.fullmatch(text):
        sizes = [int(size) for size in text.split(",")]
        unit = math.gcd(*sizes) if min(sizes) else 0
        text = f"{sum(sizes) // unit}x{unit}" if unit else text
    count = _COUNT.fullmatch(text)
    fix = "Write chips as 256, nodes and chips in each as 32x8, nodes of unlike sizes as 8,8,4."
    if count is None:
        why = f"'{parts['count']}' in --cluster {spec} is no count of chips."
        raise PlannerError.of("C02", why, fix)
    nodes, per = int(count[1]), int(count[2]) if count[2] else None
    if not 1 <= nodes * (1 if per is None else per) <= MAX_CHIPS:
        why = f"--cluster {spec} must have 1 to {MAX_CHIPS:,} chips."
        raise PlannerError.of("C02", why, fix)
    return parts["what"], (nodes, per)


def _turned(spec: str, folders: Sequence[Path]) -> tuple[str, ...]:
    """How a count that stands before its chip, or after it without a colon, is written; nothing without a count."""
    parts = _BEFORE.fullmatch(spec.strip()) or _AFTER.fullmatch(spec.strip())
    if parts is None:
        return ()
    known = find("cluster", parts["what"], folders) or find("chip", parts["what"], folders)
    close = [known.stem] if known else nearest_names(parts["what"], ["chip", "cluster"], folders)
    fix = "The count stands after a colon:" if known else "The count stands after a colon; nearest:"
    return (fix, *(f"--cluster {name}:{parts['count']}" for name in close))


def _source(what: str, folders: Sequence[Path]) -> YamlSource | None:
    path = as_path(what)
    if path is not None:
        return own_source(path)
    found = find("cluster", what, folders) or find("chip", what, folders)
    return _packaged(found) if found else None


def as_path(what: str) -> Path | None:
    path = Path(what)
    return path if path.suffix in (".yaml", ".yml") or "/" in what or "\\" in what else None


def own_source(path: Path) -> YamlSource:
    try:
        return load_yaml(path)
    except PlannerError:
        raise
    except Exception as error:  # the YAML library lets odd scalars end in any exception
        raise PlannerError.of("Y03", f"this is not YAML: {error}.", where=str(path)) from None


def _packaged(path: Path) -> YamlSource:
    return YamlSource(str(path), load_packaged(path))


def _is_cluster(source: YamlSource) -> bool:
    data = source.data
    return not isinstance(data, dict) or "levels" in data or "chip" in data


def cluster_of(source: YamlSource, folders: Sequence[Path]) -> tuple[Cluster, str]:
    """The cluster of a file, and the profile whose network it has (empty for a user's own).

    A chip's file stands for its usual cluster, made of that chip.
    """
    if _is_cluster(source):
        cluster = _cluster(source, folders)
        return cluster, "" if source.positions else cluster.name
    file = _chip_file(source, source.data, (), folders)
    usual = find("cluster", file.cluster, folders) if file.cluster else None
    if usual is None:
        what = f"chip '{file.name}' does not say how it is wired."
        if file.cluster:
            what = f"no cluster named '{file.cluster}'."
        fix = "Name a profile that is wired alike, such as cluster: dgx-h100"
        raise PlannerError.of("C01", what, fix, where=source.where(("cluster",), value=True))
    like = _cluster(_packaged(usual), folders, chip_from(file))
    return replace(like, name=file.name), like.name


def _cluster(source: YamlSource, folders: Sequence[Path], chip: Chip | None = None) -> Cluster:
    """A cluster's file, made of the chip that it names unless another is given."""
    faults: list[Fault] = []
    file = None
    try:
        file = checked(source, ClusterFile, "cluster")
        faults += level_faults(source, file)
    except PlannerError as error:
        faults += error.faults
    try:
        chip = chip or _chip_of(source, folders)
    except PlannerError as error:
        faults += error.faults
    if file is None or chip is None or faults:
        raise PlannerError(*faults)
    unstated = () if file.num_chips else (ONE_HOST,)
    levels = tuple(level_from(level) for level in file.levels)
    usual = tuple(
        f"{level.bandwidth / GB * 8:g} Gb/s a chip in {level.name} (usual for {level.link}; not in the file)"
        for level, written in zip(levels, file.levels, strict=True)
        if source.positions and written.bandwidth_gbps is None
    )
    return Cluster(
        name=file.name,
        chip=chip,
        num_chips=file.num_chips or file.chips_per_host,
        levels=levels,
        chips_per_host=file.chips_per_host,
        host_bandwidth=file.host_bandwidth_gbps,
        host_sharers=file.host_sharers,
        host_memory=file.host_memory_gib,
        host_memory_bandwidth=file.host_memory_bandwidth_gbps,
        assumed=(*file.assumed, *unstated, *usual),
        sources=file.sources,
        calibrated=Calibration(**file.calibrated.model_dump()) if file.calibrated else None,
    )


def _chip_of(source: YamlSource, folders: Sequence[Path]) -> Chip | None:
    """The chip that a cluster's file names or describes; None where it does neither."""
    raw = source.data.get("chip") if isinstance(source.data, dict) else None
    where = source.where(("chip",), value=True)
    if isinstance(raw, str):
        path = find_chip(raw, folders, where=where)
        named = _packaged(path)
        return chip_from(_chip_file(named, named.data, (), folders))
    if isinstance(raw, dict):
        return chip_from(_chip_file(source, raw, ("chip",), folders))
    if raw is None:
        return None
    raise PlannerError.of("U02", "chip must be a name or a mapping.", where=where)


def _chip_file(source: YamlSource, raw: Json, at: KeyPath, folders: Sequence[Path]) -> ChipFile:
    """A chip's description, laid over that of its ``base`` if it names one."""
    if isinstance(raw, dict) and isinstance(raw.get("base"), str):
        where = source.where((*at, "base"), value=True)
        base = load_packaged(find_chip(raw["base"], folders, where=where))
        own = {
            key: f"stated: {Path(source.path).name}" for key in base["sources"].keys() & raw.keys()
        }
        base = base | {"sources": base["sources"] | own}
        raw = _overlaid(base, {"aliases": [], **raw})
    return checked(source, ChipFile, "chip", data=raw, at=at)


def _overlaid(base: dict[str, Json], over: dict[str, Json]) -> dict[str, Json]:
    both = {
        key: _overlaid(base[key], over[key])
        for key in base.keys() & over.keys()
        if isinstance(base[key], dict) and isinstance(over[key], dict)
    }
    return {**base, **over, **both}


def _reshaped(cluster: Cluster, nodes: int, per: int) -> Cluster:
    """So many nodes of so many chips: the innermost level that could hold such a node becomes it."""
    levels = list(cluster.levels)
    host = math.gcd(cluster.chips_per_host, per)
    if per != cluster.chips_per_host and all(level.size != per for level in levels):
        limited = [index for index, level in enumerate(levels) if level.size is not None]
        fits = [index for index in limited if (levels[index].size or 0) >= per] or limited[-1:]
        for at in fits[:1]:
            inner = [level for level in levels[:at] if per % (level.size or per) == 0]
            outer = [_rounded(level, per) for level in levels[at + 1 :]]
            levels = [*inner, _cut(levels[at], per), *outer]
    return replace(cluster, num_chips=nodes * per, levels=tuple(levels), chips_per_host=host)


def _whole_hosts(cluster: Cluster, usual: Cluster, per: int) -> Cluster:
    """Nodes of so few chips have all of a usual host's memory, as a job on a part of a host has."""
    more = max(1.0, usual.chips_per_host / per)
    return replace(
        cluster,
        host_memory=usual.host_memory and usual.host_memory * more,
        host_memory_bandwidth=usual.host_memory_bandwidth * more,
    )


def _cut(level: Level, size: int) -> Level:
    """A level with groups of another size; a chip in a smaller full mesh has fewer links."""
    old = level.size or size
    share = (size - 1) / (old - 1) if level.full_mesh and 1 < size < old else 1.0
    return replace(level, size=size, bandwidth=level.bandwidth * share)


def _rounded(level: Level, unit: int) -> Level:
    return level if level.size is None else replace(level, size=max(1, level.size // unit) * unit)


def _with_network_note(cluster: Cluster, profile: str) -> Cluster:
    """Says which network between groups was taken from a profile, for a cluster that needs one."""
    if cluster.depth < 2:
        return cluster
    level, inner = cluster.levels[cluster.depth - 1], cluster.levels[cluster.depth - 2]
    rate = level.bandwidth / level.oversubscription / GB * 8
    note = f"{rate:g} Gb/s a chip between {inner.name}s"
    note += f" (profile {profile}; {UNMEASURED})"
    return replace(cluster, assumed=(*cluster.assumed, note))


def under_what_ifs(cluster: Cluster, what_ifs: Sequence[str]) -> Cluster:
    """The cluster under what-ifs, which stand among what is told with the answer; a stated network is no assumption."""
    for text in what_ifs:
        told = cluster.assumed
        if text.startswith(f"{cluster.levels[-1].name}.bandwidth") and text[-1:] not in "xX×":
            told = tuple(each for each in told if UNMEASURED not in each)
        cluster, words = changed(cluster, text)
        cluster = replace(cluster, assumed=(*told, f"what if: {words}"))
    return cluster
