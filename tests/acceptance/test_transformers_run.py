"""The exported ``train.py`` of transformers runs for real: what every rank holds is what its ``tp_plan`` leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from remeasured import measured, tiny
from witness import weights

from planner.export.targets import export
from planner.export.view import View

pytestmark = pytest.mark.filterwarnings("ignore")
PATCH = """import os

import accelerate

prepare = accelerate.Accelerator.prepare


def told(self, model, *others):
    with open("held-" + os.environ["RANK"], "w") as file:
        file.write(str(sum(p.numel() for p in model.parameters())))
    return prepare(self, model, *others)


accelerate.Accelerator.prepare = told
accelerate.Accelerator.multi_device = property(lambda self: self.num_processes > 1)
"""
"""Accelerate takes its sizes for ranks of accelerators only; and what a rank holds before it is sharded is told."""


@pytest.mark.parametrize(
    ("trainer", "chips", "layout"),
    [
        ("megatron", 2, {"tp": 2, "zero": 0, "sp": "off"}),
        ("deepspeed", 4, {"tp": 2, "zero": 2}),
    ],
)
def test_tensor_parallel_ranks_hold_their_part(
    trainer: str, chips: int, layout: dict[str, int | str], tmp_path: Path
) -> None:
    plan = tiny(tmp_path, trainer, chips, layout, 4)
    for file in export(plan, "transformers"):
        (tmp_path / file.name).write_text(file.text)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(PATCH)
    lines = measured(
        tmp_path, ACCELERATE_USE_CPU="true", PYTHONPATH=str(tmp_path / "site"), MASTER_PORT="29632"
    )
    own = weights(View(plan), 0)
    assert own < 0.7 * plan.model.num_params
    assert [file.read_text() for file in tmp_path.glob("held-*")] == [f"{own:.0f}"] * chips
    assert json.loads(lines[-1])["parallel"]["tp"] == 2
