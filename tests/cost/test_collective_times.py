"""Times of collectives: closed forms in one level, and what more bandwidth, bytes or members may do."""

from __future__ import annotations

from dataclasses import replace
from math import log2, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.collectives import RING_STEP, ROUNDS, collective, send
from planner.frontends.cluster_file import read_cluster
from planner.hardware.mesh import members
from tests.cost.blocks import cluster_of, level_of
from tests.search.problems import clusters, examples, log_floats

many = examples(150)
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
kinds = st.sampled_from(KINDS)


@st.composite
def axes(draw, most=64):
    """A cluster and the members of an axis on its levels."""
    cluster = draw(clusters(most))
    parts = [d for d in range(1, cluster.num_chips + 1) if cluster.num_chips % d == 0]
    size = draw(st.sampled_from(parts))
    strides = [d for d in parts if cluster.num_chips // size % d == 0]
    return cluster, members(size, draw(st.sampled_from(strides)), cluster.groups)


@given(axes(), kinds, log_floats(1, 1e11))
@many
def test_alone_there_is_nothing_to_do(case, kind, size):
    cluster, where = case
    one = np.ones_like(where)
    assert collective(kind, size, one, cluster) == 0
    assert send(size, one, cluster) == 0
    if np.prod(where) > 1:
        assert collective(kind, size, where, cluster) > 0
        assert send(size, where, cluster) > 0


@given(kinds, log_floats(1, 1e11), st.integers(2, 512), log_floats(1e9, 1e12), st.floats(0, 1e-4))
@many
def test_one_level_is_latency_and_bytes(kind, size, n, bandwidth, latency):
    """α steps + f S / B (1 + sqrt(S0 / S)) with f of a ring; an all-to-all leaves 1/n at home.

    All-reduces take the steps of a tree; gathers and scatters those of a ring once it has many members.
    """
    ramp = 1e6
    level = level_of(bandwidth=bandwidth, latency=latency, ramp_bytes=ramp)
    found = collective(kind, size, np.array([n]), cluster_of(n, level))
    if kind == "all-to-all":
        moved = size * (n - 1) / n
        expected = latency * log2(n) + moved / (0.8 * bandwidth) * (1 + sqrt(ramp / moved))
    else:
        share = ROUNDS[kind] * (n - 1) / n
        rate = 0.8 * bandwidth
        steps = log2(n) if kind == "all-reduce" else max(log2(n), RING_STEP * (n - 1))
        expected = ROUNDS[kind] * latency * steps + share * size / rate * (1 + sqrt(ramp / size))
    assert found == pytest.approx(expected)


@given(axes(), log_floats(1, 1e11))
@many
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(case, size):
    """Of few members; among many the all-reduce is a tree and takes fewer steps than two rings."""
    cluster, where = case
    parts = sum(collective(k, size, where, cluster) for k in ("reduce-scatter", "all-gather"))
    whole = collective("all-reduce", size, where, cluster)
    if where.max() <= 32:
        assert whole == pytest.approx(parts)
    else:
        assert whole <= parts * (1 + 1e-9)


@given(axes(), kinds, log_floats(1, 1e11), st.floats(1, 100))
@many
def test_more_bytes_are_never_faster(case, kind, size, factor):
    cluster, where = case
    slow = 1 + 1e-12
    assert collective(kind, size, where, cluster) <= slow * collective(
        kind, size * factor, where, cluster
    )
    assert send(size, where, cluster) <= slow * send(size * factor, where, cluster)


@given(axes(), kinds, log_floats(1, 1e11), st.data())
@many
def test_a_better_level_is_never_slower(case, kind, size, data):
    cluster, where = case
    index = data.draw(st.integers(0, len(cluster.levels) - 1))
    level = cluster.levels[index]
    better = data.draw(
        st.sampled_from(
            [
                replace(level, bandwidth=level.bandwidth * 1.7),
                replace(level, efficiency=min(1.0, level.efficiency * 1.3)),
                replace(level, latency=level.latency / 3),
                replace(level, ramp_bytes=level.ramp_bytes / 2),
                replace(level, oversubscription=1.0),
                replace(level, full_mesh=False),
                replace(level, all_to_all_doubling=1.0),
            ]
        )
    )
    levels = (*cluster.levels[:index], better, *cluster.levels[index + 1 :])
    mended = replace(cluster, levels=levels)
    fast = 1 + 1e-12
    before = collective(kind, size, where, cluster)
    assert collective(kind, size, where, mended) <= fast * before
    assert send(size, where, mended) <= fast * send(size, where, cluster)


@given(axes(), kinds, log_floats(1, 1e11))
@many
def test_levels_that_an_axis_does_not_touch_do_not_matter(case, kind, size):
    cluster, where = case
    levels = tuple(
        replace(level, bandwidth=1.0, latency=1e3) if n == 1 else level
        for level, n in zip(cluster.levels, where, strict=True)
    )
    found = collective(kind, size, where, replace(cluster, levels=levels))
    assert found == collective(kind, size, where, cluster)


FAST = level_of(8, name="node", bandwidth=4e11, latency=0.0, ramp_bytes=0.0, efficiency=1.0)
SLOW = level_of(name="network", bandwidth=5e10, latency=0.0, ramp_bytes=0.0, efficiency=1.0)
TWO = cluster_of(64, FAST, SLOW, chips_per_host=8)


@pytest.mark.parametrize(
    ("kind", "where", "seconds"),
    [
        ("all-gather", (8, 1), 7 / 8 * 8e9 / 4e11),
        ("all-gather", (1, 8), 7 / 8 * 8e9 / 5e10),
        ("all-gather", (8, 8), max(7 / 8 * 8e9 / 4e11, 7 / 8 * 1e9 / 5e10)),
        ("reduce-scatter", (2, 8), max(1 / 2 * 8e9 / 4e11, 7 / 8 * 4e9 / 5e10)),
        ("all-reduce", (8, 8), 2 * max(7 / 8 * 8e9 / 4e11, 7 / 8 * 1e9 / 5e10)),
        ("all-to-all", (8, 1), 7 / 8 * 8e9 / 4e11),
        ("all-to-all", (8, 8), max(7 / 64 * 8e9 / 4e11, 56 / 64 * 8e9 / 5e10)),
    ],
)
def test_two_levels_by_hand(kind, where, seconds):
    """8 GB over chips of 400 GB/s inside a node and 50 GB/s outside."""
    found = collective(kind, 8e9, np.array(where), TWO)
    assert found == pytest.approx(seconds)


def test_a_full_mesh_of_few_members_reaches_few_links():
    mesh = replace(FAST, full_mesh=True)
    cluster = cluster_of(8, mesh, SLOW)
    times = {n: collective("all-gather", 8e9, np.array([n, 1]), cluster) for n in (2, 4, 8)}
    assert times[8] == pytest.approx(7 / 8 * 8e9 / 4e11)
    assert times[2] == pytest.approx(1 / 2 * 8e9 / (4e11 / 7))
    assert times[4] == pytest.approx(3 / 4 * 8e9 / (4e11 * 3 / 7))


@given(axes(), st.lists(log_floats(1, 1e10), min_size=2, max_size=5), kinds)
@many
def test_arrays_are_priced_as_one_by_one(case, sizes, kind):
    cluster, where = case
    wide = np.repeat(where.reshape(-1, 1), len(sizes), axis=1)
    together = collective(kind, np.array(sizes), wide, cluster)
    sent = send(np.array(sizes), wide, cluster)
    for index, size in enumerate(sizes):
        assert together[index] == collective(kind, size, where, cluster)
        assert sent[index] == send(size, where, cluster)


def test_a_send_takes_the_outermost_level_that_the_pipeline_crosses():
    assert send(1e9, np.array([4, 2]), TWO) == pytest.approx(1e9 / 5e10)
    assert send(1e9, np.array([8, 1]), TWO) == pytest.approx(1e9 / 4e11)


@pytest.mark.parametrize("dies, rate", [(8, 135), (16, 105), (32, 98.5), (64, 86), (128, 69)])
def test_expert_exchanges_on_a_supernode_slow_down_with_its_dies(dies, rate):
    """Means of dispatch and combine in GB/s, large messages (sgl-project/sgl-kernel-npu)."""
    cluster, size = read_cluster("cloudmatrix-384"), 1e12
    seconds = collective("all-to-all", size, members(dies, 1, cluster.groups), cluster)
    assert size * (dies - 1) / dies / float(seconds) == pytest.approx(rate * 1e9, rel=0.12)


@pytest.mark.parametrize("sharers", [1, 2, 4, 8])
@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_rings_over_some_chips_of_a_node_reach_half_of_cards_that_chips_share(sharers, stride):
    """Two chips of every ring share a card where it has more of them than the node has cards."""
    node = level_of(name="node", size=8, bandwidth=300e9, latency=0.0)
    wire = level_of(name="network", size=None, bandwidth=10e9, ramp_bytes=0.0, latency=0.0)
    shared = replace(wire, sharers=sharers)
    where = members(64 // stride, stride, (8, 0))
    alone, together = (
        float(collective("all-reduce", 1e9, where, cluster_of(64, node, last, chips_per_host=8)))
        for last in (wire, shared)
    )
    apart = sharers > 1 and 1 < 8 // stride <= 8 // sharers
    assert together == pytest.approx(alone * (2 if apart else 1))
