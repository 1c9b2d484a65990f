"""``remeasure.sh``: what it prints is a row that ``evaluate`` reads, and prices as the plan."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from plans import plan

from cli.main import main
from planner.calibrate.evaluate import evaluate_runs
from planner.calibrate.runs import read_runs
from planner.errors import PlannerError
from planner.export.targets import TARGETS, export

SILENT = ("maxtext",)
"""Trainers whose logs do not say how much memory was used at most."""
LOGS = {
    "megatron": " iteration        7/      20 | elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.0E-04 |\n"
    "[Rank 0] (after 7 iterations) memory (MB) | allocated: 21000.00 | max allocated: 40960.00 | reserved: 50000.00",
    "torchtitan": "\x1b[31mstep:  3  \x1b[32mloss:  7.91234  \x1b[38;2;180;60;0mgrad_norm:  1.5  "
    "\x1b[36mmemory: 40.00GiB(50.10%)  \x1b[34mtps: {rate:,.0f}  \x1b[36mtflops: 300.10  \x1b[35mmfu: 40.00%\x1b[39m",
    "mindformers": "loss: 9.1, per_step_time: {ms:.0f}ms, Actual peak memory usage (with fragments): 40960M",
    "accelerate": "step 7 took {s:.4f} s, peak 40.000 GiB",
    "deepspeed": "step 7 took {s:.4f} s, peak 40.000 GiB",
    "mindspeed": " iteration 7/ 20 | elapsed time per iteration (ms): {ms:.1f} |\n| max allocated: 40960.00 |",
    "mindspore": "Train epoch time: {ms:.3f} ms, per step time: {ms:.3f} ms\n"
    "Actual peak memory usage (with fragments): 40960M",
    "galvatron": "elapsed time per iteration (ms): {ms:.1f} max memory: 40960.0",
    "maxtext": "completed step: 7, seconds: {s:.3f}, TFLOP/s/device: 300.1, Tokens/s/device: {rate:.3f}, loss: 9.1",
}
PLANS = {
    "megatron": ["dense", "experts", "latent", "wide", "ring"],
    "torchtitan": ["titan", "titan-chunks", "titan-experts"],
    "mindformers": ["ascend"],
    "accelerate": ["fsdp", "fsdp-hybrid"],
    "deepspeed": ["fsdp"],
    "galvatron": ["fsdp"],
    "maxtext": ["titan-ring"],
    "megatron-bridge": ["dense", "experts"],
    "torchtitan-0.2": ["titan"],
    "transformers": ["fsdp"],
    "mindspore": ["ascend"],
    "mindspeed": ["ascend-speed"],
    "galvatron-head": ["fsdp"],
    "dtensor": ["titan", "fsdp"],
}
LOGS |= {
    "megatron-bridge": LOGS["megatron"],
    "torchtitan-0.2": LOGS["torchtitan"],
    "transformers": LOGS["accelerate"],
    "dtensor": LOGS["accelerate"],
    "galvatron-head": LOGS["galvatron"],
}

NEAR = {"maxtext": 0.4, "megatron": 0.03}
"""How near the price of a row is to the plan's: rows of MaxText are priced as JAX, plans for it as torchtitan."""


def read(to: str, name: str, folder: Path, log: str) -> subprocess.CompletedProcess:
    script = next(f for f in export(plan(name), to) if f.name == "remeasure.sh")
    assert script.executable
    (folder / "remeasure.sh").write_text(script.text)
    (folder / "remeasure.log").write_text(log)
    return subprocess.run(
        ["bash", str(folder / "remeasure.sh"), "--read"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("to", "name"), [(to, name) for to, names in PLANS.items() for name in names]
)
def test_its_row_is_priced_as_the_plan(to: str, name: str, tmp_path: Path) -> None:
    p = plan(name)
    seconds = 1.25 * p.step
    rate = p.recipe.global_batch * p.recipe.seq / seconds / p.degrees.chips_used
    slow = LOGS[to].format(ms=9e3 * seconds, s=9 * seconds, rate=rate / 9)
    line = LOGS[to].format(ms=1e3 * seconds, s=seconds, rate=rate)
    done = read(to, name, tmp_path, "\n".join([slow] * 3 + [line] * 17))
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["measured"]["step_time_s"] == pytest.approx(seconds, rel=0.01)
    memory = row["measured"].get("mem_gib_per_chip")
    assert memory == (None if to in SILENT else pytest.approx(40.0))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    found = evaluate_runs(read_runs(tmp_path / "rows.jsonl")).rows[0]
    assert found.predicted_step_seconds == pytest.approx(p.step, rel=NEAR.get(to, 0.1)), found


def test_the_command_evaluates_the_rows_of_all_trainers(tmp_path: Path, capsys) -> None:
    """From a log to the error that ``shardwright evaluate`` reports."""
    rows = []
    for to, (name, *_) in PLANS.items():
        p = plan(name)
        seconds = 1.1 * p.step
        rate = p.recipe.global_batch * p.recipe.seq / seconds / p.degrees.chips_used
        done = read(
            to, name, tmp_path, "\n".join([LOGS[to].format(ms=1e3 * seconds, s=seconds, rate=rate)] * 20)
        )  # fmt: skip
        rows.append(json.loads(done.stdout.splitlines()[-1]) | {"id": to})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["evaluate", str(tmp_path / "rows.jsonl"), "--format", "json"]) == 0
    found = {row["id"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert found.keys() == PLANS.keys()
    for to in found.keys() - NEAR.keys():
        assert found[to]["step_error"] == pytest.approx(1 / 1.1 - 1, abs=0.09), to


def test_a_log_without_steps_is_said(tmp_path: Path) -> None:
    done = read("megatron", "data", tmp_path, "CUDA out of memory")
    assert done.returncode != 0
    assert "no times of steps" in done.stderr


def test_every_target_measures() -> None:
    assert PLANS.keys() == LOGS.keys() == {target.name for target in TARGETS}


@pytest.mark.parametrize("to", [t.name for t in TARGETS if t.name != "mindspore"])
def test_scripts_are_shell(to: str) -> None:
    for name in ("data", "fsdp", "ascend", "titan", "ascend-speed"):
        try:
            files = export(plan(name), to)
        except PlannerError:
            continue
        for file in (f for f in files if f.name.endswith(".sh")):
            subprocess.run(["bash", "-n"], input=file.text, text=True, check=True)
        for file in (f for f in files if f.name.endswith(".py")):
            compile(file.text, file.name, "exec")
        return
    raise AssertionError(f"no plan for {to}")
