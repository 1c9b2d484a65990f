"""An exported folder that measures itself: a tiny model of the plan's sizes, and the script as people start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from test_runtime import MODEL

from planner.api import Question, price
from planner.plan.schema import Plan


def tiny(folder: Path, trainer: str, chips: int, layout: dict[str, Any], batch: int) -> Plan:
    """The plan of a model of two layers, whose ``config.json`` lies in ``model``."""
    from transformers import LlamaConfig

    (folder / "tiny.yaml").write_text(MODEL.format(layers=2))
    LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        head_dim=4, vocab_size=256, max_position_embeddings=16,
    ).save_pretrained(folder / "model")  # fmt: skip
    question = Question(
        model=str(folder / "tiny.yaml"), cluster=f"h100-sxm:{chips}", trainer=trainer, global_batch=batch, seq_len=16,
    )  # fmt: skip
    return price(question, layout, usual=True)


def measured(folder: Path, **more: str) -> list[str]:
    """What ``remeasure.sh`` of a folder prints."""
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(folder / "model"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", str(folder / "remeasure.sh")],
        capture_output=True, text=True, check=False, timeout=400, cwd=folder, env=os.environ | own | more,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 20, "the first rank's alone: those of all would be taken for more steps"
    return lines
