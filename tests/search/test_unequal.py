"""Virtual stages of unequal numbers of layers: none that a trainer could run is faster than the answer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.api import Question, plan, price
from planner.candidates import SPLIT
from planner.cost.memory import any_chunks_memory
from planner.cost.prices import any_step_bound, prices
from planner.cost.step import exact
from planner.plan.layout import layout_of
from planner.search import unequal
from planner.search.bounded import fits
from planner.search.pins import ANY_CHUNKS, Pins, parse_pins
from planner.search.space import build_space
from planner.search.stages.winners import WORTH, searched
from planner.trainers.registry import TRAINERS
from tests.search.problems import as_tuples, best_layouts, examples, space_of, tasks

PIPED = [trainer for trainer in TRAINERS if "interleaved" in trainer.schedules]
SLACK = 1 + 1e-8


@st.composite
def piped_tasks(draw):
    """Tasks of a few layers on trainers that interleave, with a limit that about this share of all layouts keeps."""
    task = draw(tasks(most_chips=8, most_layers=9))
    task = replace(task, trainer=draw(st.sampled_from(PIPED)), uneven_chunks=True)
    rows = space_of(task)
    assume((rows.vpp > 1).any())
    limit = np.quantile(exact(prices(task, rows)).memory, draw(st.floats(0.1, 1)))
    return replace(task, memory_limit=float(limit) * (1 + 1e-9)), rows


@given(piped_tasks(), st.sampled_from([1, 3, 8]))
@examples(25)
def test_no_layout_of_any_chunks_is_faster_than_the_answer(drawn, shown):
    task, rows = drawn
    priced = exact(prices(task, rows))
    fit = fits(task, priced.memory, priced.host)
    rows, step = rows.take(fit), priced.step[fit]
    free = replace(task, uneven_chunks=False)
    _, found = searched(free, Pins(), shown, math.inf)
    wanted = best_layouts(rows, step, shown)
    assert len(found.step) >= len(wanted)
    assert (found.step[: len(wanted)] <= step[wanted] * SLACK).all()


def test_layouts_of_unequal_chunks_are_among_the_answers():
    """Else the test above would say nothing."""
    asked = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64, seq_len=2048)
    asked = replace(asked, overrides={"layers": "29"}, pins=("pp=4", "tp=4"))
    found = plan(asked)
    assert found.degrees.vpp > 1
    assert 29 % found.degrees.vpp
    for row in found.alternatives:
        assert price(asked, layout_of(row.degrees)).step == pytest.approx(row.step, rel=1e-9)


@given(piped_tasks())
@examples(25)
def test_what_is_known_of_any_number_of_chunks_holds_for_each(drawn):
    task, rows = drawn
    rows = rows.take(rows.vpp > 1)
    priced = prices(task, rows)
    cost = exact(priced)
    assert (any_chunks_memory(priced) <= cost.memory * SLACK).all()
    schedule = np.where(np.isin(rows.schedule, SPLIT), rows.schedule, unequal.ANY_ORDER)
    assert (
        any_step_bound(priced.stated(replace(rows, schedule=schedule))) <= cost.step * SLACK
    ).all()


@given(piped_tasks())
@examples(12)
def test_layouts_are_added_once_each_and_counted(drawn):
    """With endless time to beat, all that the trainer could run is there."""
    task, rows = drawn
    free = replace(task, uneven_chunks=False)
    even, _ = searched(free, Pins(), 5, math.inf)
    whole = unequal.widened(free, Pins(), even, math.inf, 0.0, 5, math.inf).space
    named = as_tuples(whole.candidates)
    assert len(set(named)) == len(named)
    assert set(named) <= set(as_tuples(rows)) | set(as_tuples(even.space.candidates))
    assert whole.searched - len(named) == sum(whole.removed.values())
    assert build_space(free, Pins((ANY_CHUNKS,))).candidates.vpp.max() == rows.vpp.max()


PINS = (
    "vpp=1",
    "vpp=2",
    "vpp=3",
    "vpp=4",
    "vpp<=2",
    "vpp>=3",
    "schedule=interleaved",
    "pp=2",
    "tp=2",
    "tp=1,vpp=3",
)


@given(piped_tasks(), st.sampled_from(PINS))
@examples(25)
def test_a_pin_beats_the_plan_by_no_more_than_it_says(drawn, text):
    task, _ = drawn
    task = replace(task, uneven_chunks=False)
    _, free = searched(task, Pins(), 1, math.inf)
    _, pinned = searched(task, parse_pins([text], task.trainer), 1, math.inf)
    if len(pinned.step):
        assert pinned.step[0] >= free.step[0] * (1 - free.cut_gap) / SLACK


@pytest.mark.parametrize(
    ("question", "pins"),
    [
        (
            Question(model="llama-3.1-405b", cluster="h100-sxm:1024"),
            ("vpp=5", "vpp=10", "vpp<=4", "tp=8"),
        ),
        (
            Question(model="qwen3-235b-a22b", cluster="ascend-910b4:256", trainer="mindspore"),
            ("vpp=3", "vpp<=4", "tp=4"),
        ),
        (Question(model="llama-3-8b", cluster="h100-sxm:8"), ("vpp=4", "vpp=5", "pp=2")),
        (
            Question(model="llama-3-8b", cluster="h100-sxm:24", trainer="torchtitan"),
            ("vpp=3", "vpp=5", "pp=3"),
        ),
        (
            Question(model="llama-3-8b", cluster="ascend-910b:24", trainer="mindspeed"),
            ("vpp=3", "vpp=9", "pp=3"),
        ),
    ],
    ids=lambda value: getattr(value, "model", ""),
)
def test_a_pin_never_makes_a_plan_faster(question, pins):
    free = plan(question)
    for pin in pins:
        pinned = plan(replace(question, pins=(pin,)))
        assert pinned.step >= free.step / SLACK
        assert pinned.pin_prices[0].without == pytest.approx(free.step, rel=WORTH)
