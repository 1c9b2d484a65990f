"""Pipeline schedules against a plain reference: orders, makespans, bounds, activations held."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from planner.cost.bounds import lower_bound, makespan_equal, stage_bound
from planner.cost.orders import BACKWARD, FORWARD, Schedule, in_flight, order, warmup
from planner.cost.program import compile_schedule, simulate

many = settings(max_examples=600, deadline=None)
some = settings(max_examples=150, deadline=None)
WHOLE = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
"""Schedules whose backward passes are whole."""


def reference_order(schedule, p, m, v, stage):
    """What a stage executes, as (kind, chunk, micro-batch), written the way trainers write it."""
    if schedule == Schedule.INTERLEAVED:
        groups = range(0, m, p)
        forwards = [(0, c, g + k) for g in groups for c in range(v) for k in range(p)]
        backwards = [(1, c, g + k) for g in groups for c in reversed(range(v)) for k in range(p)]
        warm = (p - stage - 1) * 2 + (v - 1) * p
    else:
        forwards = [(0, 0, k) for k in range(m)]
        backwards = [(1, 0, k) for k in range(m)]
        warm = m if schedule == Schedule.GPIPE else p - stage - 1
    executed = []
    while backwards:
        while forwards and warm > 0:
            executed.append(forwards.pop(0))
            warm -= 1
        if forwards:
            executed.append(forwards.pop(0))
        executed.append(backwards.pop(0))
    return executed


def source(p, v, stage, operation):
    """The operation that produces the input, with its stage, and the boundary crossed; None for the first."""
    kind, c, k = operation
    if kind == 0:
        if stage > 0:
            return (stage - 1, 0, c, k), stage - 1
        return ((p - 1, 0, c - 1, k), p - 1) if c > 0 else None
    if stage < p - 1:
        return (stage + 1, 1, c, k), stage
    return ((0, 1, c + 1, k), p - 1) if c < v - 1 else ((stage, 0, c, k), None)


def reference_ends(schedule, p, m, v, times, send):
    """End of every operation, by an event loop over the stages."""
    waiting = [reference_order(schedule, p, m, v, stage) for stage in range(p)]
    free, ends = [0.0] * p, {}
    while any(waiting):
        for stage, operations in enumerate(waiting):
            while operations:
                found = source(p, v, stage, operations[0])
                if found and found[0] not in ends:
                    break
                fed = 0.0
                if found:
                    delay = 0.0 if found[1] is None or p == 1 else send[found[1]]
                    fed = ends[found[0]] + delay
                kind, c, k = operations.pop(0)
                free[stage] = max(free[stage], fed) + times[kind][stage][c]
                ends[stage, kind, c, k] = free[stage]
    return ends


def best_split_makespan(schedule, p, m, forward, backward):
    """Least makespan over all divisions of the totals over stages, by linear programming (v = 1)."""
    places = [(i, *op) for i in range(p) for op in reference_order(schedule, p, m, 1, i)]
    column = {place: number for number, place in enumerate(places)}
    size = len(places)
    rows = [(before, after) for before, after in pairwise(places) if before[0] == after[0]]
    rows += [(found[0], place) for place in places if (found := source(p, 1, place[0], place[1:]))]
    rows += [(place, None) for place in places]
    limits = np.zeros((len(rows), size + 2 * p + 1))
    for row, (before, after) in zip(limits, rows, strict=True):
        row[column[before]] = row[size + before[1] * p + before[0]] = 1
        row[-1 if after is None else column[after]] = -1
    sums = np.zeros((2, size + 2 * p + 1))
    sums[0, size : size + p] = sums[1, size + p : size + 2 * p] = 1
    aim = np.eye(size + 2 * p + 1)[-1]
    zeros = np.zeros(len(rows))
    return linprog(aim, A_ub=limits, b_ub=zeros, A_eq=sums, b_eq=[forward, backward]).fun


@st.composite
def shapes(draw):
    """(schedule, p, m, v)."""
    schedule = draw(st.sampled_from(WHOLE))
    p = draw(st.integers(1, 6))
    if schedule == Schedule.INTERLEAVED:
        return schedule, p, p * draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return schedule, p, draw(st.integers(1, 14)), 1


@st.composite
def cases(draw, equal_send=False):
    """A shape with times (2, p, v) and delays (p,): near balance, far from it, or with zeros."""
    shape = draw(shapes())
    p, v = shape[1], shape[3]
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.05, 0.5, 2.0, 5.0]))
    times = np.exp(spread * generator.standard_normal((2, p, v))) * [[[1.0]], [[2.0]]]
    times *= generator.random(times.shape) < draw(st.sampled_from([1.0, 0.5]))
    send = generator.random(1 if equal_send else p) * draw(st.sampled_from([0.0, 0.1, 3.0]))
    return shape, times, np.broadcast_to(send, p)


@given(shapes())
@some
def test_orders_are_those_of_the_trainers(shape):
    schedule, p, m, v = shape
    tables = order(*shape)
    for stage in range(p):
        columns = (tables.kind[stage], tables.chunk[stage], tables.microbatch[stage])
        listed = [(int(a), int(b), int(c)) for a, b, c in zip(*columns, strict=True)]
        assert listed == reference_order(schedule, p, m, v, stage)


def test_one_f_one_b_of_three_stages_is_the_textbook_picture():
    kinds = order(Schedule.ONE_F_ONE_B, 3, 4).kind
    pictures = ["".join("FB"[kind] for kind in row) for row in kinds]
    assert pictures == ["FFFBFBBB", "FFBFBFBB", "FBFBFBFB"]
    assert (FORWARD, BACKWARD) == (0, 1)


def test_interleaved_warms_up_as_megatron_does():
    assert warmup(Schedule.INTERLEAVED, 4, 8, 2, np.arange(4)).tolist() == [10, 8, 6, 4]
    tables = order(Schedule.INTERLEAVED, 2, 4, 2)
    assert tables.chunk[1].tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("schedule", "m", "v"),
    [(Schedule.GPIPE, 4, 2), (Schedule.INTERLEAVED, 6, 2), (Schedule.ONE_F_ONE_B, 0, 1)],
)
def test_impossible_orders_are_refused(schedule, m, v):
    with pytest.raises(ValueError, match=schedule.label):
        order(schedule, 4, m, v)


def test_labels_name_their_schedules():
    assert [Schedule.named(each.label) for each in Schedule] == list(Schedule)


@given(cases())
@many
def test_simulation_equals_the_reference(case):
    (schedule, p, m, v), times, send = case
    ends = reference_ends(schedule, p, m, v, times, send)
    program = compile_schedule(schedule, p, m, v)
    timing = simulate(program, *times, send)
    assert timing.makespan == pytest.approx(max(ends.values()))
    rounding = 1e-12 * float(np.max(timing.makespan))
    waits = timing.makespan - m * times.sum((0, -1))
    assert timing.idle == pytest.approx(waits, abs=rounding)
    starts, tables = simulate(program, *times, send).starts, program.orders
    for (stage, column), start in np.ndenumerate(starts):
        operation = (tables.kind, tables.chunk, tables.microbatch)
        kind, c, k = (int(table[stage, column]) for table in operation)
        assert start + times[kind, stage, c] == pytest.approx(ends[stage, kind, c, k])


@given(shapes(), st.integers(0, 2**32))
@some
def test_many_candidates_are_simulated_as_one_by_one(shape, seed):
    _, p, _, v = shape
    generator = np.random.default_rng(seed)
    forward, backward = generator.random((2, 3, p, v)), generator.random((3, p, v))
    send = generator.random((3, 1))
    program = compile_schedule(*shape)
    together = simulate(program, forward, backward, send)
    starts = simulate(program, forward, backward, send).starts
    bounds = stage_bound(shape[0], shape[2], forward, backward, send)
    assert together.idle.shape == (2, 3, p)
    for i, j in np.ndindex(2, 3):
        single = (forward[i, j], backward[j], send[j])
        assert together.makespan[i, j] == simulate(program, *single).makespan
        assert (starts[i, j] == simulate(program, *single).starts).all()
        assert bounds[i, j] == pytest.approx(stage_bound(shape[0], shape[2], *single))


@given(shapes(), st.floats(0, 5), st.floats(0, 5))
@some
def test_equal_stages_have_the_closed_form_and_an_exact_stage_bound(shape, forward, backward):
    schedule, p, m, v = shape
    times = np.ones((2, p, v)) * [[[forward / v]], [[backward / v]]]
    makespan = simulate(compile_schedule(*shape), *times).makespan
    assert makespan == pytest.approx(makespan_equal(p, m, v, forward, backward))
    assert stage_bound(schedule, m, *times) == pytest.approx(makespan)


@given(cases())
@many
def test_stage_bound_never_exceeds_the_makespan(case):
    (schedule, p, m, v), times, send = case
    makespan = simulate(compile_schedule(schedule, p, m, v), *times, send).makespan
    bound = stage_bound(schedule, m, *times, send)
    assert bound <= makespan * (1 + 1e-12)
    if schedule == Schedule.GPIPE:
        assert bound == pytest.approx(makespan)


@given(cases(equal_send=True))
@many
def test_no_division_of_the_model_beats_the_lower_bound(case):
    (schedule, p, m, v), times, send = case
    makespan = simulate(compile_schedule(schedule, p, m, v), *times, send).makespan
    forward, backward = times.sum((-2, -1))
    assert lower_bound(schedule, p, m, v, forward, backward, send[0]) <= makespan * (1 + 1e-12)


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
@pytest.mark.parametrize("backward", [0.3, 1.0, 2.0, 6.0])
def test_without_chunks_the_lower_bound_is_the_best_division(schedule, backward):
    for p in (1, 2, 3, 4):
        for m in (1, 2, 3, 4, 5, 7):
            best = best_split_makespan(schedule, p, m, 1.0, backward)
            assert lower_bound(schedule, p, m, 1, 1.0, backward) == pytest.approx(best)


def test_lower_bound_takes_candidates_of_all_schedules_at_once():
    schedules = np.array([Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED])
    p, m, v = np.array([2, 4, 8]), np.array([4, 3, 16]), np.array([1, 1, 2])
    together = lower_bound(schedules, p, m, v, 1.0, np.array([[1.0], [2.0]]), 0.01)
    assert together.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        alone = lower_bound(schedules[j], p[j], m[j], v[j], 1.0, i + 1.0, 0.01)
        assert together[i, j] == alone


def test_stage_bound_takes_a_micro_batch_count_per_candidate():
    times = np.random.default_rng(3).random((2, 5, 4, 2))
    m = np.array([4, 8, 12, 16, 64])
    together = stage_bound(Schedule.INTERLEAVED, m, *times)
    alone = [
        stage_bound(Schedule.INTERLEAVED, count, *times[:, i]) for i, count in enumerate(m.tolist())
    ]
    assert together == pytest.approx(np.array(alone))


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_interleaved_bounds_are_close_at_balance(groups):
    p, v = 8, 4
    m = groups * p
    balanced = makespan_equal(p, m, v, 1 / p, 2 / p)
    assert 0.92 < lower_bound(Schedule.INTERLEAVED, p, m, v, 1.0, 2.0) / balanced < 1


@given(cases(), st.data())
@some
def test_longer_operations_never_shorten_the_step(case, data):
    (schedule, p, m, v), times, send = case
    place = tuple(data.draw(st.integers(0, size - 1)) for size in times.shape)
    longer = times.copy()
    longer[place] += data.draw(st.floats(0, 10))
    delayed = send + data.draw(st.floats(0, 1)) * (np.arange(p) == place[1])
    program = compile_schedule(schedule, p, m, v)
    before = simulate(program, *times, send).makespan
    assert simulate(program, *longer, delayed).makespan >= before
    bound = stage_bound(schedule, m, *times, send)
    assert stage_bound(schedule, m, *longer, delayed) >= bound * (1 - 1e-12)


@given(shapes())
@some
def test_activations_held_are_those_counted_in_the_order(shape):
    schedule, p, m, v = shape
    held = np.where(order(*shape).kind == FORWARD, 1, -1).cumsum(axis=1)
    assert (in_flight(schedule, p, m, v, np.arange(p)) == held.max(axis=1) / v).all()
    assert (held[:, -1] == 0).all()


def test_compilation_is_kept():
    first = compile_schedule(Schedule.ONE_F_ONE_B, 4, 8)
    assert compile_schedule(Schedule.ONE_F_ONE_B, 4, 8) is first


def test_times_of_another_shape_are_refused():
    program = compile_schedule(Schedule.ONE_F_ONE_B, 4, 8)
    with pytest.raises(ValueError, match=r"\(4, 1\)"):
        simulate(program, np.ones((4, 2)), np.ones((4, 2)))
