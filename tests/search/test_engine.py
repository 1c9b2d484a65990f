"""The search against brute force: exactly the best layouts, in the documented order, whatever things cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.candidates import Candidates
from planner.cost.memory import host_bound, memory_bound, states_bound
from planner.cost.prices import prices, step_bound
from planner.cost.step import Exact, exact, tight_bound
from planner.search import bounded, engine
from planner.search.engine import search
from planner.search.pins import Pins, parse_pins
from planner.trainers.trust import upper
from tests.search.problems import (
    LAYOUT,
    as_tuples,
    best_layouts,
    examples,
    kept_by,
    nine_digits,
    opens,
    pins,
    space_of,
    tasks,
)

problems = examples(80)
SLACK = 1e-12


def cut(memory: np.ndarray, share: float) -> float:
    """A limit that about this share of the rows keeps; no row lies on it."""
    return float(np.quantile(memory, share, method="lower")) * (1 + 1e-9)


@given(st.data())
@problems
def test_the_search_finds_exactly_the_best_layouts(data):
    task = data.draw(tasks())
    rows = space_of(task)
    if not len(rows):
        assert search(task, Pins()).best is None
        return
    priced = prices(task, rows)
    costs = exact(priced)
    _check_bounds(priced, costs)
    for _ in range(4):
        texts = data.draw(pins(task))
        read = parse_pins(texts, task.trainer)
        if opens(texts):
            kept = space_of(task, texts)
            cost = exact(prices(task, kept))
        else:
            mask = kept_by(task, texts, rows)
            kept, cost = (
                rows.take(mask),
                Exact(costs.step[mask], costs.memory[mask], costs.host[mask]),
            )
        limit = cut(costs.memory, data.draw(st.floats(0, 1)))
        top = data.draw(st.sampled_from([1, 2, 5, 40]))
        limited = replace(task, memory_limit=limit)
        shown = top
        if not read.on(("offload",)):
            kept, cost, shown = with_host(limited, texts, kept, cost, top)
        _check(limited, read, (top, shown), kept, cost)


def with_host(task, texts, rows, cost, top):
    """The space with layouts in host memory, and how many rows are returned.

    All of them where nothing fits without; else the best without, and those whose plain twins do not fit and that take
    less than the fastest without, as many again.
    """
    fits = fitting(task, cost)
    whole = space_of(task, [*texts, "offload=any"])
    every = exact(prices(task, whole))
    if not fits.any():
        return whole, every, top
    best = best_layouts(rows.take(fits), cost.step[fits], top)
    plain = as_tuples(rows)
    first = {plain[index] for index in np.flatnonzero(fits)[best]}
    lacking = {plain[index] for index in np.flatnonzero(~fits)}
    named = as_tuples(whole)
    twins = as_tuples(replace(whole, offload=0 * whole.offload))
    lacks = np.array([twin in lacking for twin in twins]) & (whole.offload > 0)
    faster = lacks & (every.step < cost.step[fits].min())
    keeps = faster | np.array([name in first for name in named])
    costs = Exact(every.step[keeps], every.memory[keeps], every.host[keeps])
    return whole.take(keeps), costs, 2 * top


def _check_bounds(priced, costs):
    assert (step_bound(priced) <= costs.step * (1 + SLACK)).all()
    assert (tight_bound(priced) <= costs.step * (1 + SLACK)).all()
    bound = memory_bound(priced)
    assert (bound <= costs.memory * (1 + SLACK)).all()
    assert (states_bound(priced) <= bound * (1 + SLACK)).all()
    assert (host_bound(priced) <= costs.host * (1 + SLACK)).all()


def fitting(task, cost):
    """What nine of ten runs stay under fits: the rule of the documents, not that of the search."""
    held = cost.host <= 0.9 * task.cluster.host.memory
    return (cost.memory * upper(task.trainer.name) <= task.memory_limit) & held


def _check(task, read, tops, rows, cost):
    top, shown = tops
    fits = fitting(task, cost)
    kept, step = rows.take(fits), cost.step[fits]
    wanted = best_layouts(kept, step, shown)
    outcome = search(task, read, top=top)
    assert len(outcome.space.candidates) >= len(rows)
    assert outcome.fitting >= int(fits.sum())
    assert not outcome.stopped
    if not wanted:
        assert outcome.best is None
        assert outcome.gap == 0
        return
    assert outcome.step == pytest.approx(step[wanted], rel=1e-9)
    assert outcome.memory == pytest.approx(cost.memory[fits][wanted], rel=1e-9)
    named = as_tuples(kept)
    assert as_tuples(outcome.best.rows) == [named[index] for index in wanted]
    assert outcome.bound <= outcome.step[0]
    assert outcome.gap == pytest.approx(0, abs=SLACK)


@given(tasks(), st.integers(0, 2**32))
@examples(25)
def test_a_row_costs_the_same_alone_as_among_many(task, seed):
    rows = space_of(task)
    if not len(rows):
        return
    together = exact(prices(task, rows))
    for index in np.random.default_rng(seed).integers(0, len(rows), 3):
        alone = exact(prices(task, rows.take(np.array([index]))))
        assert alone.step[0] == pytest.approx(together.step[index], rel=1e-12)
        assert alone.memory[0] == pytest.approx(together.memory[index], rel=1e-12)


def mixed(rows: Candidates, salt: int) -> np.ndarray:
    """A number for every row that looks random."""
    total = np.full(len(rows), salt, dtype=np.uint64)
    for column in as_columns(rows):
        total = (total ^ column) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return (total >> np.uint64(33)).astype(np.int64)


def moves_nothing(_, space, bounds, *rest):
    """No layouts in host memory, beside those that were looked at."""
    none = np.empty(0, dtype=np.int64)
    return space.take(none), bounds.take(none)


def as_columns(rows: Candidates) -> list[np.ndarray]:
    names = Candidates.__dataclass_fields__
    return [getattr(rows, name).astype(np.uint64) for name in names]


@given(tasks(most_chips=8), st.integers(0, 1000), st.sampled_from([2, 5, 1000]), st.integers(0, 3))
@problems
def test_ties_and_loose_bounds_never_cost_a_layout(task, salt, kinds, loose):
    """Made-up costs with many ties, and bounds that lie anywhere below them."""
    rows = space_of(task)

    def step(p):
        return 1.0 + mixed(p.rows, salt) % kinds

    def lower(extra):
        return lambda p: step(p) - loose * (mixed(p.rows, salt + extra) % 3) / 4

    def memory(p):
        return 1.0 + mixed(p.rows, salt + 1) % 10

    def made(p):
        return Exact(step=step(p), memory=memory(p), host=0.0 * memory(p))

    made_up = {
        "step_bound": lower(2),
        "tight_bound": lower(3),
        "exact": made,
        "memory_bound": lambda p: memory(p) - mixed(p.rows, salt + 4) % 2,
        "states_bound": lambda p: 0.0 * memory(p),
    }
    limited = replace(task, memory_limit=7.0)
    with pytest.MonkeyPatch.context() as patch:
        for name, function in made_up.items():
            for room in (engine, bounded):
                patch.setattr(room, name, function, raising=hasattr(room, name))
        patch.setattr(engine, "with_moved", moves_nothing)
        outcome = search(limited, Pins(), top=3)
    if not len(rows):
        assert outcome.best is None
        return
    priced = prices(task, rows)
    if not fitting(limited, made(priced)).any():
        rows = space_of(task, ["offload=any"])
        priced = prices(task, rows)
    fits = fitting(limited, made(priced))
    wanted = best_layouts(rows.take(fits), step(priced)[fits], 3)
    found = as_tuples(outcome.best.rows) if outcome.best is not None else []
    assert found == [as_tuples(rows.take(fits))[index] for index in wanted]


@given(tasks(), st.integers(1, 6))
@examples(60)
def test_the_answer_has_no_layout_twice_and_gets_worse_down_the_list(task, top):
    outcome = search(task, Pins(), top=top)
    if outcome.best is None:
        return
    layouts = list(zip(*(getattr(outcome.best.rows, name) for name in LAYOUT), strict=True))
    assert len(set(layouts)) == len(layouts) <= top
    assert (np.diff([nine_digits(step) for step in outcome.step]) >= 0).all()
    assert fitting(task, exact(outcome.best)).all()


@given(tasks(), st.integers(1, 5))
@examples(40)
def test_a_longer_answer_starts_as_the_shorter_one(task, top):
    shorter, longer = search(task, Pins(), top=top), search(task, Pins(), top=top + 2)
    if shorter.best is None:
        assert longer.best is None
        return
    assert as_tuples(longer.best.rows)[: len(shorter.step)] == as_tuples(shorter.best.rows)


@given(tasks())
@examples(40)
def test_progress_counts_up_and_its_bound_is_no_lie(task):
    seen = []
    outcome = search(task, Pins(), progress=seen.append)
    if outcome.best is None:
        return
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert all(p.done <= p.total for p in seen)
    best = float(outcome.step[0])
    assert all(p.best is None or p.best >= best for p in seen)
    assert all(p.bound is None or p.bound <= best * (1 + SLACK) or p.best == best for p in seen)


def test_a_search_that_was_stopped_says_what_it_knows():
    from tests.trainers.conftest import make_task

    task = make_task({"chips": 16, "model": {"experts": 16, "layers": 8}})
    whole = search(task, Pins())
    stopped = search(task, Pins(), time_limit=0.0)
    assert stopped.bound <= whole.step[0] * (1 + SLACK)
    assert stopped.refined <= whole.refined
    if len(stopped.step):
        assert stopped.step[0] >= whole.step[0] * (1 - SLACK)
        assert stopped.gap >= 1 - whole.step[0] / stopped.step[0] - SLACK


@given(tasks(), st.integers(1, 4))
@examples(40)
def test_an_interrupt_in_the_middle_of_pricing_leaves_a_bound_that_holds(task, calls):
    """What was taken up but not priced still counts as open."""
    whole = search(task, Pins())
    if whole.best is None:
        return
    left = [calls]

    def interrupted(priced):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return exact(priced)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "exact", interrupted)
        part = search(task, Pins())
    assert part.stopped == (left[0] <= 0)
    assert part.bound <= whole.step[0] * (1 + SLACK)
    if len(part.step):
        assert part.step[0] >= whole.step[0] * (1 - SLACK)
        assert part.gap >= 1 - whole.step[0] / part.step[0] - SLACK


def test_an_interrupt_between_batches_returns_the_best_so_far():
    from tests.trainers.conftest import make_task

    task = make_task({"chips": 16, "model": {"experts": 16, "layers": 8}})

    def stop(_):
        raise KeyboardInterrupt

    outcome = search(task, Pins(), top=100, progress=stop)
    assert outcome.stopped
    assert outcome.best is not None
    assert outcome.bound <= outcome.step[0]


@pytest.mark.parametrize("top", [0, -3])
def test_an_answer_has_at_least_the_plan_itself(top):
    from tests.trainers.conftest import make_task

    assert len(search(make_task({"chips": 4}), Pins(), top=top).step) == 1
