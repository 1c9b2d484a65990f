"""``remeasure.sh`` of plain DTensor runs twenty real steps on processes of one computer and prints a row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_runtime import MODEL, TIED

from planner.api import Question, price
from planner.calibrate.evaluate import evaluate_runs
from planner.calibrate.runs import read_runs
from planner.export.targets import export
from planner.plan.schema import Plan

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[2]
ROWS = {
    "narrow-sharded": ("torchtitan", 4, "tp=2,zero=3,recompute=full", MODEL, "bf16"),
    "narrow-copied": ("mindspore", 4, "pp=2,tp=2,vpp=2,schedule=zbv,zero=0", TIED, "bf16"),
    "whole": ("megatron", 2, "pp=2,zero=0", MODEL, "fp32"),
}


def made(name: str, folder: Path) -> Plan:
    trainer, chips, layout, text, precision = ROWS[name]
    (folder / "tiny.yaml").write_text(text.format(layers=4))
    question = Question(
        model=str(folder / "tiny.yaml"), cluster=f"h100-sxm:{chips}", trainer=trainer, global_batch=8, seq_len=16,
    )  # fmt: skip
    layout = dict(pair.split("=") for pair in layout.split(","))
    return price(replace(question, precision=precision), layout, usual=True)


def measured(plan: Plan, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    for file in export(plan, "dtensor"):
        (folder / file.name).write_text(file.text)
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    usual = {"PATH": paths, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_PORT": "29617"}
    return subprocess.run(
        ["bash", str(folder / "remeasure.sh")],
        capture_output=True, text=True, check=False, timeout=300, cwd=folder,
        env=os.environ | usual | environment,
    )  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_twenty_steps_and_a_row(name: str, tmp_path: Path) -> None:
    plan = made(name, tmp_path)
    done = measured(plan, tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert sum(line.startswith("step ") for line in done.stdout.splitlines()) == 20
    row = json.loads(done.stdout.splitlines()[-1])
    assert 0.0 < row["measured"]["step_time_s"] < 30.0
    assert 0.05 < row["measured"]["mem_gib_per_chip"] < 4.0
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = evaluate_runs(read_runs(tmp_path / "rows.jsonl")).rows
    assert found.predicted_step_seconds == pytest.approx(plan.step, rel=0.05)


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    done = measured(made("whole", tmp_path), tmp_path, PER_NODE="1", NODES="1")
    assert done.returncode != 0
    assert "The plan has 2 ranks, and 1 processes were started" in done.stdout
