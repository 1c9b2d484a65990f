"""Sizes against brute force over all numbers of chips, and targets that are met and just not met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.api import Plan, PlannerError, Question, plan, size
from planner.plan.findings import Compared, Target
from planner.studies.compare import Point, compared
from planner.studies.fewest import days_of, dollars_of, missed

QUESTION = Question(model="gpt3-6.7b", cluster="a100-sxm-80gb", global_batch=96, seq_len=2048)


def step(chips: int, **changes: object) -> float | None:
    found = plan(replace(QUESTION, cluster=f"a100-sxm-80gb:{chips}", top=1, **changes))
    return found.step if isinstance(found, Plan) else None


def test_the_fewest_chips_that_fit_by_brute_force() -> None:
    small = replace(QUESTION, cluster="a100-sxm-40gb")
    found = size(small)
    assert found.answer is not None
    fits = [
        n
        for n in range(1, 9)
        if isinstance(plan(replace(small, cluster=f"a100-sxm-40gb:{n}", top=1)), Plan)
    ]
    assert found.answer.chips == fits[0] > 1
    assert found.below is None or not found.below.fits


def test_a_step_time_is_met_and_not_by_the_next_smaller_number() -> None:
    found = size(QUESTION, step=6.0)
    assert found.answer is not None
    assert found.answer.step <= 6.0
    chips = found.answer.chips
    assert found.answer.step == step(chips)
    smaller = [step(n) for n in range(max(8, chips - 2 * found.grain), chips, found.grain)]
    assert all(s is None or s > 6.0 for s in smaller)
    assert [row.chips for row in found.curve] == sorted(row.chips for row in found.curve)
    assert found.curve[-1].chips == 8 * chips


def test_a_deadline_and_a_budget() -> None:
    in_time = size(QUESTION, tokens=1e11, days=20)
    assert in_time.answer is not None
    days = days_of(in_time.answer, in_time.target)
    assert days == pytest.approx(1e11 / (96 * 2048) * in_time.answer.step / 86400)
    assert days <= 20
    cost = dollars_of(in_time.answer, in_time.target)
    assert cost == pytest.approx(in_time.answer.chips * 1.89 * 24 * days)
    cheap = Target(tokens=1e11, days=20, dollars=0.5 * cost)
    assert missed(in_time.answer, cheap) == "dollars"
    assert missed(in_time.answer, Target(tokens=1e11, days=0.5 * days)) == "days"


def test_no_number_of_chips_does_it() -> None:
    found = size(replace(QUESTION, cluster="a100-sxm-80gb:16"), step=1e-3)
    assert found.answer is None
    assert found.note == "16 chips are the most that were looked at"


def test_more_chips_end_to_help() -> None:
    found = size(replace(QUESTION, global_batch=4), step=0.01)
    assert found.answer is None
    assert "make the step no shorter" in found.note
    assert max(row.chips for row in found.curve) <= 8192


def test_the_longest_sequence() -> None:
    question = replace(QUESTION, cluster="a100-sxm-80gb:8")
    found = size(question, largest="seq-len")
    assert found.value is not None
    assert found.answer is not None
    assert found.value < found.above_value <= found.value * 1.15 + 1024
    assert isinstance(
        plan(replace(question, seq_len=found.value, global_batch=found_batch(found.value), top=1)),
        Plan,
    )
    assert found.above is not None
    assert not found.above.fits


def found_batch(seq: int) -> int:
    return max(1, 96 * 2048 // seq)


def test_the_largest_batch_within_a_step_time() -> None:
    question = replace(QUESTION, cluster="a100-sxm-80gb:8")
    found = size(question, largest="global-batch", step=5.0)
    assert found.value is not None
    assert found.answer.step <= 5.0 < found.above.step
    steps = [row.step for _, row in found.curve]
    assert steps == sorted(steps)


@pytest.mark.parametrize("target", [{"days": 3.0}, {"dollars": 1e6}], ids=["days", "dollars"])
def test_targets_that_cannot_be_judged(target: dict[str, float]) -> None:
    with pytest.raises(PlannerError, match="need --tokens"):
        size(QUESTION, **target)


def test_what_else_cannot_be_judged() -> None:
    with pytest.raises(PlannerError, match="--dollars needs a price"):
        size(replace(QUESTION, cluster="ascend-910c"), tokens=1e12, dollars=1e6)
    with pytest.raises(PlannerError, match="needs --step-time"):
        size(QUESTION, largest="global-batch")
    for days in (0.0, float("inf")):
        with pytest.raises(PlannerError, match="is no deadline"):
            size(QUESTION, tokens=1e12, days=days)


def test_what_does_not_fit_is_missed() -> None:
    row = Compared(cluster="c", chips=1, trainer="t", fits=False, note="needs more",
                   asked=QUESTION.asked())  # fmt: skip
    assert missed(row, Target()) == "needs more"


@pytest.mark.parametrize("largest", [None, "seq-len"])
def test_ctrl_c_keeps_what_there_is(largest: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three plans the answer is the best of the three; before the first there is none."""

    def after(plans: int) -> Callable[[Point], Compared]:
        asked: list[Point] = []

        def ask(point: Point) -> Compared:
            asked.append(point)
            if len(asked) > plans:
                raise KeyboardInterrupt
            return compared(point)

        return ask

    question = replace(QUESTION, cluster="a100-sxm-80gb:16")
    for module in ("fewest", "largest"):
        monkeypatch.setattr(f"planner.studies.{module}.compared", after(3))
    found = size(question, largest=largest)
    assert found.stopped
    assert len(found.curve) == 3
    rows = [row for _, row in found.curve] if largest else list(found.curve)
    assert found.answer in [row for row in rows if row.fits] or not any(r.fits for r in rows)
    for module in ("fewest", "largest"):
        monkeypatch.setattr(f"planner.studies.{module}.compared", after(0))
    with pytest.raises(KeyboardInterrupt):
        size(question, largest=largest)
