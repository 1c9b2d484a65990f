"""``shardwright export``: files in a folder, nothing else overwritten, refusals in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.main import main
from planner.plan.write import write_plan


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.undo()
    from planner.api import Question, price

    question = Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=32, seq_len=4096)
    path = tmp_path / "plan.json"
    path.write_text(write_plan(price(question, {"tp": 2, "pp": 2})))
    return path


def test_files_are_written_and_written_again(plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "here"
    for _ in range(2):
        assert main(["export", str(plan_file), "--to", "megatron", "--out", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["megatron.json", "megatron.sh", "remeasure.sh"]
    assert os.access(out / "remeasure.sh", os.X_OK)
    assert not os.access(out / "megatron.json", os.X_OK)


@pytest.mark.parametrize(
    ("to", "cluster"), [("megatron", "h100-sxm:16"), ("mindspeed", "a910b:16")]
)
def test_scripts_are_read_back_as_whose_they_are(
    to: str,
    cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The one that measures again names the one that has the settings."""
    monkeypatch.undo()
    from planner.api import Question, export, price

    question = Question(
        model="llama-3-8b", cluster=cluster, trainer=to, global_batch=32, seq_len=4096
    )
    export(price(question, {"tp": 2, "pp": 2}), to, tmp_path)
    line = ["-c", cluster, "--no-search"]
    assert main(["check", str(tmp_path / f"{to}.sh"), *line]) == 0
    assert f" read as {to} " in " ".join([*capsys.readouterr().out.split(), ""])
    assert main(["check", str(tmp_path / "remeasure.sh"), *line]) == 2
    assert f"shardwright check {tmp_path / to}.sh   [W03]" in capsys.readouterr().err


def test_nothing_else_is_overwritten(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "megatron.sh").write_text("mine")
    assert main(["export", str(plan_file), "--to", "megatron", "-o", str(tmp_path / "out")]) == 2
    assert "[O02]" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["megatron.sh"]
    assert (tmp_path / "out" / "megatron.sh").read_text() == "mine"


def test_what_cannot_be_held_leaves_no_file(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(plan_file), "--to", "deepspeed", "-o", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "[W01]" in told
    assert "--pin pp=1" in told
    assert not (tmp_path / "out").exists()
