"""Bounds from paths of schedules against brute force over every cut into chunks."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.search.stages.paths import Chunks, Met, relaxed, rounded, settled
from planner.search.stages.solver import PROVEN

few = settings(max_examples=20, deadline=None, derandomize=True)
SHAPES = [(2, 2, 4, 11), (2, 3, 2, 12), (3, 2, 6, 10), (2, 2, 6, 13), (4, 2, 8, 11)]


def of_random_stages(seed, shape):
    """Chunks on stages that differ in speed and in how many layers they may hold, with ends and sends."""
    p, v, m, layers = shape
    generator = np.random.default_rng(seed)
    speed = np.exp(0.6 * generator.standard_normal(p))
    layer = np.stack([speed, speed * generator.uniform(1.5, 2.5, p)]) * 1e-3
    fixed = np.zeros((2, p, v))
    fixed[:, 0, 0], fixed[:, -1, -1] = generator.random((2, 2)) * 2e-3
    most = generator.integers(layers // p + 1, layers, p)
    return Chunks(m, layer, fixed, generator.random(p) * 2e-4, most, layers)


def every(chunks):
    """Every cut, and the seconds of its schedule; ``(n, chunks)`` and ``(n,)``."""
    _, p, v = chunks.fixed.shape
    places = np.array(list(combinations(range(1, chunks.layers), p * v - 1)))
    ends = np.full((len(places), 1), chunks.layers)
    cuts = np.diff(np.hstack([0 * ends, places, ends]))
    cuts = cuts[(cuts.reshape(-1, v, p).sum(axis=1) <= chunks.most).all(axis=1)]
    times = np.stack([chunks.times(cut) for cut in cuts], axis=1)
    return cuts, makespan(Schedule.INTERLEAVED, chunks.micro_batches, *times, chunks.send)


@given(st.integers(0, 2**32), st.sampled_from(SHAPES))
@few
def test_no_cut_beats_the_bound_and_few_programs_find_the_best(seed, shape):
    chunks, met = of_random_stages(seed, shape), Met()
    cuts, seconds = every(chunks)
    best = seconds.min()
    bound, near = relaxed(chunks, met, np.inf)
    assert 0.7 * best < bound <= best * (1 + 1e-9)
    for cut in rounded(near, len(chunks.send)):
        assert cut.sum() == chunks.layers
        assert cut.min() >= 1
    price = dict(zip(map(tuple, cuts.tolist()), seconds.tolist(), strict=True))
    known, cut, least = settled(chunks, met, lambda cut: price[tuple(cut)], 1.2 * best)
    assert least <= best * (1 + 1e-9)
    assert known >= best * (1 - 1e-9)
    assert price[tuple(cut)] == pytest.approx(known)
    assert least >= best * 0.97


@given(st.integers(0, 2**32), st.sampled_from(SHAPES))
@few
def test_paths_of_one_layout_bound_another_with_the_same_schedule(seed, shape):
    """And what is known rules out all cuts, or bounds them by no more than it."""
    met = Met()
    relaxed(of_random_stages(seed, shape), met, np.inf)
    other = of_random_stages(seed + 1, shape)
    paths = met.of(other)
    slopes, fixed = paths.rows(other)
    cuts, seconds = every(other)
    longest = (cuts @ slopes.T + fixed).max(axis=1)
    assert (longest <= seconds * (1 + 1e-9)).all()
    best = seconds.min()
    bound, _ = relaxed(other, met, 1.1 * best)
    assert bound <= best * (1 + 1e-9)
    enough, cut = relaxed(other, met, 0.5 * best)
    assert enough == pytest.approx(0.5 * best, rel=1e-5)
    assert enough <= 0.5 * best
    assert cut is None
    known, none, least = settled(other, met, lambda _: np.inf, best)
    assert (known, none) == (best, None)
    assert least <= best * (1 - PROVEN) * (1 + 1e-9)


def test_a_met_path_is_as_long_as_the_schedule_that_it_is_of():
    chunks, met = of_random_stages(3, (4, 2, 8, 16)), Met()
    paths = met.of(chunks)
    for cut in (np.array([1.0, 2, 1, 3, 2, 1, 4, 2]), np.full(8, 2.0)):
        seconds = paths.meet(chunks, cut)
        slopes, fixed = paths.rows(chunks)
        assert (slopes @ cut + fixed).max() == pytest.approx(seconds, rel=1e-12)
        assert slopes[-1] @ cut + fixed[-1] == pytest.approx(seconds, rel=1e-12)
    assert len(paths.passes) == 3
    assert len(met) == 1
    met.of(replace(chunks, micro_batches=4))
    assert len(met) == 2
