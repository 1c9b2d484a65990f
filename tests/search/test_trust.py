"""What plans say about their accuracy: from which runs, and what their own calibration changes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.asking import price
from planner.hardware.cluster import Calibration
from planner.question import Question, understand
from planner.search.answer import trust
from planner.search.trust import UNMEASURED, memory_upper, noise
from planner.trainers.measured import beyond, reach
from planner.trainers.registry import TRAINERS
from planner.trainers.trust import PATH, key, room, spread, upper

DATA = json.loads(PATH.read_text())


def task(cluster: str = "h100-sxm:8", trainer: str = "megatron"):
    question = Question(model="llama-3-8b", cluster=cluster, trainer=trainer, global_batch=64)
    return understand(question).task


def test_the_data_say_what_they_rest_on() -> None:
    for quantity in ("step", "memory"):
        assert DATA[quantity]["all"]["runs"] >= 100
        for found in DATA[quantity].values():
            assert 0 < found["half"] < 1
            assert 0 < found["noise"] < 1
            assert found["runs"] >= 1
        check = DATA[f"{quantity}_check"]
        told = "the 80 % interval: python -m benchmarks.trust --write"
        assert 0.75 <= check["inside_by_group"] <= 0.88, told
        assert 0.75 <= check["inside"] <= 0.95, told  # four groups have most runs of memory


def test_spreads_come_from_the_most_alike_runs() -> None:
    assert spread("step", "hopper", "megatron").basis == "pair"
    assert (
        spread("step", "hopper", "megatron").runs == DATA["step"][key("hopper", "megatron")]["runs"]
    )
    assert spread("step", "hopper", "unheard-of").basis == "family"
    assert spread("step", "unheard-of", "megatron").basis == "trainer"
    assert spread("memory", "hopper", "unheard-of").basis in ("family", "all")
    assert spread("step", "unheard-of", "unheard-of").basis == "all"


def test_trust_names_runs_and_median_error() -> None:
    found = trust(task())
    data = DATA["step"][key("hopper", "megatron")]
    assert found.measured
    assert found.step_error == data["half"]
    assert (
        f"({data['runs']} measured runs, median error {100 * data['median']:.1f} %)" in found.text
    )
    assert found.text.startswith(f"±{100 * data['half']:.0f} % on this chip family")


def test_trust_without_runs_is_a_guess_and_says_so() -> None:
    found = trust(task("gaudi3:8"))
    assert not found.measured
    assert found.step_error is None
    assert "times may be off by 30 %, memory by 10 %" in found.text
    assert UNMEASURED == (0.30, 0.10)


def test_own_runs_narrow_the_interval_of_the_trainer_that_ran_them() -> None:
    asked = task()
    own = Calibration(trainer="megatron", runs=3, step_error=0.04)
    cluster = replace(asked.cluster, calibrated=own)
    found = trust(replace(asked, cluster=cluster))
    assert found.step_error == 0.04
    assert found.text.startswith("calibrated on 3 of your runs, ±4 %")
    other = trust(replace(task(trainer="fsdp"), cluster=cluster))
    assert "calibrated" not in other.text


@pytest.mark.parametrize("trainer", [t.name for t in TRAINERS])
def test_the_upper_quantile_of_memory_is_small_and_physical(trainer: str) -> None:
    asked = task("ascend-910b2:8" if trainer == "mindspeed" else "h100-sxm:8", trainer=trainer)
    assert 1.0 < upper(trainer) <= 1.05
    assert memory_upper(asked, room(asked)) == pytest.approx(asked.memory_limit)


def test_layouts_of_one_cluster_differ_less_than_runs_of_all() -> None:
    assert noise(task()) < spread("step", "hopper", "megatron").half


def test_what_lies_beyond_all_measured_runs_is_told() -> None:
    """Judged by the runs themselves: the largest of each fact is within, one more is beyond."""
    known = reach()["hopper"]
    assert known["tp"] >= 8
    assert known["ep"] >= 64
    assert list(beyond("hopper", known)) == []
    for name, most in known.items():
        [text] = beyond("hopper", known | {name: 2 * most})
        assert "runs have up to" in text
    assert list(beyond("nobody's chips", {"tp": 4096})) == []
    question = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64, seq_len=4096)
    plain = price(question, {"tp": 8})
    assert plain.extrapolated == ()
    far = price(question, {"tp": 16, "kv-heads": "copy"})
    assert far.extrapolated == (f"tp 16 (runs have up to {known['tp']:.0f})",)
    assert any(far.extrapolated[0] in text for text in far.warnings)
