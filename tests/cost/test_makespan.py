"""Long schedules, of which a short one is simulated, against all of them simulated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import makespan as module
from planner.cost.bounds import turning_bound
from planner.cost.makespan import makespan, steady
from planner.cost.orders import NOTHING, Schedule, group_size
from planner.cost.program import compile_schedule, simulate

thousands = settings(max_examples=2000, deadline=None)
many = settings(max_examples=300, deadline=None)
SCHEDULES = (
    Schedule.ONE_F_ONE_B,
    Schedule.INTERLEAVED,
    Schedule.ZB_H1,
    Schedule.ZB_H2,
    Schedule.ZBV,
    Schedule.DUALPIPEV,
)


@st.composite
def shapes(draw, longest=60):
    """(schedule, stages, micro-batches, chunks a stage, micro-batches of a group)."""
    schedule = draw(st.sampled_from(SCHEDULES))
    p = draw(st.integers(2, 6))
    chunked = schedule in (Schedule.INTERLEAVED, Schedule.ZB_H1)
    v = 2 if schedule.folded else draw(st.integers(1, 4)) if chunked else 1
    m = draw(st.integers(1, longest)) + 2 * p * (schedule == Schedule.DUALPIPEV)
    if v > 1 and schedule == Schedule.ZB_H1:
        m = p * -(-m // p)
    return schedule, p, m, v, int(group_size(p, m)) if v > 1 and not schedule.folded else p


def period(schedule, v, group):
    """Operations of a stage in a period."""
    return group * v * (3 if schedule.splits and schedule != Schedule.DUALPIPEV else 2)


def random_times(shape, seed, rows):
    """Forward, backward, weight ``(rows, stages, chunks)`` and sends ``(rows, stages)``."""
    _, p, _, v, _ = shape
    generator = np.random.default_rng(seed)
    spread = generator.choice([0.0, 0.02, 0.3, 1.5])
    parts = np.exp(spread * generator.standard_normal((3, rows, p, v)))
    parts *= generator.random(parts.shape) < generator.choice([1.0, 1.0, 0.7])
    if generator.random() < 0.5:  # equal layers, with a head on the last chunk
        parts[:] = parts[:, :, :1, :1]
        parts[:, :, -1, -1] *= 1.0 + generator.random()
    forward, gradient, weight = parts
    send = generator.random((rows, p)) * generator.choice([0.0, 0.01, 1.0])
    return forward, gradient + weight, weight, send


@given(shapes(), st.integers(0, 2**32))
@thousands
def test_it_is_that_of_the_whole_schedule(shape, seed):
    schedule, p, m, v, group = shape
    forward, backward, weight, send = random_times(shape, seed, 3)
    whole = simulate(compile_schedule(schedule, p, m, v, group), forward, backward, send, weight)
    found = makespan(schedule, m, forward, backward, send, weight)
    assert found == pytest.approx(whole.makespan, rel=1e-9)


def lengthened(shape, more=0):
    """A schedule of ten groups of micro-batches and some, its group, and the operations of a stage in a period."""
    schedule, p, m, v, group = shape
    if m < p:
        m = group = p
    program = compile_schedule(schedule, p, m + (10 + more) * group, v, group)
    return program, group, period(schedule, v, group)


@given(shapes(), st.integers(1, 3))
@many
def test_a_longer_schedule_has_periods_put_in_where_the_steady_part_ends(shape, more):
    short, group, length = lengthened(shape)
    long, added = lengthened(shape, more)[0], more * group
    part = steady(short, group, length)
    at = part.end
    for name in ("kind", "chunk", "microbatch"):
        mine, theirs = getattr(short.orders, name), getattr(long.orders, name)
        ends = short.orders.kind[:, at:] == NOTHING
        late = added * (name == "microbatch")
        assert (theirs[:, :at] == mine[:, :at]).all()
        rest = theirs[:, at + more * length :]
        assert np.where(ends, rest == mine[:, at:], rest == mine[:, at:] + late).all()
        for turn in range(1, more + 1):
            place = at + (turn - 1) * length
            repeated = mine[:, at - length : at] + turn * group * (name == "microbatch")
            assert (theirs[:, place : place + length] == repeated).all()


@given(shapes())
@many
def test_nothing_behind_a_place_waits_for_what_is_out_of_reach(shape):
    program, group, length = lengthened(shape)
    part = steady(program, group, length)
    first = part.end - part.reach
    assert part.start <= first
    p, operations = program.orders.kind.shape
    place = np.empty(program.number.size, np.int64)
    place[program.number] = np.arange(operations)
    sent = program.hop < p
    waits, source = place[sent], place[program.after_data[sent] - 1]
    assert (source[waits >= part.end] >= first).all()
    assert (source[waits >= part.end - length] >= first - length).all()


def test_what_is_simulated_does_not_grow_with_the_micro_batches(monkeypatch):
    sizes = []
    monkeypatch.setattr(module, "simulate", lambda program, *times: counted(sizes, program, *times))
    for schedule, v in ((Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 3), (Schedule.ZBV, 2)):
        seen = []
        for m in (40, 400, 4000):
            sizes.clear()
            forward = np.ones((1, 4, v)) + 0.1 * np.eye(4, v)
            makespan(schedule, m, forward, 2 * forward, 0.01, forward)
            seen.append(sum(sizes))
        assert seen[0] <= seen[1] == seen[2] < 100 * 4 * v * 3


@given(st.integers(2, 12), st.integers(2, 90), st.integers(0, 2**32))
@many
def test_turns_over_runs_of_stages_bound_1f1b(p, m, seed):
    generator = np.random.default_rng(seed)
    forward, backward = generator.random((2, 4, p, 1)) ** generator.choice([0.05, 1.0])
    send = generator.random((4, p)) * generator.choice([0.0, 0.01, 1.0])
    bound = turning_bound(m, (forward + backward)[..., 0], send)
    assert (bound <= makespan(Schedule.ONE_F_ONE_B, m, forward, backward, send) * (1 + 1e-9)).all()


def test_they_mostly_are_the_makespan_of_stages_that_are_nearly_equal():
    generator = np.random.default_rng(7)
    for p, m in ((4, 40), (16, 120), (16, 480)):
        layers = 6 + generator.integers(0, 2, (40, p, 1))
        bound = turning_bound(m, 3.0 * layers[..., 0], np.full(p, 0.01))
        exact = makespan(Schedule.ONE_F_ONE_B, m, 1.0 * layers, 2.0 * layers, np.full(p, 0.01))
        assert (bound > exact * (1 - 1e-9)).mean() > 0.8


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 20), st.integers(0, 2**32))
@many
def test_a_longer_program_runs_fewer_micro_batches(p, more, fewer, seed):
    generator = np.random.default_rng(seed)
    times, m = generator.random((2, 3, p, 1)), np.array([p, p + more, p + more + fewer])
    long = compile_schedule(Schedule.ONE_F_ONE_B, p, int(m[-1]), 1)
    together = simulate(long, *times, 0.3, None, m)
    for row, count in enumerate(m.tolist()):
        alone = simulate(compile_schedule(Schedule.ONE_F_ONE_B, p, count, 1), *times[:, row], 0.3)
        assert together.makespan[row] == alone.makespan
        assert together.idle[row] == pytest.approx(alone.idle)


def test_stages_of_nearly_equal_length_are_not_simulated_longer_for_more_micro_batches(monkeypatch):
    sizes = []
    monkeypatch.setattr(module, "simulate", lambda program, *times: counted(sizes, program, *times))
    forward = np.array([1.0, *[1.1] * 5, 1.0, 1.05]).reshape(1, 8, 1)
    for m in (403, 4003):
        makespan(Schedule.ONE_F_ONE_B, m, forward, 2 * forward, 0.01)
    assert len(sizes) == 2
    assert sizes[0] == sizes[1] < 100 * 8 * 2


def counted(sizes, program, *times):
    sizes.append(program.orders.kind.size)
    return simulate(program, *times)


def test_a_schedule_is_simulated_once(monkeypatch):
    sizes = []
    monkeypatch.setattr(module, "simulate", lambda program, *times: counted(sizes, program, *times))
    forward = np.random.default_rng(5).random((3, 4, 1))
    both = makespan(Schedule.ONE_F_ONE_B, 9, forward, 2 * forward)
    assert len(sizes) == 1
    again = makespan(Schedule.ONE_F_ONE_B, 9, forward[::-1], 2 * forward[::-1])
    assert len(sizes) == 1
    assert (again == both[::-1]).all()
    assert makespan(Schedule.ONE_F_ONE_B, 10, forward[:1], 2 * forward[:1]) > both[0]
    assert len(sizes) == 2
