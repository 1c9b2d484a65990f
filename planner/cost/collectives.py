"""How long collectives take over the levels of a network. Pure functions; arguments may be arrays.

A collective over an axis runs one stage a level, innermost first: among ``n`` members of a level every rank moves
``f(n) · S / (members of the inner levels)`` bytes, since the inner stage already split the buffer among them and all
their links carry the outer stage together.
"""

from __future__ import annotations

import numpy as np

from planner.graph.placement import Kind
from planner.hardware.cluster import Cluster
from planner.units import Array, IntArray, Number

ROUNDS: dict[str, float] = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0}
RING_STEP = 0.15
"""Latency of one hop of a ring over that of one doubling: hops follow one another closely. Source: NCCL's own model has
5 us a network step where a doubling of nodes costs 30 us; gathers over hundreds of ranks grow with their number."""


def collective(
    kind: Kind, size: Number, members: IntArray, cluster: Cluster, copies: float = 1.0
) -> Array:
    """Seconds of one collective.

    Args:
        kind: the collective.
        size: bytes as nccl-tests counts them: the buffer of an all-reduce, the full gathered buffer of an all-gather
            or reduce-scatter, the whole send buffer of one rank of an all-to-all.
        members: how many members the axis has at each level beyond the level inside it
            (:func:`planner.hardware.mesh.members`).
        cluster: levels with their achieved bandwidth, latency and ramp.
        copies: how many rows of an all-to-all's buffer are the same token; where a trainer sends one copy to every
            far group and lets it spread there, each level carries only distinct ones.

    Returns:
        Seconds; 0 where the axis has one member.

    Shapes: ``size`` (…), ``members`` (levels, …); result (…).

    Units: bytes in, seconds out.

    Source: α + β·bytes; ramp √(S₀·S) fitted to nccl-tests curves (mean error 3-10 %); the slowest level, not the sum:
        a 16-rank all-gather of H100 runs at 404 GB/s where the sum of both levels gives 255 and the slower 390.
    """
    if kind == "all-to-all":
        return _all_to_all(size, members, cluster, copies)
    slowest = np.zeros(np.broadcast_shapes(np.shape(size), members.shape[1:]))
    latency = np.zeros(members.shape[1:])
    inner = np.ones(members.shape[1:])
    for level, n in zip(cluster.levels, members, strict=True):
        part = np.asarray(size, dtype=np.float64) / inner
        moved = ROUNDS[kind] * (n - 1) / n * (part + np.sqrt(level.ramp_bytes * part))
        rate = level.achieved_by(n) * level.ringed_by(inner, cluster.chips_per_host)
        slowest = np.maximum(slowest, moved / rate)
        latency = latency + ROUNDS[kind] * level.latency * _steps(kind, n)
        inner = inner * n
    return slowest + latency


def _steps(kind: Kind, members: IntArray) -> Array:
    """Steps of a collective among so many members, in doublings: a tree, or for gathers and scatters a ring.

    All-reduces run as trees, gathers and scatters over many members as rings.
    """
    doublings = np.log2(members)
    if kind == "all-reduce":
        return doublings
    return np.asarray(np.maximum(doublings, (members - 1) * RING_STEP))


def _all_to_all(size: Number, members: IntArray, cluster: Cluster, copies: float) -> Array:
    """Every rank sends 1/g of its buffer to each of g ranks; each level carries what crosses it.

    Of ``k`` copies of a token ``G (1 - (1 - 1/G)^k)`` distinct ones reach G groups when routing is uniform.
    """
    group = np.prod(members, axis=0)
    slowest = np.zeros(np.broadcast_shapes(np.shape(size), members.shape[1:]))
    latency = np.zeros(members.shape[1:])
    inner = np.ones(members.shape[1:])
    for level, n in zip(cluster.levels, members, strict=True):
        reached = inner * n
        groups = group / inner
        distinct = groups * (1.0 - (1.0 - 1.0 / groups) ** copies) / copies
        crossing = np.asarray(size, dtype=np.float64) * distinct * (reached - inner) / group
        moved = crossing + np.sqrt(level.ramp_bytes * crossing)
        slowest = np.maximum(slowest, moved / (level.achieved_by(n) * level.kept_by(reached)))
        latency = latency + level.latency * np.log2(n)
        inner = reached
    return slowest + latency


def send(size: Number, members: IntArray, cluster: Cluster) -> Array:
    """Seconds of a send from one member of an axis to the next, over the slowest level that the axis crosses.

    Args:
        size: bytes that one chip sends.
        members: how the axis lies on the levels (:func:`planner.hardware.mesh.members`).
        cluster: the levels.

    Shapes: ``size`` (…), ``members`` (levels, …); result (…).

    Units: bytes in, seconds out.
    """
    total = np.zeros(np.broadcast_shapes(np.shape(size), members.shape[1:]))
    for level, n in zip(cluster.levels, members, strict=True):
        total = np.where(n > 1, level.latency + np.asarray(size) / level.achieved, total)
    return total
