"""The cut into stages: against brute force, never worse than the even cut, bounds that hold."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.cost.partition import even_cut
from planner.search.stages import descent, solver
from planner.search.stages.solver import narrowed, solve
from planner.search.stages.staying import staying_bound
from planner.search.stages.table import StageTable

few = settings(max_examples=80, deadline=None, derandomize=True)
PLAIN = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZB_H1)


def table_of(schedule, m, layers, p, send, seed, refused=0.0):
    """Stages of layers with random times; a share of the runs is refused."""
    generator = np.random.default_rng(seed)
    own = np.exp(0.3 * generator.standard_normal((2, layers))) * [[1.0], [2.0]]
    sizes = np.arange(1, layers - p + 2)
    shape = (p, layers + 1, len(sizes))
    forward, backward = np.full(shape, np.inf), np.full(shape, np.inf)
    for place, size in enumerate(sizes):
        for low in range(layers - size + 1):
            forward[:, low, place] = own[0, low : low + size].sum()
            backward[:, low, place] = own[1, low : low + size].sum()
    backward *= 1.0 + 0.3 * generator.integers(0, 2, shape)
    backward[generator.random(shape) < refused] = np.inf
    delays = send * generator.random(p)
    return StageTable(schedule, m, sizes, np.arange(layers + 1), forward, backward, forward, delays)


def brute_force(table):
    """The least makespan of all cuts."""
    p, layers = table.num_stages, table.num_layers
    places = combinations(range(1, layers), p - 1)
    cuts = np.diff([[0, *place, layers] for place in places], axis=1)
    times = table.times(cuts)
    every = [np.where(np.isfinite(sum(times)), part, 1e9) for part in times]
    found = makespan(table.schedule, table.micro_batches, *every[:2], table.send, every[2])
    return float(np.where(np.isfinite(sum(times)).all(axis=(1, 2)), found, np.inf).min())


@st.composite
def tables(draw, most=9):
    p = draw(st.integers(2, 4))
    return table_of(
        draw(st.sampled_from(PLAIN)),
        draw(st.integers(1, 12)),
        draw(st.integers(p + 1, most)),
        p,
        draw(st.sampled_from([0.0, 0.05, 0.5])),
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from([0.0, 0.2])),
    )


@given(tables())
@few
def test_few_cuts_are_all_tried(table):
    found, best = solve(table), brute_force(table)
    if found is None:
        assert np.isinf(best)
    else:
        assert found.makespan == pytest.approx(best)
        assert found.proven


@given(tables(most=11))
@few
def test_dynamic_programming_agrees_with_brute_force(table):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "EXHAUSTIVE", 0)
        found = solve(table)
    best = brute_force(table)
    if found is None:
        assert np.isinf(best)
        return
    assert found.proven
    assert found.bound <= best * (1 + 1e-9)
    assert found.makespan == pytest.approx(best, rel=solver.PROVEN)
    assert found.layers.sum() == table.num_layers


@given(
    st.sampled_from(PLAIN),
    st.integers(1, 24),
    st.sampled_from([(5, 18), (6, 18), (4, 24), (7, 16)]),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.2]),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_more_cuts_than_are_all_tried_agree_with_brute_force(
    schedule, m, shape, send, seed, refused
):
    """Times that differ at random: nearly all searches are proven, and hardly any of the others is not the best."""
    p, layers = shape
    table = table_of(schedule, m, layers, p, send, seed, refused)
    found, best = solve(table), brute_force(table)
    if found is None:
        assert np.isinf(best)
        return
    assert found.bound <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= found.makespan <= best * (1.001 if found.proven else 1.03)


@given(tables(most=11), st.sampled_from([0.9, 0.999, 1.001, 1.1]))
@few
def test_nothing_is_found_but_what_beats_a_known_makespan_and_that_is_the_best(table, share):
    best = brute_force(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "EXHAUSTIVE", 0)
        found = solve(table, known=best * share)
    if share < 1.0:
        assert found is None or found.makespan >= best * share
    elif np.isfinite(best):
        assert found is not None
        assert found.makespan == pytest.approx(best, rel=solver.PROVEN)


@given(tables(most=10), st.sampled_from([1.0001, 1.01, 1.2]))
@few
def test_a_narrowed_table_holds_every_cut_that_is_faster(table, share):
    p, layers = table.num_stages, table.num_layers
    places = combinations(range(1, layers), p - 1)
    cuts = np.diff([[0, *place, layers] for place in places], axis=1)
    cuts = cuts[table.allows(cuts)]
    if not len(cuts):
        return
    seconds = table.makespans(cuts)
    whole = min(float(sum(table.times(cuts[[row]])[:2]).sum()) for row in range(len(cuts)))
    known = float(seconds.min()) * share
    tight = narrowed(table, whole, known)
    assert tight is not None
    assert tight.allows(cuts[seconds < known]).all()
    assert tight.forward.size <= table.forward.size
    assert narrowed(table, whole, 0.99 * whole * table.micro_batches / p) is None


def test_layers_are_moved_only_where_beginnings_of_cuts_are_too_many_to_follow(monkeypatch):
    """Following them is cheaper, and ends in a proof."""
    moved = []
    inner = descent._neighbours
    monkeypatch.setattr(descent, "_neighbours", lambda *args: moved.append(1) or inner(*args))
    for seed in range(14):
        table = table_of(Schedule.ONE_F_ONE_B, 12, 18, 5, 0.05, seed)
        found = solve(table)
        assert found is not None
        assert found.proven
        assert solve(table, known=found.makespan * (1.0 - 2.0 * solver.PROVEN)) is None
    assert not moved
    monkeypatch.setattr(solver, "_few", lambda _: False)
    assert solve(table).makespan >= found.makespan * (1.0 - solver.PROVEN)
    assert moved


@given(st.integers(2, 6), st.integers(0, 2**32), st.sampled_from([0.05, 0.5]))
@example(4, 1827424294, 0.5)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_bounds_hold_where_micro_batches_are_few(m, seed, send):
    """A stage that runs all forwards before its first backward has no path that turns back in between."""
    table = table_of(Schedule.ONE_F_ONE_B, m, 16, 7, send, seed)
    best, found = brute_force(table), solve(table)
    assert staying_bound(table, 1e9) + table.pairs.sum() <= best * (1 + 1e-9)
    assert found is not None
    assert found.bound <= best * (1 + 1e-9)


@given(st.integers(0, 2**32), st.sampled_from(PLAIN))
@few
def test_never_worse_than_the_even_cut(seed, schedule):
    layers, p = 30, 6
    table = table_of(schedule, 24, layers, p, 0.02, seed)
    even = even_cut(layers, p, 1)
    times = table.times(even[None])
    before = makespan(schedule, 24, *times[:2], table.send, times[2])[0]
    found = solve(table, even)
    assert found is not None
    assert found.makespan <= before * (1 + 1e-12)
    assert found.bound <= found.makespan


@pytest.mark.parametrize(("layers", "p", "limit"), [(126, 16, 0.3), (1000, 64, 3.0)])
@pytest.mark.parametrize("again", [False, True])
def test_long_models_are_cut_quickly_and_proven(layers, p, limit, again):
    """Equal layers with an embedding and a head; early stages recompute the more the more layers they hold."""
    share = layers / p
    sizes = np.arange(max(1, int(share) - 3), int(np.ceil(share)) + 4)
    stage, low = np.arange(p)[:, None, None], np.arange(layers + 1)[:, None]
    own = sizes + 0.1 * (stage == 0) + 0.6 * (stage == p - 1)
    repeated = np.maximum(0.0, (p - stage) * sizes - 0.6 * p * share) / (p - stage)
    fits = low + sizes <= layers
    forward = np.where(fits, own, np.inf)
    backward = np.where(fits, 2.0 * own + 0.9 * again * repeated, np.inf)
    send = 0.01 * np.ones(p)
    table = StageTable(
        Schedule.ONE_F_ONE_B,
        4 * p,
        sizes,
        np.arange(layers + 1),
        forward,
        backward,
        np.zeros_like(forward),
        send,
    )
    begin = time.process_time()
    found = solve(table)
    assert time.process_time() - begin < 3 * limit
    assert found is not None
    assert found.proven
    assert found.layers.sum() == layers
