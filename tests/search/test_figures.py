"""What a report draws, against the schedules, searches and prices that it stands for."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.api import Plan, Question, plan, price
from planner.cost.makespan import timed_program
from planner.cost.orders import NOTHING, Schedule
from planner.cost.prices import prices
from planner.cost.program import simulate
from planner.plan.figures import Figures, Landscape
from planner.plan.layout import layout_of
from planner.plan.removed import everything_removed
from planner.question import understand
from planner.report.html.page import render_html
from planner.search.breakdown import Breakdown, breakdown
from planner.search.engine import search
from planner.search.landscape import landscape
from planner.search.pins import from_layout
from planner.search.timeline import timeline
from planner.stated import usual_row

LAYOUTS: dict[str, dict[str, int | str]] = {
    "1f1b": {"tp": 4, "pp": 8, "mbs": 1},
    "interleaved": {"tp": 4, "pp": 4, "vpp": 5, "mbs": 1},
    "more stages": {"tp": 2, "pp": 8, "vpp": 5, "mbs": 1},
    "gpipe": {"tp": 4, "pp": 4, "mbs": 2, "schedule": "gpipe"},
    "single": {"tp": 8, "pp": 1, "mbs": 1},
    "zero bubble": {"pp": 4, "schedule": "zb-h1", "mbs": 1},
    "in a V": {"pp": 4, "vpp": 2, "schedule": "zbv", "mbs": 1},
}


def priced(name: str, batch: int) -> Breakdown:
    layout = LAYOUTS[name]
    torch = str(layout.get("schedule", "")).startswith("zb")
    question = Question(
        model="llama-3-70b", cluster="h100-sxm:64", global_batch=batch, trainer="torchtitan" if torch else "megatron",
    )  # fmt: skip
    task = understand(question).task
    return breakdown(prices(task, usual_row(task, from_layout(layout, task.trainer))), 0)


def whole_schedule(b: Breakdown) -> dict[tuple[int, str, int, int], float]:
    """When every operation starts, by stage, kind, chunk and micro-batch."""
    times, send = b.times, b.prices.sends.boundaries(b.times.forward.shape[1])
    program = timed_program(
        Schedule(int(b.prices.rows.schedule[0])), int(b.prices.micro_batches[0]), times.forward[0], times.backward[0],
        float(send.max()), times.weight[0],
    )  # fmt: skip
    starts = simulate(program, times.forward, times.backward, send, times.weight).starts[0]
    orders = program.orders
    return {
        (stage, "FBIW"[kind], chunk, micro): start
        for stage in range(len(starts))
        for kind, chunk, micro, start in zip(
            orders.kind[stage].tolist(), orders.chunk[stage].tolist(), orders.microbatch[stage].tolist(),
            starts[stage].tolist(), strict=True,
        )
        if kind != NOTHING
    }  # fmt: skip


@pytest.mark.parametrize("batch", [32, 512])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_drawn_operation_runs_when_the_whole_schedule_says(name: str, batch: int) -> None:
    """Before the cut at once, behind it later by what was cut out, with its own micro-batch's number."""
    b = priced(name, batch)
    drawn, truth = timeline(b), whole_schedule(b)
    m = int(b.prices.micro_batches[0])
    seen = set()
    for row in drawn.rows:
        columns = zip(row.kinds, row.chunk, row.micro_batch, row.start, strict=True)
        for kind, chunk, micro, start in columns:
            later = drawn.left_out_seconds if drawn.left_out and start >= drawn.left_out_at else 0.0
            expected = truth[row.stage, kind, chunk, micro]
            assert start + later == pytest.approx(expected, abs=2e-6 * drawn.drawn)
            seen.add((row.stage, kind, chunk, micro))
    assert len(seen) == sum(len(row.kinds) for row in drawn.rows)
    assert len(seen) * m == len(truth) * (m - drawn.left_out)
    assert drawn.makespan == pytest.approx(drawn.drawn + drawn.left_out_seconds)


def test_long_schedules_are_cut() -> None:
    for name in LAYOUTS.keys() - {"gpipe"}:
        assert timeline(priced(name, 8192)).left_out > 0


