"""Nothing fits: the closest layout really is the closest, and finding it simulates no schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from planner.api import Question, plan
from planner.cost import makespan
from planner.cost.prices import prices
from planner.cost.step import exact, exact_memory
from planner.plan.schema import NoPlan, Plan
from planner.search import miss
from planner.search.miss import closest_miss, least_memory
from planner.search.pins import Pins
from planner.search.space import build_space
from planner.units import GIB
from tests.search.problems import as_tuples, examples, space_of, tasks


@given(tasks())
@examples(30)
def test_the_closest_miss_needs_least_memory_of_all(task):
    rows = space_of(task)
    found = closest_miss(task, build_space(task, Pins()))
    if not len(rows):
        assert found is None
        return
    memory = exact(prices(task, rows)).memory
    assert found is not None
    assert found.memory.total.max() == pytest.approx(memory.min(), rel=1e-9)
    index = as_tuples(rows).index(as_tuples(found.prices.rows)[0])
    assert memory[index] == pytest.approx(memory.min(), rel=1e-9)


def test_a_limit_of_the_user_is_lifted_before_another_chip_is_named():
    asked = Question(model="llama-3-8b", cluster="h100-sxm:8", memory_limit="1", seq_len=4096)
    found = plan(asked)
    assert isinstance(found, NoPlan)
    more = [remedy for remedy in found.remedies if remedy.limit > found.memory_limit]
    assert [remedy.change for remedy in more] == ["no --memory-limit"]
    assert more[0].limit == pytest.approx(79.1 * GIB, rel=1e-3)
    assert isinstance(plan(replace(asked, memory_limit=None)), Plan)


def test_lifting_a_limit_is_offered_where_host_memory_is_needed_too():
    asked = Question(model="llama-3-8b", cluster="h100-sxm:1", memory_limit="40", seq_len=4096)
    found = plan(asked)
    assert isinstance(found, NoPlan)
    lifted, more = found.remedies[:2]
    assert (lifted.change, lifted.note) == ("no --memory-limit", "slower: host memory is far")
    assert more.change.endswith("chips")
    roomy = plan(replace(asked, memory_limit=None))
    assert isinstance(roomy, Plan)
    assert roomy.host_memory > 0
    held = plan(replace(asked, pins=("offload=none",)))
    assert "no --memory-limit" not in [remedy.change for remedy in held.remedies]


def test_states_that_nothing_shards_are_said_to_be_so():
    found = plan(Question(model="llama-3-70b", cluster="h100-sxm:4", pins=("offload=none",)))
    assert isinstance(found, NoPlan)
    assert found.explanation == "nothing shards optimizer; pp and tp alone divide them"


@given(tasks())
@examples(30)
def test_memory_alone_is_the_memory_of_the_exact_price(task):
    rows = space_of(task)
    if len(rows):
        priced = prices(task, rows)
        assert (exact_memory(priced) == exact(priced).memory).all()


@given(tasks(most_chips=8))
@examples(30)
def test_bounds_that_mislead_do_not_hide_the_least(task):
    """Bounds as weak as can be: nothing may be left out because of where it stands in their order."""
    rows = space_of(task)
    if not len(rows):
        return
    expected = float(exact(prices(task, rows)).memory.min())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(miss, "memory_bound", lambda p: 0.0 * p.micro_batches)
        index = least_memory(task, rows)
    found = exact(prices(task, rows.take(index))).memory[0]
    assert found == pytest.approx(expected, rel=1e-9)


def test_remedies_simulate_no_schedule(monkeypatch):
    from tests.trainers.conftest import make_task

    task = make_task({"chips": 16, "model": {"layers": 8}})
    tight = replace(task, memory_limit=1e9)

    def no(*_args, **_kwargs):
        raise AssertionError

    monkeypatch.setattr(makespan, "simulate", no)
    monkeypatch.setattr(makespan, "compile_schedule", no)
    assert miss._least(tight, Pins()) > 1e9
