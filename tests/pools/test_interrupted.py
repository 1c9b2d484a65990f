"""Ctrl-C while ways to use pools are looked at: the best that was shown is the answer, with a bound that holds."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.asking import plan
from planner.plan.schema import Plan
from planner.question import Question
from planner.search.engine import Progress
from planner.search.pools import uses

QUESTION = Question(
    model="gpt2-xl", cluster="a100-sxm-80gb:1x4 + h100-sxm:1x4", global_batch=256,
    pins=("tp=1", "cp=1", "zero=1", "pp=2"), precision="bf16", overrides={"layers": "24"},
)  # fmt: skip
SLOW = ("plan", "deepseek-v3", "--cluster", "h100-sxm:512 + a100-sxm-80gb:512")


@pytest.fixture(scope="module")
def whole() -> Plan:
    found = plan(QUESTION)
    assert isinstance(found, Plan)
    return found


def after(calls: int) -> Plan:
    """The plan where so many states of the search were shown before Ctrl-C."""
    left = [calls]

    def stop(_: Progress) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    found = plan(QUESTION, stop)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize("calls", range(1, 7))
def test_the_best_so_far_is_kept_with_a_bound_that_holds(whole: Plan, calls: int) -> None:
    found = after(calls)
    assert found.proof.stopped
    assert found.step >= whole.step * (1 - 1e-9)
    assert found.proof.bound <= whole.step * (1 + 1e-9)
    assert len(found.uses) == len(whole.uses)


def test_a_way_that_was_not_begun_is_told(whole: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(uses, "replicas", interrupted)
    found = plan(QUESTION)
    assert isinstance(found, Plan)
    (alike,) = (use for use in found.uses if use.text == uses.ALIKE)
    assert (alike.step, alike.note) == (None, uses.UNSEEN)
    assert found.proof.stopped
    assert 0 < found.proof.bound < whole.step


def test_before_anything_fits_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(uses, "_alone", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plan(QUESTION)


def _listens_to_ctrl_c() -> None:
    """Whoever runs the tests in the background has it ignored, and so would the child."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_slow_question_ends_with_its_best_so_far(sent: signal.Signals, tmp_path: Path) -> None:
    """As a person and as a batch system send it: exit code 4, the answer on standard output."""
    program = [sys.executable, "-m", "cli.main", *SLOW, "--format", "json"]
    talk = tmp_path / "talk"
    with talk.open("w") as stderr:
        child = subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=stderr, preexec_fn=_listens_to_ctrl_c
        )
        try:
            for _ in range(400):
                if "best" in talk.read_text() or child.poll() is not None:
                    break
                time.sleep(0.1)
            child.send_signal(sent)
            out, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 4, talk.read_text()
    answer = Plan.model_validate_json(out)
    assert answer.proof.stopped
    last = talk.read_text().splitlines()[-1]
    assert last.startswith("Stopped. Best so far ")
    assert "nothing can be better than" in last
