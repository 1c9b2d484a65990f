"""The exported ``train.py`` and ``remeasure.sh`` of DeepSpeed run for real: Ulysses under ZeRO-3 on two gloo ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_runtime import MODEL

from planner.api import Question, price
from planner.export.targets import export

pytestmark = pytest.mark.filterwarnings("ignore")


def test_ulysses_trains_twenty_steps_and_measures_them(tmp_path: Path) -> None:
    """Nothing is changed but the optimizer's kernel, which DeepSpeed would compile for a GPU."""
    from transformers import LlamaConfig

    (tmp_path / "tiny.yaml").write_text(MODEL.format(layers=2))
    question = Question(
        model=str(tmp_path / "tiny.yaml"), cluster="h100-sxm:2", trainer="deepspeed", global_batch=2, seq_len=16,
    )  # fmt: skip
    plan = price(question, {"cp": 2, "zero": 3}, usual=True)
    for file in export(plan, "deepspeed"):
        (tmp_path / file.name).write_text(file.text)
    config = json.loads((tmp_path / "deepspeed.json").read_text())
    config["optimizer"]["params"]["torch_adam"] = True
    (tmp_path / "deepspeed.json").write_text(json.dumps(config))
    LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        head_dim=4, vocab_size=256, max_position_embeddings=16,
    ).save_pretrained(tmp_path / "model")  # fmt: skip
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(tmp_path / "model"),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": "29631",
    }
    done = subprocess.run(
        ["bash", str(tmp_path / "remeasure.sh")],
        capture_output=True, text=True, check=False, timeout=400, cwd=tmp_path, env=os.environ | own,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    steps = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(steps) == 20, "the first rank's alone: those of all would be taken for more steps"
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["parallel"]["cp"] == 2
    assert 0.0 < row["measured"]["step_time_s"] < 60.0
