"""A profile from a few runs: what was put in comes out, what cannot be told is said, later commands use it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.main import main
from planner.calibrate.calibrate import (
    HOST_WIDTH,
    IDENTIFIED,
    NETWORK_WIDTHS,
    NORMAL,
    calibrate,
)
from planner.calibrate.evaluate import evaluate_runs, predict
from planner.calibrate.fit import Parameter, apply, slopes_of
from planner.calibrate.own_cluster import case_on, profile
from planner.calibrate.readings import step_seconds
from planner.calibrate.runs import Run
from planner.errors import PlannerError
from planner.frontends.cluster_file import read_cluster
from planner.question import Question, understand
from planner.search.answer import trust
from planner.trainers.trust import spread
from tests.calibrate.test_rows import ROW

LAYOUTS = (
    {"dp": 4, "tp": 2, "pp": 2},
    {"dp": 2, "tp": 8, "pp": 1},
    {"dp": 2, "tp": 2, "pp": 4},
    {"dp": 8, "tp": 2, "pp": 1},
    {"dp": 16, "tp": 1, "pp": 1},
    {"dp": 1, "tp": 16, "pp": 1},
)
SPEC = "h100-sxm:16"


def rows(
    speed: float = 1.0,
    network: float = 1.0,
    count: int = 6,
    memory: float = 1.0,
    **parallel: object,
) -> list[Run]:
    """Runs whose steps are those of a cluster that is so much faster than the profile."""
    found = []
    for index, layout in enumerate(LAYOUTS[:count]):
        data = copy.deepcopy(ROW) | {"id": f"run-{index}", "quality": ""}
        data["parallel"] |= layout | parallel | {"framework": "megatron-core"}
        case = case_on(Run.model_validate(data), profile(SPEC))
        links = ("nvlink4", "infiniband-ndr", "infiniband")
        factors = {Parameter("link", name, "network", 1.0): network for name in links}
        factors[Parameter("chip", "h100-sxm", "compute", 1.0)] = speed
        factors[Parameter("chip", "h100-sxm", "memory_efficiency", 1.0)] = memory
        data["measured"] = {"step_time_s": predict([apply(case, factors)])[0].step}
        found.append(Run.model_validate(data))
    return found


def test_runs_like_the_profile_change_nothing() -> None:
    found = calibrate(rows(), profile(SPEC))
    assert all(item.factor == pytest.approx(1.0, abs=1e-3) for item in found.factors)


def test_one_run_moves_the_chip_most_of_the_way() -> None:
    found = calibrate(rows(0.85, count=1), profile(SPEC))
    (speed,) = found.factors
    assert 0.85 < speed.factor < 0.96
    assert any("compute and network apart" in text for text in found.unidentified)
    assert any(text.startswith("memory") for text in found.unidentified)


def test_one_run_says_less_of_the_chip_the_more_of_it_is_network_or_host() -> None:
    """``w² s y / (w² s² + n² + Σ (w s)²)`` over the shares of the step that other factors may stretch."""
    cluster, runs = profile(SPEC), rows(0.97)
    noise = np.log1p(spread("step", "hopper", "megatron").noise) / NORMAL
    moved = {}
    for name in ("run-4", "run-5"):
        run = next(run for run in runs if run.id == name)
        (found,) = calibrate([run], cluster).factors
        others = [
            Parameter("link", "nvlink4", "network", NETWORK_WIDTHS[0]),
            Parameter("link", "infiniband", "network", NETWORK_WIDTHS[1]),
            Parameter("software", "megatron-core", "operator", HOST_WIDTH),
        ]
        case = case_on(run, cluster)
        share, *apart = slopes_of(case, [found.parameter, *others])
        told = np.log(step_seconds(run)[0] or np.nan) - np.log(predict([case])[0].step)
        apart = np.array(apart) * [p.width for p in others]
        width = found.parameter.width**2
        variance = width * share**2 + noise**2 + (apart**2).sum()
        assert np.log(found.factor) == pytest.approx(width * share * told / variance, abs=1e-3)
        moved[name] = found.factor
    assert moved["run-4"] < moved["run-5"] < 1


def test_more_runs_move_it_further_and_narrow_the_interval() -> None:
    one, six = calibrate(rows(0.85, count=1), profile(SPEC)), calibrate(rows(0.85), profile(SPEC))
    assert 0.83 < six.factors[0].factor < one.factors[0].factor
    assert six.factors[0].spread < one.factors[0].spread
    known = spread("step", "hopper", "megatron").half
    assert six.cluster.calibrated and one.cluster.calibrated
    assert six.cluster.calibrated.step_error < one.cluster.calibrated.step_error <= known
    for row in six.rows:
        assert abs(row.after / row.measured - 1) < abs(row.before / row.measured - 1)


def test_a_slow_network_is_told_from_a_slow_chip() -> None:
    found = calibrate(rows(network=0.4), profile(SPEC))
    speed, memory, *links = (item.factor for item in found.factors)
    assert min(links) < 0.75
    assert min(speed, memory) > min(links)


def test_memory_has_a_factor_of_its_own_from_two_runs_on_and_is_told_or_said_not_to_be() -> None:
    slow = calibrate(rows(memory=0.6, sp=False), profile(SPEC))
    memory = next(i for i in slow.factors if i.parameter.field == "memory_efficiency")
    assert 0.6 < memory.factor < 1.0
    said = any(text.startswith("passes over memory") for text in slow.unidentified)
    assert said == (memory.spread > IDENTIFIED * memory.parameter.width)
    (only,) = calibrate(rows(count=1), profile(SPEC)).factors
    assert only.parameter.field == "compute"


@pytest.mark.parametrize("true", [{"memory": 0.6, "sp": False}, {"network": 0.6}, {"speed": 0.97}])
def test_factors_are_the_means_of_what_priors_and_runs_leave_possible(true: dict[str, Any]) -> None:
    """Normal errors on steps whose logs are linear in those of the factors: ``W Sᵀ (S W Sᵀ + n²)⁻¹ y``."""
    runs, cluster = rows(**true), profile(SPEC)
    found = calibrate(runs, cluster).factors
    cases = [case_on(run, cluster) for run in runs]
    at = {i.parameter: i.factor for i in found}

    def steps(factors: dict[Parameter, float]) -> np.ndarray:
        return np.log([found.step for found in predict([apply(case, factors) for case in cases])])

    small, base, logs = 1e-3, steps(at), np.log(list(at.values()))
    moved = [steps(at | {p: factor * np.exp(small)}) for p, factor in at.items()]
    slopes = (np.stack(moved, axis=1) - base[:, None]) / small
    noise = np.log1p(spread("step", "hopper", "megatron").noise) / NORMAL
    prior = np.diag([p.width**2 for p in at])
    gain = (
        prior @ slopes.T @ np.linalg.inv(slopes @ prior @ slopes.T + noise**2 * np.eye(len(runs)))
    )
    told = np.log([step_seconds(run)[0] or np.nan for run in runs]) - base + slopes @ logs
    assert logs == pytest.approx(gain @ told, abs=0.01)
    left = np.sqrt(np.diag(prior - gain @ slopes @ prior))
    assert [i.spread for i in found] == pytest.approx(left.tolist(), rel=0.1)


def test_the_profile_reads_back_and_later_commands_use_it(tmp_path: Path) -> None:
    found = calibrate(rows(0.85), profile(SPEC))
    path = tmp_path / "my.yaml"
    path.write_text(found.text)
    again = read_cluster(str(path))
    assert again == found.cluster
    assert again.num_chips == 16
    assert "6 runs of this cluster" in again.chip.sources["calibrated"]
    task = understand(Question(model="llama-3-8b", cluster=f"{path}:32", global_batch=64)).task
    said = trust(task)
    assert said.text.startswith("calibrated on 6 of your runs, ±")
    assert said.step_error == found.cluster.calibrated.step_error
    before = evaluate_runs(rows(0.85), profile(SPEC)).rows
    after = evaluate_runs(rows(0.85), again).rows
    for old, new in zip(before, after, strict=True):
        assert abs(new.step_error or 1) < abs(old.step_error or 0)


def test_memory_that_was_measured_gives_its_own_interval() -> None:
    first = rows(count=1)[0]
    measured = first.measured.model_copy(update={"mem_gib_per_chip": 30.0})
    found = calibrate([first.model_copy(update={"measured": measured})], profile(SPEC))
    assert found.cluster.calibrated and found.cluster.calibrated.memory_error
    assert not any(text.startswith("memory") for text in found.unidentified)


def test_what_cannot_be_used_is_refused_with_its_reason() -> None:
    other = rows(count=1)[0]
    wrong = other.hardware.model_copy(update={"chip_key": "a100-sxm-80gb"})
    with pytest.raises(PlannerError, match="other chip: a100-sxm-80gb") as caught:
        calibrate([other.model_copy(update={"hardware": wrong})], profile(SPEC))
    assert caught.value.faults[0].code == "K01"
    fsdp = rows(count=2)
    parallel = fsdp[1].parallel.model_copy(
        update={"framework": "fsdp", "zero": 3, "tp": 1, "dp": 16}
    )
    mixed = [fsdp[0], fsdp[1].model_copy(update={"parallel": parallel})]
    with pytest.raises(PlannerError) as caught:
        calibrate(mixed, profile(SPEC))
    assert caught.value.faults[0].code == "K02"
    assert calibrate(mixed, profile(SPEC), "megatron").cluster.calibrated


def test_a_row_needs_to_say_nothing_of_its_hardware() -> None:
    bare = rows(0.9, count=1)[0]
    run = bare.model_copy(
        update={"hardware": bare.hardware.model_copy(update={"chip_key": None, "num_chips": None})}
    )
    assert calibrate([run], profile(SPEC)).factors[0].factor < 1
    named = replace(profile(SPEC), chip=replace(profile(SPEC).chip, name="our-chip"))
    assert calibrate([run], named).factors[0].factor < 1


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, out = tmp_path / "runs.jsonl", tmp_path / "my.yaml"
    runs.write_text("\n".join(json.dumps(run.model_dump()) for run in rows(0.9, count=3)))
    assert main(["calibrate", str(runs), "-c", SPEC, "-o", str(out)]) == 0
    page, talk = capsys.readouterr()
    assert "Fitted   speed of h100-sxm × 0.9" in page
    assert "Trust    ±" in page
    assert max(map(len, page.splitlines())) <= 100
    assert f"--cluster {out}" in talk
    assert main(["calibrate", str(runs), "-c", SPEC, "-o", str(out)]) == 0, (
        "a profile may be renewed"
    )
    assert main(["evaluate", str(runs), "-c", str(out)]) == 0


@pytest.mark.parametrize(("name", "code"), [("my.json", "O01"), ("notes.yaml", "O02"), ("", "O01")])
def test_command_overwrites_nothing_else(
    name: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs.jsonl"
    runs.write_text(json.dumps(rows(count=1)[0].model_dump()))
    (tmp_path / "notes.yaml").write_text("shopping: [milk]\n")
    assert main(["calibrate", str(runs), "-c", SPEC, "-o", str(tmp_path / name)]) == 2
    assert f"[{code}]" in capsys.readouterr().err
