"""Interleaving where the micro-batches are no multiple of the stages, and schedules too long to be simulated whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.bounds import lower_bound, stage_bound
from planner.cost.makespan import makespan
from planner.cost.orders import FORWARD, Schedule, group_size, in_flight, order, warmup
from planner.cost.program import compile_schedule, simulate
from tests.search.problems import examples

many = examples(300)
some = examples(100)


def torch_order(p, m, v, group, stage):
    """What a stage executes, as torch.distributed.pipelining numbers it: (kind, chunk, micro-batch)."""
    warm = min((v - 1) * group + 2 * (p - 1 - stage), m * v)
    counters = ([0] * v, [0] * v)

    def operation(kind, number):
        chunk = number // group % v
        chunk = chunk if kind == 0 else v - 1 - chunk
        counters[kind][chunk] += 1
        return kind, chunk, counters[kind][chunk] - 1

    found = [operation(0, number) for number in range(warm)]
    for number in range(m * v - warm):
        found += [operation(0, warm + number), operation(1, number)]
    return found + [operation(1, number) for number in range(m * v - warm, m * v)]


def ends(p, m, v, group, times, send):
    """Latest end of all operations, by an event loop."""
    waiting = [torch_order(p, m, v, group, stage) for stage in range(p)]
    free, done = [0.0] * p, {}
    left = sum(map(len, waiting))
    while left:
        before = left
        for stage, operations in enumerate(waiting):
            while operations:
                kind, chunk, k = operations[0]
                depth = chunk * p + stage
                source = depth - 1 if kind == 0 else depth + 1
                fed = 0.0
                if 0 <= source < p * v:
                    if (kind, source, k) not in done:
                        break
                    hop = 0.0 if p == 1 else send[min(depth, source) % p]
                    fed = done[kind, source, k] + hop
                elif kind == 1:
                    if (0, depth, k) not in done:
                        break
                    fed = done[0, depth, k]
                operations.pop(0)
                left -= 1
                free[stage] = max(free[stage], fed) + times[kind][stage][chunk]
                done[kind, depth, k] = free[stage]
        assert left < before, "the stages wait for one another"
    return max(done.values())


@st.composite
def rounds(draw):
    """Stages, micro-batches, chunks: any numbers."""
    return draw(st.integers(1, 6)), draw(st.integers(1, 26)), draw(st.integers(1, 4))


@st.composite
def timed(draw):
    p, m, v = draw(rounds())
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    times = np.exp(draw(st.sampled_from([0.0, 0.3, 2.0])) * generator.standard_normal((2, p, v)))
    times *= generator.random(times.shape) < draw(st.sampled_from([1.0, 0.6]))
    send = generator.random(p) * draw(st.sampled_from([0.0, 0.1, 3.0]))
    return p, m, v, times, send


@given(rounds())
@many
def test_a_group_is_the_least_number_from_p_up_that_divides_the_micro_batches(shape):
    p, m, _ = shape
    group = int(group_size(p, m))
    assert m % group == 0
    assert group >= min(p, m)
    assert not [g for g in range(min(p, m), group) if m % g == 0]
    counts = max(1, m // p)
    if m % counts == 0:  # what torch.distributed.pipelining asks for
        assert group == m // counts


def test_groups_of_many_candidates():
    p, m = np.array([[4, 4, 4, 4, 4]]), np.array([[8, 5, 2, 11, 10]])
    assert group_size(p, m).tolist() == [[4, 5, 2, 11, 5]]


@given(rounds())
@some
def test_orders_of_odd_rounds_are_those_of_torch(shape):
    p, m, v = shape
    group = int(group_size(p, m))
    tables = order(Schedule.INTERLEAVED, p, m, v, group)
    for stage in range(p):
        columns = (tables.kind[stage], tables.chunk[stage], tables.microbatch[stage])
        listed = [(int(a), int(b), int(c)) for a, b, c in zip(*columns, strict=True)]
        assert listed == torch_order(p, m, v, group, stage)


@given(timed())
@some
def test_odd_rounds_take_what_an_event_loop_says(case):
    p, m, v, times, send = case
    group = int(group_size(p, m))
    program = compile_schedule(Schedule.INTERLEAVED, p, m, v, group)
    expected = ends(p, m, v, group, times, send)
    assert simulate(program, *times, send).makespan == pytest.approx(expected)
    if p > 1:
        found = makespan(Schedule.INTERLEAVED, m, *times[:, None], send)
        assert found == pytest.approx([expected])


@given(timed())
@many
def test_bounds_hold_for_any_number_of_micro_batches(case):
    p, m, v, times, send = case
    group = int(group_size(p, m))
    exact = simulate(compile_schedule(Schedule.INTERLEAVED, p, m, v, group), *times, send).makespan
    assert stage_bound(Schedule.INTERLEAVED, m, *times, send) <= exact * (1 + 1e-12)
    forward, backward = times.sum((-2, -1))
    bound = lower_bound(Schedule.INTERLEAVED, p, m, v, forward, backward, send.min())
    assert bound <= exact * (1 + 1e-12)
    assert bound >= (forward + backward) * (1 - 1e-12)


@given(rounds())
@some
def test_activations_held_under_odd_rounds(shape):
    p, m, v = shape
    kinds = order(Schedule.INTERLEAVED, p, m, v, int(group_size(p, m))).kind
    held = np.where(kinds == FORWARD, 1, -1).cumsum(axis=1)
    assert (in_flight(Schedule.INTERLEAVED, p, m, v, np.arange(p)) == held.max(axis=1) / v).all()


def test_fewer_micro_batches_than_stages_warm_up_as_torch_does():
    assert warmup(Schedule.INTERLEAVED, 4, 2, 2, np.arange(4)).tolist() == [4, 4, 4, 2]
    assert warmup(Schedule.INTERLEAVED, 4, 5, 2, np.arange(4)).tolist() == [10, 9, 7, 5]


@given(
    st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED]),
    st.integers(2, 5),
    st.integers(1, 200),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
@many
def test_a_long_schedule_takes_as_long_as_all_of_it_simulated(schedule, p, m, v, seed):
    v = v if schedule == Schedule.INTERLEAVED else 1
    generator = np.random.default_rng(seed)
    times = np.exp(generator.choice([0.0, 0.1, 1.5]) * generator.standard_normal((2, 3, p, v)))
    send = generator.random((3, 1)) * generator.choice([0.0, 0.1, 2.0])
    group = int(group_size(p, m)) if schedule == Schedule.INTERLEAVED else None
    whole = simulate(compile_schedule(schedule, p, m, v, group), *times, send).makespan
    assert makespan(schedule, m, *times, send) == pytest.approx(whole, rel=1e-9)
