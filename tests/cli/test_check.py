"""``shardwright check``: a trainer's file judged on a page and as JSON, with an exit code for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import main
from planner.api import Question
from planner.api import plan as find
from planner.plan.read import read_plan
from planner.plan.write import write_plan
from planner.units import show_seconds

WORDS = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --swiglu --normalization RMSNorm --disable-bias-linear --vocab-size 128256 "
    "--untie-embeddings-and-output-weights --position-embedding-type rope --seq-length 4096 "
    "--max-position-embeddings 4096 --bf16 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer"
)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.undo()
    path = tmp_path / "run.sh"
    path.write_text(
        f"NNODES=2\nGPUS_PER_NODE=8\npretrain_gpt.py {WORDS} --tensor-model-parallel-size 8 --sequence-parallel\n"
    )
    return path


def test_the_page_and_the_better_plan(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(script), "--cluster", "h100-sxm", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("  Fits. ")
    assert "dp 2 × tp 8 × pp 1, micro-batch 1, ZeRO-1, no recompute" in told
    assert "read as megatron" in told
    assert "less time)" in told
    assert all(len(line) <= 110 for line in told.splitlines() if str(script) not in line)


def test_silent_faults_end_with_their_own_code(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(script.read_text().replace("size 8 --seq", "size 1 --seq"))
    assert main(["check", str(script), "-c", "h100-sxm", "--no-search"]) == 5
    assert "does nothing with tensor-model-parallel-size 1" in capsys.readouterr().out


def test_as_json(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(script), "-c", "h100-sxm", "--no-search", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "fits"
    assert data["plan"]["degrees"]["tp"] == 8
    assert data["better"] is None


def test_a_file_is_looked_at_before_a_cluster_is_asked_for(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(script.parent / "gone.sh")]) == 2
    assert "[F01]" in capsys.readouterr().err
    assert main(["check", str(script)]) == 2
    assert "missing option '--cluster'" in capsys.readouterr().err


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A layout that is not the best."""
    monkeypatch.undo()
    path = tmp_path / "plan.json"
    line = "price llama-3-8b -c h100-sxm:16 --set tp=4 -b 64 -s 4096 --quiet --out"
    assert main([*line.split(), str(path)]) == 0
    return path


def test_a_plan_is_priced_and_the_better_one_told(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_plan(plan)
    capsys.readouterr()
    assert main(["check", str(plan), "--quiet"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"  Fits. {show_seconds(found.step)} a step: ")
    assert "dp 4 × tp 4 × pp 1" in told
    words = f"{plan.name}, a plan for megatron made by {found.made_by}"
    assert words in " ".join(told.split())
    assert "Stale" not in told
    best = find(Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64, seq_len=4096))
    assert f"{100 * (1 - best.step / found.step):.1f} % less time)" in told


def test_a_stale_plan_does_not_hold(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_plan(plan)
    old = {
        "step": 0.5 * found.step,
        "time": tuple(t.model_copy(update={"value": 0.5 * t.value}) for t in found.time),
        "tokens_per_second": 2 * found.tokens_per_second,
    }
    plan.write_text(write_plan(found.model_copy(update=old)))
    capsys.readouterr()
    assert main(["check", str(plan), "--no-search"]) == 5
    told = capsys.readouterr().out
    assert told.startswith(f"  Fits. {show_seconds(found.step)} a step: ")
    assert "  Stale    " in told
    assert f"It says {show_seconds(0.5 * found.step)} and " in " ".join(told.split())


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (["-c", "h100-sxm:32"], 0, "dp 8 × tp 4 × pp 1"),
        (["-c", "a10g:16"], 5, "Does not fit. "),
        (["-c", "h100-sxm:6"], 5, "Cannot run: "),
        (["--trainer", "torchtitan"], 5, "Broken "),
        (["--global-batch", "65"], 5, "global batch 65 is not a multiple"),
    ],
)
def test_a_plan_under_another_question(
    line: list[str], code: int, words: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is stated is no staleness of the plan."""
    capsys.readouterr()
    assert main(["check", str(plan), "--no-search", *line]) == code
    told = capsys.readouterr().out
    assert words in told
    assert "Stale" not in told


def test_broken_rules_and_wrong_clusters(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(script), "-c", "h100-sxm:32", "--no-search"]) == 5
    assert "but the cluster has 32 chips" in capsys.readouterr().out
    assert main(["check", str(script), "-c", "h100-sxm", "--trainer", "deepspeed"]) == 2
    assert "[W03]" in capsys.readouterr().err


def test_a_plan_on_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    path = tmp_path / "plan.json"
    line = ["plan", "llama-3-8b", "-c", "a100-sxm-80gb:8 + h100-sxm:8", "-b", "256", "-s", "4096"]
    assert main([*line, "--quiet", "--out", str(path)]) == 0
    step = show_seconds(read_plan(path).step)
    capsys.readouterr()
    assert main(["check", str(path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"  Fits. {step} a step: ")
    assert "nothing is faster: this is the best plan" in told
