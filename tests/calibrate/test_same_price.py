"""A layout costs the same as a plan and as a measured run of the newest release."""

from __future__ import annotations

from typing import Any

import pytest

from planner.api import Question, price
from planner.calibrate.evaluate import evaluate_runs
from planner.calibrate.runs import Run
from planner.trainers.generations import CURRENT, generation
from planner.trainers.registry import get_trainer
from planner.units import GIB

MODELS: dict[str, dict[str, Any]] = {
    "llama-3-8b": {
        "type": "llama", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
        "ffn": 14336, "gated": True, "vocab": 128256, "seq": 8192,
    },
    "mixtral-8x7b": {
        "type": "moe", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
        "ffn": 14336, "gated": True, "vocab": 32000, "seq": 4096, "experts": 8, "top_k": 2,
        "moe_ffn": 14336, "dense_layers": 0,
    },
}  # fmt: skip
PIPE = {"dp": 4, "tp": 2, "pp": 2, "zero": 1, "sp": True}
CASES = {
    "dense": ("llama-3-8b", "megatron", "Megatron-Core", PIPE | {"recompute": "none"}),
    "recompute": ("llama-3-8b", "megatron", "Megatron-Core", PIPE | {"recompute": "full"}),
    "experts": (
        "mixtral-8x7b",
        "megatron",
        "Megatron-Core, HybridEP",
        {"dp": 8, "tp": 2, "pp": 1, "ep": 8, "zero": 1, "sp": True, "recompute": "none"},
    ),
    "sharded": (
        "llama-3-8b",
        "torchtitan",
        "torchtitan",
        {"dp": 16, "tp": 1, "pp": 1, "zero": 3, "recompute": "full"},
    ),
}
CHIPS, BATCH = 16, 64


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_priced_as_a_run(name: str) -> None:
    model, trainer, framework, layout = CASES[name]
    row = {
        "id": name,
        "notes": "compile",
        "model": MODELS[model],
        "hardware": {"chip_key": "h100-sxm", "num_chips": CHIPS, "chips_per_node": 8},
        "parallel": layout
        | {"micro_batch": 1, "global_batch": BATCH, "precision": "bf16", "framework": framework}
        | {"overlap": "tp comm overlap"},
        "measured": {},
    }
    (run,) = evaluate_runs([Run.model_validate(row)]).rows
    question = Question(
        model=model,
        cluster=f"h100-sxm:{CHIPS}",
        trainer=trainer,
        global_batch=BATCH,
        seq_len=MODELS[model]["seq"],
    )
    stated = {key: int(value) if key == "sp" else value for key, value in layout.items()}
    plan = price(question, stated | {"micro-batch": 1}, usual=True)
    assert plan.step == pytest.approx(run.predicted_step_seconds, rel=1e-9)
    assert run.predicted_total_gib
    assert plan.memory == pytest.approx(run.predicted_total_gib * GIB, rel=1e-9)


@pytest.mark.parametrize("name", CURRENT)
def test_plans_use_fitted_numbers(name: str) -> None:
    trainer, measured = get_trainer(name), generation(CURRENT[name])
    assert (trainer.overlap, trainer.overhead) == (measured.overlap, measured.overhead)
