"""The exported ``train.py`` and ``remeasure.sh`` of DeepSpeed run for real: Ulysses under ZeRO-3 on two gloo ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from remeasured import measured, tiny

from planner.export.targets import export

pytestmark = pytest.mark.filterwarnings("ignore")


def test_ulysses_trains_twenty_steps_and_measures_them(tmp_path: Path) -> None:
    """Nothing is changed but the optimizer's kernel, which DeepSpeed would compile for a GPU."""
    plan = tiny(tmp_path, "deepspeed", 2, {"cp": 2, "zero": 3}, 2)
    for file in export(plan, "deepspeed"):
        (tmp_path / file.name).write_text(file.text)
    config = json.loads((tmp_path / "deepspeed.json").read_text())
    config["optimizer"]["params"]["torch_adam"] = True
    (tmp_path / "deepspeed.json").write_text(json.dumps(config))
    row = json.loads(measured(tmp_path, DS_ACCELERATOR="cpu", MASTER_PORT="29631")[-1])
    assert row["parallel"]["cp"] == 2
    assert 0.0 < row["measured"]["step_time_s"] < 60.0
