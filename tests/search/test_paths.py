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
from planner.search.stages.linear import CLOSE
from planner.search.stages.paths import Chunks, Met
from planner.search.stages.programs import TURNS, Programs, rounded

few = settings(max_examples=20, deadline=None, derandomize=True)
SHAPES = [(2, 2, 4, 11), (2, 3, 2, 12), (3, 2, 6, 10), (2, 2, 6, 13), (4, 2, 8, 11)]


def of_random_stages(seed, shape):
    """Chunks on stages that differ in speed, in how many layers they may hold and in what follows, with ends, sends."""
    p, v, m, layers = shape
    generator = np.random.default_rng(seed)
    speed = np.exp(0.6 * generator.standard_normal(p))
    layer = np.stack([speed, speed * generator.uniform(1.5, 2.5, p)]) * 1e-3
    fixed = np.zeros((2, p, v))
    fixed[:, 0, 0], fixed[:, -1, -1] = generator.random((2, 2)) * 2e-3
    most = generator.integers(layers // p + 1, layers, p)
    after = generator.random((2, p)) * [[1e-3], [2e-3]]
    return Chunks(m, layer, fixed, generator.random(p) * 2e-4, after, most, layers)


def every(chunks):
    """Every cut, and the seconds of its schedule and what follows; ``(n, chunks)`` and ``(n,)``."""
    _, p, v = chunks.fixed.shape
    places = np.array(list(combinations(range(1, chunks.layers), p * v - 1)))
    ends = np.full((len(places), 1), chunks.layers)
    cuts = np.diff(np.hstack([0 * ends, places, ends]))
    cuts = cuts[(cuts.reshape(-1, v, p).sum(axis=1) <= chunks.most).all(axis=1)]
    seconds = makespan(Schedule.INTERLEAVED, chunks.micro_batches, *chunks.times(cuts), chunks.send)
    held = cuts.reshape(-1, v, p).sum(axis=1)
    return cuts, seconds + (chunks.after[0] + chunks.after[1] * held).max(axis=1)


@given(st.integers(0, 2**32), st.sampled_from(SHAPES))
@few
def test_no_cut_beats_the_bound_and_few_programs_find_the_best(seed, shape):
    chunks = of_random_stages(seed, shape)
    cuts, seconds = every(chunks)
    best = seconds.min()
    programs = Programs(chunks, Met(), 1.2 * best)
    bound, near = programs.relaxed()
    assert 0.7 * best < bound <= best * (1 + 1e-9)
    for cut in rounded(near, len(chunks.send)):
        assert cut.sum() == chunks.layers
        assert cut.min() >= 1
    price = dict(zip(map(tuple, cuts.tolist()), seconds.tolist(), strict=True))
    known = price[tuple(programs.moved(rounded(near, len(chunks.send)) or [cuts[0]])[0])]
    assert best * (1 - 1e-9) <= known <= 1.05 * best
    least = bound
    for _ in range(TURNS):
        found, cut = programs.whole()
        assert found <= best * (1 + 1e-9)
        least = max(least, found)
        if cut is None or programs.meet(cut[None], join=True)[0] <= found * (1 + CLOSE):
            break
        known = min(known, price[tuple(programs.moved([cut])[0])])
    assert least >= best * 0.97
    assert known <= best * (1 + 1e-3)


@given(st.integers(0, 2**32), st.sampled_from(SHAPES))
@few
def test_bounds_of_whole_stages_are_as_if_every_number_of_layers_was_looked_at(seed, shape):
    """The least over all numbers of layers of the bound where stages hold just these."""
    chunks, met = of_random_stages(seed, shape), Met()
    cuts, seconds = every(chunks)
    v = chunks.fixed.shape[2]
    held = np.unique(cuts.reshape(len(cuts), v, -1).sum(axis=1), axis=0)
    enough = 2.0 * seconds.min()
    alone = [Programs(replace(chunks, most=each), met, enough).relaxed()[0] for each in held]
    bound, near = Programs(chunks, met, enough).relaxed()
    assert bound == pytest.approx(min(alone), rel=2 * CLOSE)
    sums = near.reshape(v, -1).sum(axis=0)
    assert sums == pytest.approx(np.round(sums), abs=1e-5)
    assert (np.round(sums) <= chunks.most).all()


@given(st.integers(0, 2**32), st.sampled_from(SHAPES))
@few
def test_paths_of_one_layout_bound_another_with_the_same_schedule(seed, shape):
    """And what is known rules out all cuts, or bounds them by no more than it."""
    met = Met()
    Programs(of_random_stages(seed, shape), met, 1.0).relaxed()
    other = of_random_stages(seed + 1, shape)
    slopes, fixed = met.of(other).rows(other)
    cuts, seconds = every(other)
    longest = (cuts @ slopes.T + fixed).max(axis=1) + other.following(cuts)
    assert (longest <= seconds * (1 + 1e-9)).all()
    best = seconds.min()
    bound, _ = Programs(other, met, 1.1 * best).relaxed()
    assert bound <= best * (1 + 1e-9)
    enough, cut = Programs(other, met, 0.5 * best).relaxed()
    assert enough == pytest.approx(0.5 * best, rel=1e-5)
    assert enough <= 0.5 * best
    assert cut is None


def test_a_met_path_is_as_long_as_the_schedule_that_it_is_of():
    chunks, met = of_random_stages(3, (4, 2, 8, 16)), Met()
    chunks = replace(chunks, layer=np.full((2, 4), 1e-3))  # none is the busiest in all cuts
    paths = met.of(chunks)
    cuts = np.array([[1.0, 2, 1, 3, 2, 1, 4, 2], [2.0] * 8])
    seconds = paths.meet(chunks, cuts)
    slopes, fixed = paths.rows(chunks)
    assert (cuts @ slopes.T + fixed).max(axis=1) == pytest.approx(seconds, rel=1e-12)
    assert len(paths.passes) == 2  # that of equal chunks is known
    paths.meet(chunks, cuts)
    assert len(paths.passes) == 2
    met.of(replace(chunks, micro_batches=4))
    assert len(met) == 2


def test_cuts_are_found_with_few_programs(monkeypatch):
    """Answers between a program's and the best known one bring several paths each."""
    chunks, asked = of_random_stages(5, (4, 5, 32, 80)), []
    chunks = replace(chunks, most=np.full(4, 76))
    solved = Programs._least
    monkeypatch.setattr(Programs, "_least", lambda *a: asked.append(1) or solved(*a))
    programs = Programs(chunks, Met(), 10.0)
    bound, near = programs.relaxed()
    found = programs.moved(rounded(near, 4))
    assert bound <= programs.meet(found[0][None])[0] <= 1.03 * bound
    assert len(asked) < 300
