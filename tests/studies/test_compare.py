"""Clusters compared: rows are the plans themselves, orders turn where they are said to turn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.api import Plan, PlannerError, Question, compare, plan
from planner.report.compare import render_comparison
from planner.report.numbers import dollars
from planner.report.tables import plain
from planner.studies.best import best_question
from planner.studies.compare import Point, bound_by, compared
from planner.studies.neighbours import neighbours
from planner.studies.parallel import answers
from planner.studies.ranges import counts, expanded

QUESTION = Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=64, seq_len=2048)


def found(**changes: object) -> Plan:
    answer = plan(replace(QUESTION, **changes))
    assert isinstance(answer, Plan)
    return answer


def test_rows_of_a_trainer_say_where_it_needs_a_port_and_where_it_cannot_run() -> None:
    clusters = ["h100-sxm:8", "910b:8"]
    ported, refused = (
        compare(QUESTION, clusters=clusters),
        compare(replace(QUESTION, trainer="mindspeed"), clusters=clusters),
    )
    assert [row.fits for row in ported.rows] == [True, True]
    assert not ported.rows[0].note
    assert "--trainer mindspeed" in ported.rows[1].note
    assert [row.fits for row in refused.rows] == [False, True]
    assert "does not run on h100-sxm" in refused.rows[0].note


def test_rows_are_the_plans() -> None:
    rows = compare(
        QUESTION, clusters=["h100-sxm:8"], chips=[8, 16], what_if=["node.bandwidth=0.1x"]
    ).rows
    assert [(row.cluster, row.chips, row.what_if) for row in rows] == [
        (f"h100-sxm:{chips}", chips, what_if)
        for chips in (8, 16)
        for what_if in ("", "node.bandwidth=0.1x")
    ]
    for row in rows:
        what_if = (row.what_if,) if row.what_if else ()
        alone = found(cluster=row.cluster, what_if=what_if)
        assert row.step == alone.step
        assert row.degrees == alone.degrees
        assert row.price_per_million_tokens == alone.price_per_million_tokens
        assert row.bound_by == bound_by(alone)
    for base, slow in zip(rows[::2], rows[1::2], strict=True):
        assert slow.step >= base.step


def test_energy_is_power_over_rate() -> None:
    row = compare(QUESTION, clusters=["h100-sxm:8"]).rows[0]
    assert row.energy_per_million_tokens == pytest.approx(
        8 * 700 / 1000 * row.step / 3600 / (64 * 2048 / 1e6)
    )


def test_the_price_that_ties_makes_tokens_cost_the_same() -> None:
    clusters = ["h100-sxm:8", "a100-sxm-80gb:8"]
    comparison = compare(QUESTION, clusters=clusters)
    [turn] = comparison.crossovers
    dear, cheap = turn.below, turn.above
    assert {dear, cheap} == set(clusters)
    price = float(turn.value.removeprefix("$"))
    tied = compare(QUESTION, clusters=clusters, dollars={dear.partition(":")[0]: price})
    costs = [row.price_per_million_tokens for row in tied.rows]
    assert costs[0] == pytest.approx(costs[1], rel=0.01)


def test_an_order_that_turns_along_a_range_turns_there() -> None:
    """Little memory bandwidth makes the many cheap chips win; judged at both sides of the value found."""
    clusters, text = ["h100-sxm:8", "a100-sxm-80gb:16"], "node.bandwidth=5 GB/s..450 GB/s/3"
    comparison = compare(QUESTION, clusters=clusters, what_if=[text])
    turns = [
        turn
        for turn in comparison.crossovers
        if turn.number == "node.bandwidth" and turn.by == "rate"
    ]
    ends = [row.tokens_per_second for row in comparison.rows if row.what_if]
    first, last = ends[0] > ends[3], ends[2] > ends[5]
    assert (len(turns) % 2 == 1) == (first != last)
    for turn in turns:
        value, unit = turn.value.split(" ", 1)
        for factor, best in ((0.95, turn.below), (1.05, turn.above)):
            what_if = (f"node.bandwidth={float(value) * factor} {unit}",)
            rates = {c: found(cluster=c, what_if=what_if).tokens_per_second for c in clusters}
            assert max(rates, key=rates.__getitem__) == best


HAIR = 1.006
"""Half of what bisection leaves open, and a little."""


@pytest.mark.parametrize(
    ("clusters", "what_if", "turns"),
    [
        (("h100-pcie:16", "a100-sxm-80gb:16"), "node.bandwidth=0.05x..8x/3", 1),
        (("h100-sxm:8", "a100-sxm-80gb:24"), "network.bandwidth=0.02x..4x/2", 1),
        (("h100-sxm:8", "h100-sxm:16"), "network.bandwidth=0.001x..1x/2", 1),
    ],
)  # fmt: skip
def test_a_hair_below_and_above_a_turning_point_other_clusters_win(
    clusters: tuple[str, str], what_if: str, turns: int
) -> None:
    """Of rates and of prices; each end asked as a plan of its own."""
    question = replace(
        QUESTION, model="gpt3-6.7b", global_batch=48, overrides={"layers": "8"}, pins=("pp=1",)
    )
    found = compare(question, clusters=clusters, what_if=[what_if], jobs=1)
    along = [turn for turn in found.crossovers if turn.number == what_if.partition("=")[0]]
    rates = [turn for turn in along if turn.by == "rate"]
    assert len(rates) == turns
    for turn in along:
        value = float(turn.value.rstrip("x"))
        for factor, best in ((1 / HAIR, turn.below), (HAIR, turn.above)):
            text = f"{turn.number}={value * factor:.8f}x"
            merits = {
                name: _merit(replace(question, cluster=name), text, turn.by) for name in clusters
            }
            assert max(merits, key=merits.__getitem__) == best, (turn, merits)


def _merit(question: Question, what_if: str, by: str) -> float:
    """Tokens a second, or for a dollar."""
    reaches = question.cluster != "h100-sxm:8" or not what_if.startswith("network")
    answer = plan(replace(question, what_if=(what_if,) if reaches else ()))
    assert isinstance(answer, Plan)
    if by == "rate":
        return answer.tokens_per_second
    assert answer.price_per_million_tokens is not None
    return 1 / answer.price_per_million_tokens


def test_a_network_that_few_chips_do_not_reach_changes_nothing() -> None:
    rows = compare(
        QUESTION, clusters=["h100-sxm:8", "h100-sxm:16"], what_if=["network.bandwidth=0.1x"]
    ).rows
    assert rows[1].fits
    assert rows[1].what_if == "network.bandwidth=0.1x"
    assert rows[1].step == rows[0].step
    assert rows[3].step > rows[2].step
    with pytest.raises(PlannerError, match=r"no number .network\.bandwidth"):
        plan(replace(QUESTION, what_if=("network.bandwidth=0.1x",)))


def test_bisection_finds_a_known_crossing() -> None:
    from planner.plan.findings import Compared
    from planner.studies.crossover import crossovers

    what_if = expanded("chip.peak=1x..16x/3")
    questions = [replace(QUESTION, cluster=name) for name in ("a:1", "b:1")]

    def ask(point: Point, text: str) -> Compared:
        peak = float(text.partition("=")[2].rstrip("x"))
        rate = peak if point.question.cluster == "a:1" else 5.0
        return Compared(cluster=point.question.cluster, chips=1, trainer="t", what_if=text, fits=True,
                        tokens_per_second=rate, asked=point.question.asked())  # fmt: skip

    points = [Point(question=q, chips=1, label=text) for q in questions for text in what_if.texts]
    rows = [ask(point, point.label) for point in points]
    [turn] = crossovers(points, rows, [what_if], ask)
    assert float(turn.value.rstrip("x")) == pytest.approx(5.0, rel=0.01)
    assert (turn.below, turn.above) == ("b:1", "a:1")


def test_what_is_wrong_with_one_row_stands_in_it() -> None:
    comparison = compare(
        replace(QUESTION, precision="fp8"), clusters=["a100-sxm-80gb:8", "h100-sxm:8"]
    )
    bad, good = comparison.rows
    assert not bad.fits
    assert "fp8" in bad.note
    assert good.fits
    assert comparison.fastest == 1
    with pytest.raises(PlannerError, match="fp8"):
        compare(replace(QUESTION, precision="fp8"), clusters=["a100-sxm-80gb:8", "a100-sxm-40gb:8"])


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"clusters": ["h100-sxm:8", "nonsense:8"]}, "C01"),
        ({"trainers": ["megatron", "megatorn"]}, "T02"),
        ({"what_if": ["foo=2x"]}, "C05"),
        ({"chips": [8, 99_999_999]}, "C02"),
    ],
)
def test_slips_are_told_before_the_work(asked: dict[str, list[str]], code: str) -> None:
    with pytest.raises(PlannerError) as caught:
        compare(QUESTION, **asked)
    assert {fault.code for fault in caught.value.faults} == {code}


def test_a_what_if_that_one_cluster_lacks_stands_in_its_row() -> None:
    rows = compare(
        QUESTION, clusters=["h100-sxm:8", "b200-nvl72:8"], what_if=["rack.bandwidth=0.5x"]
    ).rows
    assert [row.fits for row in rows] == [True, False, True, True]
    assert "has no number 'rack.bandwidth'" in rows[1].note


def test_what_does_not_fit_says_what_it_needs() -> None:
    large = replace(QUESTION, model="llama-3-70b", cluster="h100-sxm:1")
    row = compared(Point(question=large, chips=1))
    assert not row.fits
    assert row.step is None
    assert "needs" in row.note
    assert row.memory > row.memory_limit


def test_the_fastest_row_can_be_asked_for_again() -> None:
    found = compare(QUESTION, what_if=["chip.peak=2x"], dollars={"h100-sxm": 2.0})
    again = best_question(found, QUESTION)
    assert again is not None
    assert again.figures
    answer = plan(replace(again, figures=False))
    best = found.rows[found.fastest]
    assert best.what_if == "chip.peak=2x"
    assert (answer.step, answer.price_per_million_tokens) == (
        best.step,
        best.price_per_million_tokens,
    )
    assert again.what_if == ("chip.price=2", "chip.peak=2x")
    assert best_question(found.model_copy(update={"fastest": None}), QUESTION) is None


def test_half_and_twice_the_chips_stand_beside_a_plan() -> None:
    answer = found(global_batch=None)
    beside = neighbours(replace(QUESTION, global_batch=None), answer)
    asked = [f"h100-sxm:{chips}" for chips in (4, 8, 16)]
    assert [row.cluster for row in beside.rows] == asked
    assert beside.rows[1].step == answer.step
    batch = answer.recipe.global_batch
    alone = compare(replace(QUESTION, global_batch=batch), clusters=asked)
    assert beside == alone.model_copy(update={"crossovers": beside.crossovers})
    one = found(cluster="h100-sxm:1", model="llama-3.2-1b")
    rows = neighbours(replace(QUESTION, cluster="h100-sxm:1", model="llama-3.2-1b"), one).rows
    assert [row.chips for row in rows] == [1, 2]


def test_sensitivity_goes_the_right_way() -> None:
    found = compare(QUESTION, sensitivity=True)
    [row] = found.rows
    price = row.price_per_million_tokens
    page = " ".join(plain(render_comparison(found, 100)).split())
    assert (
        f"(chip.price) 20 % lower or higher: {dollars(0.8 * price)} or {dollars(1.2 * price)}"
        in page
    )
    by_name = {s.name: s for s in row.sensitivities}
    assert by_name["chip.peak"].low > row.step > by_name["chip.peak"].high
    assert by_name["node.bandwidth"].low >= row.step >= by_name["node.bandwidth"].high


def test_processes_change_nothing() -> None:
    pytest.importorskip("joblib")
    assert answers(square, range(5), jobs=2) == [0, 1, 4, 9, 16]
    seen: list[tuple[int, int]] = []
    assert answers(square, [3, 4], jobs=1, done=lambda *state: seen.append(state)) == [9, 16]
    assert seen == [(1, 2), (2, 2)]


def test_ctrl_c_keeps_the_rows_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search turns Ctrl-C into its best so far; the comparison ends there, the row before it stays."""
    from planner.studies import compare as module

    first = plan(QUESTION)
    assert isinstance(first, Plan)
    halted = first.model_copy(update={"proof": first.proof.model_copy(update={"stopped": True})})
    told = iter([first, halted])
    monkeypatch.setattr(module, "plan", lambda *_, **__: next(told))
    found = compare(QUESTION, chips=[8, 16, 32])
    assert [row.step for row in found.rows] == [first.step]
    assert found.left_out == 2
    monkeypatch.setattr(module, "plan", lambda *_, **__: halted)
    with pytest.raises(KeyboardInterrupt):
        compare(QUESTION, chips=[8, 16])