@cache
def found(cluster: str = "h100-sxm:64") -> tuple[Question, Plan, Figures]:
    question = Question(model="llama-3-8b", cluster=cluster, global_batch=256, figures=True)
    answer = plan(question)
    assert isinstance(answer, Plan)
    assert answer.figures is not None
    return question, answer, answer.figures


def test_a_plan_without_a_report_carries_none() -> None:
    question, answer, _ = found()
    assert plan(replace(question, figures=False)) == answer.model_copy(update={"figures": None})


def test_the_front_is_what_nothing_beats() -> None:
    _, answer, figures = found()
    space = figures.landscape
    assert isinstance(space, Landscape)
    points = list(zip(space.step, space.memory, strict=True))
    assert len(points) > 30
    assert list(space.step) == sorted(space.step)
    free = [
        i
        for i, (step, size) in enumerate(points)
        if not any(s <= step and m <= size and (s, m) != (step, size) for s, m in points)
    ]
    assert sorted(space.front) == free
    fitting = [step for step, fits in zip(space.step, space.fits, strict=True) if fits]
    assert min(fitting) == pytest.approx(answer.step, rel=1e-9)
    shown = set(space.step)
    assert all(
        any(math.isclose(row.step, s, rel_tol=1e-9) for s in shown) for row in answer.alternatives
    )


def test_a_small_space_is_drawn_whole() -> None:
    question = Question(
        model="llama-3-8b",
        cluster="h100-sxm:64",
        global_batch=256,
        pins=("tp=8", "pp=1", "cp=1", "sharding=ZeRO-1"),
    )
    known = understand(question)
    outcome = search(known.task, known.pins)
    space = landscape(known.task, outcome)
    assert space is not None
    assert space.near <= space.allowed == len(outcome.space.candidates)
    assert max(space.step) <= space.most_step
    assert max(space.memory) <= space.most_memory


def test_sensitivities_are_prices_of_other_clusters() -> None:
    question, answer, figures = found()
    known = understand(question)
    by_name = {s.name: s for s in figures.sensitivities}
    assert {
        "chip.peak",
        "chip.bandwidth",
        "chip.memory",
        "node.bandwidth",
        "network.latency",
    } <= by_name.keys()
    assert {
        "chip.matmul_efficiency",
        "chip.attention_efficiency",
        "node.efficiency",
    } <= by_name.keys()
    assert by_name["node.efficiency"].low == pytest.approx(by_name["node.bandwidth"].low)
    assert not any(name.startswith("host.") for name in by_name)
    slow = ("latency", "launch", "ramp")
    others = [s for s in figures.sensitivities if s.name != "global-batch"]
    assert len(others) == len(figures.sensitivities) - 1
    for s in others:
        assert s.low is not None
        assert s.high is not None
        better, worse = (s.low, s.high) if s.name.endswith(slow) else (s.high, s.low)
        assert better <= answer.step * (1 + 1e-9) <= worse * (1 + 2e-9)
    chip = known.task.cluster.chip
    slower = replace(chip, peak={name: 0.8 * peak for name, peak in chip.peak.items()})
    task = replace(known.task, cluster=replace(known.task.cluster, chip=slower))
    layout = {key: getattr(answer.degrees, key) for key in ("dp", "tp", "pp", "cp", "vpp")}
    row = usual_row(
        task,
        from_layout(
            layout | {"mbs": answer.degrees.micro_batch, "recompute": answer.degrees.recompute},
            task.trainer,
        ),
    )
    assert by_name["chip.peak"].low == pytest.approx(breakdown(prices(task, row), 0).step)


def test_another_batch_counts_by_its_tokens() -> None:
    """Prices of the same layout under batches that its rules allow."""
    question, answer, figures = found()
    [s] = [s for s in figures.sensitivities if s.name == "global-batch"]
    low, high = (int(n) for n in re.findall(r"\d+", s.label.replace(",", "")))
    batch = answer.recipe.global_batch
    for other, step in ((low, s.low), (high, s.high)):
        assert 0.15 < abs(other / batch - 1) <= 0.25
        one = price(replace(question, global_batch=other, figures=False), layout_of(answer.degrees))
        assert step == pytest.approx(one.step * batch / other)


