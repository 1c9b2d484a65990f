"""Pools of different chips after ``--cluster``: ``a100-sxm-80gb:64 + h100-sxm:64``, or a YAML file with ``pools``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from planner.errors import Fault, PlannerError
from planner.frontends.cluster_file import (
    as_path,
    cluster_of,
    has_pools,
    is_mixed,
    own_source,
    read_cluster,
)
from planner.frontends.fields import checked
from planner.frontends.hardware_files import PoolsFile, level_from, link_faults
from planner.frontends.yaml_source import YamlSource
from planner.hardware.cluster import Cluster
from planner.hardware.pools import Pools, joined


def read_pools(spec: str, folders: Sequence[Path] = ()) -> Pools | None:
    """The pools that a person means; None where the text names one kind of chip.

    Args:
        spec: clusters as :func:`planner.frontends.cluster_file.read_cluster` takes them, joined by ``+``, or a YAML
            file that has ``pools``.
        folders: the user's own data.

    Raises:
        PlannerError: all faults of a file together, or what is wrong with one of the pools.

    >>> read_pools("v100-sxm-16gb:12 + t4:4").num_chips, read_pools("t4:4")
    (16, None)
    """
    if is_mixed(spec):
        return _joined(spec, [part.strip() for part in spec.split("+")], folders)
    path = as_path(spec)
    if path is None or path.suffix not in (".yaml", ".yml") or not path.is_file():
        return None
    source = own_source(path)
    return _of_file(source, folders) if has_pools(source) else None


def _joined(spec: str, parts: Sequence[str], folders: Sequence[Path]) -> Pools:
    if not all(parts):
        fix = "Write pools like a100-sxm-80gb:64 + h100-sxm:64."
        raise PlannerError.of("C06", f"--cluster {spec} has a plus without a pool beside it.", fix)
    faults: list[Fault] = []
    pools: list[Cluster] = []
    for part in parts:
        try:
            pools.append(read_cluster(part, folders))
        except PlannerError as error:
            faults += error.faults
    if faults:
        raise PlannerError(*faults)
    return joined(spec, _named(pools))


def _of_file(source: YamlSource, folders: Sequence[Path]) -> Pools:
    """Pools of a file; the faults of all of them together."""
    file = checked(source, PoolsFile, "pools")
    faults = [] if file.link is None else link_faults(source, ("link",), file.link)
    pools: list[Cluster] = []
    for index, raw in enumerate(file.pools):
        here = source.under(("pools", index))
        try:
            pools.append(_pool(here, raw, folders))
        except PlannerError as error:
            faults += [
                fault if fault.where else replace(fault, where=here.where(value=True))
                for fault in error.faults
            ]
    if faults:
        raise PlannerError(*faults)
    found = joined(file.name, _named(pools))
    if file.link is None:
        return replace(found, assumed=(*file.assumed, *found.assumed))
    link = replace(level_from(file.link), size=None)
    return replace(found, link=link, assumed=tuple(file.assumed))


def _pool(source: YamlSource, raw: object, folders: Sequence[Path]) -> Cluster:
    if isinstance(raw, str):
        return read_cluster(raw, folders)
    if not isinstance(raw, dict):
        what = "a pool must be text such as h100-sxm:64, or a mapping as in a cluster's file."
        raise PlannerError.of("U02", what)
    return cluster_of(source, folders)[0]


def _named(pools: Sequence[Cluster]) -> tuple[Cluster, ...]:
    """Pools with names that differ: a second one of a name gets a number."""
    often = Counter(pool.name for pool in pools)
    return tuple(_numbered(pools, often))


def _numbered(pools: Sequence[Cluster], often: Counter[str]) -> Iterator[Cluster]:
    seen: Counter[str] = Counter()
    for pool in pools:
        seen[pool.name] += 1
        yield replace(pool, name=f"{pool.name} {seen[pool.name]}") if often[pool.name] > 1 else pool