def square(number: int) -> int:
    return number * number


def test_a_dask_scheduler_does_the_work() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        assert answers(square, [2, 3], backend=f"dask={cluster.scheduler_address}") == [4, 9]


@pytest.mark.filterwarnings("ignore")
def test_ray_s_workers_do_the_work() -> None:
    ray = pytest.importorskip("ray")
    assert answers(math.factorial, [2, 3], backend="ray", jobs=1) == [2, 6]
    assert not ray.is_initialized()


def test_a_scheduler_that_is_nowhere_is_wrong_input() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(PlannerError, match="no scheduler answers there"):
        answers(square, [1], backend="dask=carrier-pigeon://loft:1")


def test_an_unknown_backend_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlannerError, match="Nearest: ray"):
        answers(square, [1], backend="rray")
    monkeypatch.setitem(__import__("sys").modules, "joblib", None)
    with pytest.raises(PlannerError, match="shardwright\\[parallel\\]"):
        answers(square, [1], jobs=2)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("a.b=0.5x", ("a.b=0.5x",)),
        ("a.b=0.5x,2x", ("a.b=0.5x", "a.b=2x")),
        ("a.b=1x..100x/3", ("a.b=1x", "a.b=10x", "a.b=100x")),
        ("a.b=100..400 Gb/s/3", ("a.b=100 Gb/s", "a.b=200 Gb/s", "a.b=400 Gb/s")),
        ("a.b=50 GB/s..200 GB/s/2", ("a.b=50 GB/s", "a.b=200 GB/s")),
        ("a.price=1..4/3", ("a.price=1", "a.price=2", "a.price=4")),
        ("a.b=2x and c.d=5 us", ("a.b=2x and c.d=5 us",)),
    ],
)
def test_ranges(text: str, texts: tuple[str, ...]) -> None:
    assert expanded(text).texts == texts


@pytest.mark.parametrize(
    "text", ["a.b=4x..1x", "a.b=1x..", "a.b=x..y", "a.b=1x..2 Gb/s", "a.b=1x..2x/1"]
)
def test_no_ranges(text: str) -> None:
    with pytest.raises(PlannerError) as caught:
        expanded(text)
    assert [fault.code for fault in caught.value.faults] == ["C05"]


def test_counts() -> None:
    assert counts("64..300") == (64, 128, 256)
    assert counts("8, 12,8") == (8, 12)
    for wrong in ("", "8..4", "many", "-8", "0"):
        with pytest.raises(PlannerError, match="C02"):
            counts(wrong)


def test_a_chip_that_nobody_measured_is_said_to_be_one() -> None:
    rows = compare(QUESTION, clusters=["h100-sxm:8", "gaudi3:8"]).rows
    assert [row.fits for row in rows] == [True, True]
    assert rows[0].note == ""
    assert "times may be off by 30 %" in rows[1].note