def test_sensitivities_are_those_of_the_stages_that_the_plan_has() -> None:
    question = Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=64, figures=True)
    answer = price(question, {"pp": 2, "stage-layers": "20+12"})
    assert answer.figures is not None
    for s in answer.figures.sensitivities:
        assert min(s.low, s.high) <= answer.step * (1 + 1e-9) <= max(s.low, s.high) * (1 + 2e-9)


def test_the_host_s_numbers_count_where_states_stay_there() -> None:
    """Two Xeons of 2017 have less than a thread for every chip could take."""
    facts = {"cluster": "v100-sxm-32gb:64", "seq_len": 2048}
    question = Question(model="llama-3-8b", **facts, global_batch=256, figures=True)
    answer = price(question, {"tp": 2, "pp": 2, "offload": "optimizer"})
    assert answer.figures is not None
    by_name = {s.name: s for s in answer.figures.sensitivities}
    slow, fast = by_name["host.memory_bandwidth"].low, by_name["host.memory_bandwidth"].high
    assert slow > answer.step > fast


def test_a_stated_layout_has_figures_but_no_landscape() -> None:
    question = Question(model="llama-3-8b", cluster="h100-sxm:64", global_batch=256, figures=True)
    answer = price(question, {"tp": 2, "pp": 2})
    assert answer.figures is not None
    assert answer.figures.landscape is None
    assert {s.searched for s in answer.figures.sensitivities} == {False}
    assert answer.figures.roofline == pytest.approx(answer.mfu * answer.step)


def test_axes_cover_the_chips_and_traffic_sums_the_blocks() -> None:
    answer = plan(
        Question(model="mixtral-8x7b", cluster="h100-sxm:64", global_batch=256, figures=True)
    )
    assert isinstance(answer, Plan)
    assert answer.figures is not None
    axes = {place.axis: place for place in answer.figures.axes}
    for place in axes.values():
        assert math.prod(place.members) == place.size
    mesh = [axes[axis] for axis in answer.degrees.order]
    assert [place.stride for place in mesh] == [
        1,
        *np.cumprod([p.size for p in mesh[:-1]]).tolist(),
    ]
    for axis in {t.axis for t in answer.figures.traffic if t.each == "micro-batch"}:
        whole = sum(
            t.bytes for t in answer.figures.traffic if t.axis == axis and t.each == "micro-batch"
        )
        blocks = sum(
            block.count * c.bytes
            for block in answer.blocks
            for op in block.operators
            for c in op.collectives
            if c.axis == axis and c.seconds
        )
        assert whole == pytest.approx(blocks)
    assert answer.figures.sources


def test_rules_cost_what_a_search_without_them_finds() -> None:
    question, answer, figures = found()
    costs = {cost.rule: cost for cost in figures.rules}
    removed = {rule.rule: rule.count for rule in everything_removed(answer)}
    assert costs.keys() <= removed.keys()
    assert max(removed, key=lambda rule: removed[rule]) in costs
    assert all(cost.alone <= removed[cost.rule] for cost in figures.rules)
    free = replace(question, memory_limit=None)
    known = understand(free)
    task = replace(known.task, memory_limit=1e18)
    outcome = search(task, known.pins, top=1)
    assert costs["memory"].best == pytest.approx(float(outcome.step[0]))


def test_a_schedule_in_a_v_is_drawn_and_its_rules_are_priced() -> None:
    """Without the rule that gives it two chunks there would be schedules that do not exist."""
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:16", trainer="torchtitan", global_batch=64,
        pins=("schedule=zbv", "pp=4"), figures=True,
    )  # fmt: skip
    answer = plan(question)
    assert isinstance(answer, Plan)
    assert answer.figures is not None
    for row in answer.figures.timeline.rows:
        assert set(row.kinds) <= set("FBIW")
        assert row.kinds.count("I") == row.kinds.count("W") > 0
        assert set(row.chunk) == {0, 1}
    assert "virtual-schedule" in {cost.rule for cost in answer.figures.rules}
    assert "backward, weights" in render_html(answer)
