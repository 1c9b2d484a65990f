"""What people really ran must not be refused: measured runs against the rules of their trainer.

The runs are facts outside the project; without them the tests are skipped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.candidates import Candidates
from planner.trainers.rules import broken
from planner.trainers.trainer import Task

RUNS = Path(__file__).parents[2].parent / "shared" / "facts" / "runs"
FRAMEWORKS = {
    "megatron": "megatron",
    "nemo": "megatron",
    "simumax": "megatron",
    "titan": "torchtitan",
    "foundry": "fsdp",
    "mindformers": "mindspore",
}
WORLD_TOO_SMALL = "mbridge-25.09-deepseek-v3-gb200-fp8-mx-g256"
"""States ep 64 on stages of 32 chips."""


def trainer_of(run: dict[str, Any]) -> str | None:
    framework = (run["parallel"].get("framework") or "").lower()
    return next((name for word, name in FRAMEWORKS.items() if word in framework), None)


def stated(run: dict[str, Any], trainer: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run as a task and a layout of our own words."""
    model, parallel = run["model"], run["parallel"]
    facts = {key: model[key] for key in ("layers", "heads", "hidden", "vocab")}
    facts["kv_heads"] = model["kv_heads"] or model["heads"]
    facts["head_dim"] = model["head_dim"] or model["hidden"] // model["heads"]
    facts["ffn"] = model["ffn"] or 4 * model["hidden"]
    if (model["experts"] or 1) > 1:
        facts |= {"experts": model["experts"], "expert_ffn": model["moe_ffn"] or facts["ffn"]}
    degrees = {key: parallel[key] or 1 for key in ("dp", "tp", "pp", "cp", "ep", "vpp")}
    sp = parallel["sp"] or "experts" in facts or trainer == "torchtitan"
    layout = degrees | {
        "micro_batch": parallel["micro_batch"] or 1,
        "sp": bool(sp) and degrees["tp"] > 1,
        "sharding": 3 if trainer in ("torchtitan", "fsdp") else min(parallel["zero"] or 0, 1),
        "schedule": "interleaved" if degrees["vpp"] > 1 else "1f1b",
    }
    precision = parallel["precision"]
    recipe = {"global_batch": parallel["global_batch"], "seq": model["seq"]}
    recipe["precision"] = precision if precision in ("bf16", "fp8", "fp16", "fp32") else "bf16"
    chips = run["hardware"]["num_chips"]
    return (
        {"model": facts, "chips": chips, "trainer": trainer, "recipe": recipe, "copy_kv": True},
        layout,
    )


def complete(run: dict[str, Any]) -> bool:
    parallel = run["parallel"]
    degrees = [parallel[key] or 1 for key in ("dp", "tp", "pp", "cp")]
    known = run["model"]["heads"] and parallel["global_batch"] and run["complete"]
    product = degrees[0] * degrees[1] * degrees[2] * degrees[3]
    return bool(known) and product == run["hardware"]["num_chips"]


@pytest.mark.skipif(not RUNS.is_dir(), reason="the measured runs are not here")
def test_measured_runs_are_allowed(
    task_of: Callable[[dict[str, Any]], Task], rows_of: Callable[[dict[str, Any]], Candidates]
) -> None:
    refused: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for path in sorted(RUNS.glob("*ation.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines()[::3]:
            run = json.loads(line)
            trainer = trainer_of(run)
            if trainer is None or not complete(run) or run["id"] == WORLD_TOO_SMALL:
                continue
            facts, layout = stated(run, trainer)
            tried[trainer] += 1
            refused.update(rule.name for rule, _ in broken(task_of(facts), rows_of(layout)))
    assert min(tried[name] for name in ("megatron", "torchtitan", "fsdp", "mindspore")) >= 5
    # Layout strings with unequal virtual chunks: known and planned without (rule virtual-chunks).
    assert set(refused) <= {"virtual-chunks"}
    assert refused["virtual-chunks"] < 0.05 * tried["megatron"]
