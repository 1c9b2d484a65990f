"""What no division of a layout beats: against brute force over cuts and recompute, and whole plans."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from planner.candidates import RECOMPUTE, SCHEDULES, single
from planner.cost.cut import FULL, SELECTIVE, uniform
from planner.cost.prices import any_step_bound, prices, step_bound, with_cut
from planner.cost.step import exact
from planner.planning import plan
from planner.question import Question, understand
from planner.search.engine import search
from planner.search.stages import winners
from planner.search.stages.refine import refine
from planner.search.stages.rivals import least_steps
from planner.search.stages.winners import best_cuts
from tests.search.test_chunks import compositions
from tests.search.test_refine import brute_force, layout

BOTH = (SELECTIVE, FULL)


@pytest.mark.parametrize("mixing", ["count", "stages"])
@pytest.mark.parametrize("share", [1.0, 0.93, 0.86, 0.8])
def test_no_cut_and_no_recompute_beats_the_bound(mixing, share):
    p = layout(pp=2, dp=2, tp=2, sp=1, micro_batch=2)
    limit = share * float(exact(p).memory[0])
    best = brute_force(p, mixing, limit)
    bound = least_steps(p, limit, 1e3, BOTH if mixing == "stages" else (FULL,))
    assert bound[0] <= min(best, 1e3) * (1 + 1e-9)
    assert bound[0] >= any_step_bound(p)[0] * (1 - 1e-9)


@pytest.mark.parametrize("vocab", [32_000, 512_000])
@pytest.mark.parametrize(
    "degrees",
    [
        {"pp": 2, "dp": 4},
        {"pp": 4, "tp": 2, "sp": 1},
        {"pp": 2, "dp": 4, "vpp": 2, "schedule": SCHEDULES.index("interleaved")},
        {"pp": 4, "dp": 2, "schedule": SCHEDULES.index("gpipe")},
        {"pp": 4, "dp": 2, "schedule": SCHEDULES.index("zb-h1")},
    ],
)
def test_no_cut_beats_the_bound_of_a_layout_that_keeps_its_mode(degrees, vocab):
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:8", trainer="megatron", global_batch=16, seq_len=4096,
        overrides={"layers": "9", "vocab": str(vocab)},
    )  # fmt: skip
    for mode in range(len(RECOMPUTE)):
        p = prices(understand(question).task, single(recompute=mode, **degrees))
        chunks = degrees["pp"] * degrees.get("vpp", 1)
        steps = [
            float(exact(with_cut(p, uniform(cut, mode))).step[0]) for cut in compositions(9, chunks)
        ]
        bound = float(least_steps(p, math.inf, 1e3, ())[0])
        assert bound <= min(steps) * (1 + 1e-9)
        assert bound >= 0.7 * min(steps)


def test_bounds_beyond_the_best_are_not_told_apart():
    p = layout(pp=4, tp=2, sp=1)
    assert least_steps(p, math.inf, 1e-3, BOTH) == pytest.approx(1e-3)
    assert least_steps(p, 1e6, 50.0, BOTH) == pytest.approx(50.0)


def test_the_even_bound_knows_more_than_that_of_any_stages():
    p = layout(layers=30, pp=4, tp=2, sp=1)
    assert any_step_bound(p)[0] <= step_bound(p)[0]


def test_what_is_left_open_covers_every_layout_that_could_be_divided():
    """All layouts that fit, refined one by one: none beats the plan by more than it says."""
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:8", trainer="mindspore", global_batch=24, seq_len=4096,
        overrides={"layers": "13"}, memory_limit="40", pins=("mbs<=2", "cp=1"),
    )  # fmt: skip
    known = understand(question)
    even = search(known.task, known.pins)
    found = best_cuts(even, known.pins, math.inf)
    limit = float(found.step[0]) * (1.0 - found.cut_gap)
    candidates = even.space.candidates
    tried = 0
    begin = time.monotonic()
    for index in np.flatnonzero(even.bounded.fits & (candidates.recompute == 0)).tolist():
        row = even.bounded.priced(even.best.task, candidates, np.array([index]))
        better = refine(row, "stages", known.task.memory_limit)
        tried += 1
        if better is not None:
            assert better.step >= limit * (1 - 1e-9)
        if time.monotonic() - begin > 60:
            break
    assert tried >= 20


def test_a_plan_says_what_other_stages_could_gain():
    question = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64, seq_len=4096)
    found = plan(replace(question, trainer="fsdp"))
    assert found.proof.optimal
    assert found.proof.cut_gap == 0.0
    piped = plan(replace(question, pins=("pp=4",)))
    assert 0.0 <= piped.proof.cut_gap < 0.1


def test_layouts_whose_schedules_would_take_too_long_stay_even_and_in_the_bound(monkeypatch):
    question = Question(
        model="llama-3-70b", cluster="h100-sxm:64", global_batch=256, seq_len=4096,
        overrides={"layers": "94"},
    )  # fmt: skip
    known = understand(question)
    even = search(known.task, known.pins)
    divided: list[int] = []

    def counted(row, *rest):
        m = row.rows.num_micro_batches(256)
        divided.append(int((row.rows.pp * row.rows.vpp * m)[0]))
        return refine(row, *rest)

    monkeypatch.setattr(winners, "refine", counted)
    whole = best_cuts(even, known.pins, math.inf)
    assert len(divided) > 2
    most = sum(divided) // 2
    divided.clear()
    monkeypatch.setattr(winners, "PASSES", most)
    part = best_cuts(even, known.pins, math.inf)
    assert len(divided) >= 1
    assert len(divided) == 1 or sum(divided) <= most
    assert whole.step[0] <= part.step[0] * (1 + 1e-9)
    assert part.step[0] * (1 - part.cut_gap) <= whole.step[0] * (1 + 1e-9)


MIXTURE = Question(model="qwen3-235b-a22b", cluster="h100-sxm:256", global_batch=1024, seq_len=4096)
SLOW = Question(
    model="gemma-2-9b", cluster="t4:4x8", global_batch=60, seq_len=512, optimizer="adamw-bf16"
)


@pytest.mark.parametrize(
    ("question", "pin"),
    [(MIXTURE, "recompute=none"), (MIXTURE, "vpp=1"), (MIXTURE, "tp=4"), (SLOW, "vpp=1")],
)
def test_a_pin_finds_no_stages_that_the_free_search_passes_over(question, pin):
    """What layouts reach that recompute nothing, or divide otherwise, is looked at with and without pins."""
    free, pinned = plan(question), plan(replace(question, pins=(pin,)))
    assert free.step <= pinned.step * (1 + 1e-9)


@pytest.mark.parametrize("what_if", [(), ("node.bandwidth=0.1x",)])
def test_how_many_rows_are_shown_changes_no_row(what_if):
    question = Question(model="llama-3-8b", cluster="h100-sxm:16", what_if=what_if)
    found = [plan(replace(question, top=top)) for top in (1, 3, 5, 12)]
    assert len({each.step for each in found}) == 1
    assert len({each.degrees.model_dump_json() for each in found}) == 1
