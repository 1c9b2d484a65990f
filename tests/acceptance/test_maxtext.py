"""MaxText 0.2.5 takes the exported YAML and derives the plan's mesh, batches, stages and model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plans import plan, stated

from planner.export.targets import export
from planner.export.view import View
from planner.plan.schema import Plan

PLANS = {
    "tensor": lambda: plan("titan"),
    "ring": lambda: plan("titan-ring"),
    "data": lambda: plan("fsdp"),
    "copies": lambda: stated("llama-3-8b", "h100-sxm:16", "megatron", "zero=0,tp=2,recompute=full"),
    "norms": lambda: stated("qwen3-30b-a3b", "h100-sxm:64", "torchtitan", "ep=8,zero=3,recompute=full"),
    "latent": lambda: stated("deepseek-v3", "h100-sxm:512", "torchtitan", "ep=64,zero=3,recompute=full", 512),
    "pipeline": lambda: stated(
        "llama-3-8b", "h100-sxm:32", "torchtitan", "pp=4,schedule=gpipe,zero=3,recompute=full"
    ),
    "experts": lambda: stated("mixtral-8x7b", "h100-sxm:64", "torchtitan", "ep=8,zero=3,recompute=full"),
}  # fmt: skip


def read(text: str, chips: int, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "maxtext.yml").write_text(text)
    program = Path(__file__).with_name("maxtext_cpu.py")
    return subprocess.run(
        [sys.executable, str(program), str(folder / "maxtext.yml"), str(chips), *more],
        capture_output=True, text=True, check=False, timeout=240, cwd=folder,
    )  # fmt: skip


def text_of(made: Plan) -> str:
    return next(file.text for file in export(made, "maxtext") if file.name == "maxtext.yml")


@pytest.mark.parametrize("name", PLANS)
def test_mesh_batches_and_stages(name: str, tmp_path: Path) -> None:
    made = PLANS[name]()
    view, d = View(made), made.degrees
    done = read(text_of(made), view.world, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.partition("FOUND ")[2])
    mesh = dict(zip(found["mesh_axes"], found["ici_parallelism"], strict=True))
    states = mesh["fsdp"] if view.level == 3 else mesh["data"]
    assert states * mesh["expert"] == d.dp
    assert mesh["tensor"] * mesh["tensor_sequence"] == d.tp
    assert (mesh["context"], mesh["stage"], mesh["expert"]) == (d.cp, d.pp, d.ep)
    assert set(found["dcn_parallelism"]) == {1}
    turns = d.num_micro_batches
    assert found["global_batch_size_to_train_on"] == made.recipe.global_batch
    assert found["gradient_accumulation_steps"] == (1 if d.pp > 1 else turns)
    if d.pp > 1:
        assert found["num_pipeline_microbatches"] == turns
        assert found["num_layers_per_pipeline_stage"] * d.pp * d.vpp == made.model.num_layers
    assert found["num_decoder_layers"] == made.model.num_layers
    assert found["max_target_length"] == made.recipe.seq
    assert (found["remat_policy"] == "full") == (d.recompute == "full")
    assert found["optimizer_memory_host_offload"] == (d.offload == "optimizer")
    wanted = {
        "experts": ("mixtral", 8, 2),
        "norms": ("qwen3_moe", 128, 8),
        "latent": ("deepseek", 256, 8),
    }
    if name in wanted:
        found_experts = (found["num_experts"], found["num_experts_per_tok"])
        assert (found["decoder_block"], *found_experts) == wanted[name]


def test_what_it_refuses(tmp_path: Path) -> None:
    text = text_of(plan("titan"))
    for before, after in (
        ("remat_policy", "remat_policies"),
        ("decoder_block: llama2", "decoder_block: llama"),
    ):
        assert before in text
        assert read(text.replace(before, after), 64, tmp_path).returncode != 0
