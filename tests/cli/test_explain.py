"""``explain`` and ``diff`` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main

REPORT = Path(__file__).parents[1] / "report"
PLAN = str(REPORT / "real.json")


def test_explain_shows_the_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", PLAN]) == 0
    out, err = capsys.readouterr()
    assert out == (REPORT / "golden" / "tree-2-100.txt").read_text()
    assert err == ""
    assert main(["explain", PLAN, "--depth", "3"]) == 0
    assert capsys.readouterr().out == (REPORT / "golden" / "tree-3-100.txt").read_text()


def test_a_stale_plan_is_said_to_be_one(planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    planner.old = "it is stale."
    assert main(["explain", PLAN, "mfu"]) == 0
    assert capsys.readouterr().err == "Warning: it is stale.\n"
    assert main(["explain", PLAN, "mfu", "--format", "json"]) == 0
    assert capsys.readouterr().err == "Warning: it is stale.\n"
    assert main(["diff", PLAN, PLAN]) == 0
    assert capsys.readouterr().err == "Warning: it is stale.\n" * 2
    assert main(["explain", PLAN, "mfu", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_explain_one_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", PLAN, "mfu"]) == 0
    assert "3 × forward × global_batch / (step × chips × peak)" in capsys.readouterr().out
    assert main(["explain", PLAN, "mfu", "-f", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["id"] == "mfu"
    assert data["how"]["inputs"][0]["name"] == "forward"


def test_explain_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    """The page of 100 columns as it stands, whatever the terminal's width."""
    assert main(["explain", PLAN]) == 0
    page = capsys.readouterr().out
    assert main(["explain", PLAN, "-f", "markdown"]) == 0
    title, shown = capsys.readouterr().out.split("\n\n", 1)
    assert title.startswith("## ")
    assert shown == f"```text\n{page}```\n"
    assert main(["explain", PLAN, "mfu", "-f", "markdown"]) == 0
    assert "\n\n`mfu`\n\n```text\n" in capsys.readouterr().out


def test_explain_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", PLAN, "-f", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    parts = sum(child["seconds"] for child in tree["children"])
    assert parts == pytest.approx(tree["seconds"])


def test_a_measured_run_stands_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": "mine", "source": "own", "model": {}, "hardware": {}, "parallel": {},
           "measured": {"step_time_s": 4.0, "mem_gib_per_chip": 60.0}}  # fmt: skip
    run = tmp_path / "run.jsonl"
    run.write_text(json.dumps(row) + "\n")
    assert main(["explain", PLAN, "--measured", str(run)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "measured" in out
    assert "4.00 s" in out
    assert "60.0 GiB" in out
    row["hardware"], row["parallel"] = {"num_chips": 3}, {"global_batch": 7}
    run.write_text(json.dumps(row) + "\n")
    assert main(["explain", PLAN, "--measured", str(run)]) == 0
    told = capsys.readouterr().err
    assert "Warning: the run is not of this plan: chips 3, not " in told
    assert "global batch 7, not " in told
    assert "tp" not in told
    run.write_text((json.dumps(row) + "\n") * 2)
    assert main(["explain", PLAN, "--measured", str(run)]) == 2
    assert "[F02]" in capsys.readouterr().err


def test_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", PLAN, PLAN]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"  {PLAN} beside {PLAN}: the same\n")
    assert "3.10 s a step in both · " in told
    assert ", not" not in told
    assert "The layout is the same." in told
    assert main(["diff", PLAN, PLAN, "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"] == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["explain", "gone.json"], "F01"),
        (["explain", PLAN, "nothing-like-it"], "I01"),
        (["explain", PLAN, "--depth", "0"], "A03"),
        (["explain", str(REPORT / "no_plan.json")], "V05"),
        (["diff", PLAN, str(REPORT / "no_plan.json")], "V05"),
    ],
)
def test_mistakes(line: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"[{code}]")
