"""Conversions between layouts: every step moves what it says, and paths are the cheapest."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.collectives import collective
from planner.cost.resharding import conversions, free_mesh
from planner.graph.placement import PARTIAL, REPLICATE, Shard, conversion
from tests.cost.blocks import cluster_of, level_of
from tests.search.problems import examples

NODE = level_of(4, name="node", bandwidth=4e11, latency=2e-6)


def mesh_of(*sizes):
    names = ("a", "b", "c")[: len(sizes)]
    cluster = cluster_of(prod(sizes), NODE, level_of())
    return free_mesh(cluster, dict(zip(names, sizes, strict=True)))


def held(state, sizes, axes, rank):
    """The elements that a rank holds: for every dim a range."""
    ranges = []
    for cut, size in zip(state[:-1], sizes, strict=True):
        first, length = 0, size
        for axis in cut:
            length //= axes[axis]
            first += rank[axis] * length
        ranges.append(range(first, first + length))
    return set(product(*ranges))


@pytest.mark.parametrize(
    ("axes", "sizes"), [((2, 2), (4, 8)), ((2, 4), (8, 8)), ((2, 2, 2), (8, 8))]
)
def test_steps_move_what_they_say(axes, sizes):
    """After each step every rank holds what the ranks of its group held before, and nothing else was needed."""
    graph = conversions(mesh_of(*axes), ("x", "y")[: len(sizes)], sizes, 1e6).graph
    ranks, checked = list(product(*map(range, axes))), 0
    for kind, (sources, targets, takes) in graph.steps.items():
        for source, target, group in zip(sources, targets, takes, strict=True):
            before, after = graph.states[source], graph.states[target]
            summed = set(before[-1]) - set(after[-1])
            for rank in ranks:
                peers = [
                    other
                    for other in ranks
                    if all(on or x == y for on, x, y in zip(group, rank, other, strict=True))
                ]
                wanted = held(after, sizes, axes, rank)
                parts = [held(before, sizes, axes, other) for other in peers]
                if kind == "slice":
                    assert wanted <= held(before, sizes, axes, rank)
                elif kind == "permute":
                    assert wanted in parts
                elif kind == "all-gather":
                    assert wanted == set().union(*parts)
                elif kind == "all-to-all":
                    assert wanted <= set().union(*parts)
                else:  # sums: all of the group held what is wanted, in part
                    assert all(wanted <= part for part in parts)
                    assert summed == {axis for axis, on in enumerate(group) if on}
                checked += 1
            if kind not in ("all-reduce", "reduce-scatter"):
                assert not summed
    assert checked > 300


PLACES = [REPLICATE, PARTIAL, Shard("x"), Shard("y")]


@pytest.mark.parametrize("have", PLACES)
@pytest.mark.parametrize("want", [REPLICATE, Shard("x"), Shard("y")])
def test_one_axis_is_the_table_of_placements(have, want):
    found = conversions(mesh_of(4), ("x", "y"), (8, 8), 1e6)
    path = found.path(found.number({"a": have}), found.number({"a": want}))
    kind = conversion(have, want)
    assert [step.kind for step in path] == ([] if kind is None else [kind])
    if kind is not None:
        size = 1e6 / 4 if kind == "all-to-all" else 1e6
        assert path[0].size == size
        assert path[0].seconds == float(
            collective(kind, size, found.mesh.members[:, 0], found.mesh.cluster)
        )


@given(
    st.sampled_from([(2, 2), (4, 2), (2, 8), (2, 2, 2), (4, 2, 2)]),
    st.tuples(st.sampled_from([1, 2, 6, 8, 16]), st.sampled_from([4, 12, 64])),
    st.floats(1e3, 1e9),
)
@examples(20)
def test_paths_are_cheapest(axes, sizes, size):
    found = conversions(mesh_of(*axes), ("x", "y"), sizes, size)
    count = len(found.layouts)
    cost = found.seconds[:count, :count]
    assert np.isfinite(cost).all()
    assert (np.diagonal(cost) == 0).all()
    through = (cost[:, :, None] + cost[None, :, :]).min(axis=1)
    assert (cost <= through * (1 + 1e-12)).all()
    rng = np.random.default_rng(0)
    for have, want in rng.integers(0, count, (20, 2)):
        path = found.path(int(have), int(want))
        assert sum(step.seconds for step in path) == pytest.approx(cost[have, want])
        assert found.number(found.placements(int(have))) == have
    # what a size does not divide cannot be
    for codes in product(range(4), repeat=len(axes)):
        cuts = [prod(n for n, c in zip(axes, codes, strict=True) if c == 2 + d) for d in (0, 1)]
        whole = all(s % cut == 0 for s, cut in zip(sizes, cuts, strict=True))
        assert (codes in found.layouts) == whole


def test_slow_axes_carry_what_fast_ones_cut():
    """A gather across nodes of what all chips of a node hold: each fetches a part, then they exchange parts."""
    found = conversions(mesh_of(4, 4), ("x",), (64,), 1e9)
    path = found.path(found.number({"a": Shard("x")}), found.number({}))
    assert [(step.kind, step.axes) for step in path] == [("all-gather", ("a", "b"))]
    alone = float(collective("all-gather", 1e9, found.mesh.members[:, 0], found.mesh.cluster))
    assert sum(step.seconds for step in path) < alone


def test_cuts_in_another_order_are_sent_to_their_places():
    found = conversions(mesh_of(2, 2), ("x", "y"), (8, 8), 1e6)
    both = found.number({"a": Shard("x"), "b": Shard("x")})
    inner = found.path(both, found.number({"a": Shard("x")}))
    assert [(step.kind, step.axes) for step in inner] == [("all-gather", ("b",))]
    outer = found.path(both, found.number({"b": Shard("x")}))
    assert [step.kind for step in outer] == ["permute", "all-gather"]
