"""Objectives besides the fastest step, against brute force over all layouts and all numbers of chips."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.api import Plan, PlannerError, Question, explain, plan, price, read_plan
from planner.cost.step import exact
from planner.plan.layout import layout_of
from planner.plan.schema import NoPlan
from planner.plan.write import write_plan
from planner.question import understand
from planner.report.markdown import render_markdown
from planner.report.tables import plain
from planner.report.text import render
from planner.search.engine import fits, search
from planner.search.front import WORTH, front
from planner.search.pins import parse_pins
from planner.studies.again import reopen

DENSE = Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=64, seq_len=4096)
SMALL = Question(
    model="gpt3-6.7b", cluster="a100-sxm-40gb:24", global_batch=96, seq_len=2048,
    pins=("offload=none",), objective="fewest-chips",
)  # fmt: skip


@pytest.fixture(scope="module")
def pareto() -> Plan:
    found = plan(replace(DENSE, objective="pareto", top=1000))
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize(
    "question",
    [
        DENSE,
        replace(DENSE, cluster="a100-sxm-40gb:16", pins=("zero=1",)),
        Question(model="qwen3-30b-a3b", cluster="h100-sxm:16", global_batch=64, seq_len=4096),
    ],
    ids=lambda q: q.model + " " + q.cluster,
)
def test_the_front_beats_every_layout(question: Question) -> None:
    """Every layout that fits is beaten by a row that is no slower and needs hardly more; no row beats another."""
    known = understand(question)
    found = search(known.task, parse_pins(question.pins, known.task.trainer, known.task.model))
    rows = front(known.task, found, 1000, time.monotonic() + 60)
    assert rows.front == len(rows.step) > 5
    assert (np.diff(rows.step) >= 0).all()
    assert (rows.memory[1:] < rows.memory[:-1] * (1 - 0.5 * WORTH)).all()
    whole = found.bounded.priced(known.task, found.space.candidates, slice(None))
    every = exact(whole)
    fit = fits(known.task, every.memory, every.host)
    assert fit.sum() > 10 * rows.front
    for step, memory in zip(every.step[fit], every.memory[fit], strict=True):
        beaten = (rows.step <= step * (1 + 1e-9)) & (
            rows.memory * (1 - WORTH) <= memory * (1 + 1e-9)
        )
        assert beaten.any(), (step, memory)


def test_the_front_holds_what_host_memory_saves() -> None:
    """Every layout with something in host memory is looked at, also those that are slower than what fits without."""
    question = Question(
        model="llama-3-70b", cluster="h100-sxm:32", trainer="deepspeed", global_batch=256,
        seq_len=8192, objective="pareto", top=1000,
    )  # fmt: skip
    found, alone = plan(question), plan(replace(question, pins=("offload=none",)))
    assert isinstance(found, Plan)
    assert isinstance(alone, Plan)
    assert found.degrees == plan(replace(question, objective="step-time")).degrees
    rows = [(row.step, row.memory) for row in found.alternatives]
    assert rows == sorted(rows)
    assert all(before[1] > after[1] for before, after in pairwise(rows))
    moved = [row for row in found.alternatives if row.degrees.offload != "none"]
    least = min(row.memory for row in alone.alternatives)
    assert min(row.memory for row in moved) < 0.5 * least
    whole = plan(replace(question, pins=("offload=any",)))
    assert isinstance(whole, Plan)
    slower = [row.degrees for row in whole.alternatives if row.step > found.step]
    assert slower == [row.degrees for row in found.alternatives[1:]]


def test_pareto_keeps_the_fastest_plan_and_prices_its_rows_as_they_are(pareto: Plan) -> None:
    fastest = plan(DENSE)
    assert isinstance(fastest, Plan)
    assert pareto.degrees == fastest.degrees
    assert pareto.step == fastest.step
    assert pareto.alternatives[0].step == fastest.step
    assert len(pareto.alternatives) == pareto.proof.front
    for row in pareto.alternatives[1:8]:
        again = price(DENSE, layout_of(row.degrees))
        assert again.step == pytest.approx(row.step)
        assert again.memory == pytest.approx(row.memory)
        assert row.reason.endswith(row.reason.partition("less; ")[2])
        assert "less; " in row.reason


def test_rows_of_a_front_are_spread_over_its_memory(pareto: Plan) -> None:
    few = plan(replace(DENSE, objective="pareto", top=4))
    assert isinstance(few, Plan)
    assert few.proof.front == pareto.proof.front
    sizes = [row.memory for row in few.alternatives]
    assert (sizes[0], sizes[-1]) == (pareto.alternatives[0].memory, pareto.alternatives[-1].memory)
    levels = np.linspace(sizes[0], sizes[-1], 4)
    for level, size in zip(levels, sizes, strict=True):
        fastest = next(row for row in pareto.alternatives if row.memory <= level * (1 + 1e-9))
        assert size == fastest.memory


def test_pages_say_what_the_objective_came_to(pareto: Plan) -> None:
    told = f"pareto: {pareto.proof.front} layouts beaten by none in both step and memory"
    page = plain(render(pareto))
    assert f"Objective {told}" in page
    assert "What less memory costs" in page or "what it costs" in page
    assert "lost" not in page
    assert f"- Objective: {told}" in render_markdown(pareto)
    assert f"Objective {told}" not in plain(render(plan(DENSE)))


def test_a_front_is_kept_in_files_and_its_rows_are_explained(pareto: Plan, tmp_path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(write_plan(pareto))
    again = read_plan(path)
    assert again == pareto
    assert reopen(again).question.objective == "pareto"
    assert explain(again, "#2").step.after == pytest.approx(pareto.alternatives[1].step)
    assert explain(again, "objective").rows[0].value == pareto.objective


def test_time_that_runs_out_leaves_a_part_of_the_front() -> None:
    known = understand(DENSE)
    found = search(known.task, known.pins)
    rows = front(known.task, found, 5, time.monotonic() - 1)
    assert rows.stopped
    assert rows.front == len(rows.step) == 1
    assert rows.step[0] == found.step[0]


def _fitting(question: Question, most: int) -> Iterator[int]:
    for chips in range(1, most + 1):
        asked = replace(question, cluster=f"a100-sxm-40gb:{chips}", objective="step-time", top=1)
        found = plan(asked)
        if isinstance(found, Plan) and found.degrees.chips_used == chips:
            yield chips


def test_the_fewest_chips_by_brute_force() -> None:
    found = plan(SMALL)
    assert isinstance(found, Plan)
    chips = found.cluster.num_chips
    assert chips == next(_fitting(SMALL, 8)) > 1
    alone = plan(replace(SMALL, cluster=f"a100-sxm-40gb:{chips}", objective="step-time"))
    assert isinstance(alone, Plan)
    assert (found.step, found.degrees) == (alone.step, alone.degrees)
    assert found.objective == f"fewest-chips: {chips} of at most 24; nothing fits on {chips - 1}"
    assert reopen(found).question.cluster == f"a100-sxm-40gb:{chips}"
    assert plan(Question.again(found.asked)).step == found.step


def test_beyond_a_host_the_fewest_are_whole_hosts_and_the_batch_is_the_clusters() -> None:
    big = Question(model="llama-3-70b", cluster="h100-sxm:64", pins=("offload=none",), seq_len=4096)
    found = plan(replace(big, objective="fewest-chips"))
    assert isinstance(found, Plan)
    chips = found.cluster.num_chips
    assert chips > 8
    assert chips % 8 == 0
    before = plan(replace(big, cluster=f"h100-sxm:{chips - 8}", global_batch=1024))
    assert isinstance(before, NoPlan)
    assert found.recipe.global_batch == understand(big).task.recipe.global_batch == 1024
    assert any(each.text.startswith("global batch 1024") for each in found.assumptions)


def test_where_nothing_fits_the_whole_cluster_is_explained() -> None:
    found = plan(replace(SMALL, cluster="a100-sxm-40gb:2"))
    assert isinstance(found, NoPlan)
    assert found.cluster.num_chips == 2


def test_pools_refuse_other_objectives() -> None:
    for objective in ("fewest-chips", "pareto", "cost-per-token"):
        with pytest.raises(PlannerError, match=f"--objective {objective}"):
            plan(Question(model="gpt2", cluster="t4:4 + h100-sxm:4", objective=objective))
