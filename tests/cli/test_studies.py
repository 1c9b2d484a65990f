"""``compare`` and ``size`` as they are typed."""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from planner.plan.findings import Comparison
from planner.plan.schema import Plan
from tests.report.reports import planned

GOLDEN = Path(__file__).parents[1] / "report" / "golden"


def test_compare_shows_the_page(planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = "compare m -c h100-sxm:256 -c b200:8 -t megatron -t torchtitan --chips 8..32 --price h100-sxm=$2.5"
    line += (
        " --what-if node.bandwidth=0.5x..2x --sensitivity --jobs 2 --backend ray -b 64 --pin tp=8"
    )
    assert main(line.split()) == 0
    page, _, steps = capsys.readouterr().out.partition("\n  Next   ")
    assert page == (GOLDEN / "comparison-100.txt").read_text()
    assert "shardwright explain rows.json '#5'  " in steps
    done = planner.asked.pop("done")
    assert callable(done)
    assert planner.asked == {
        "clusters": ["h100-sxm:256", "b200:8"],
        "chips": (8, 16, 32),
        "trainers": ["megatron", "torchtitan"],
        "what_if": ["node.bandwidth=0.5x..2x"],
        "dollars": {"h100-sxm": 2.5},
        "sensitivity": True,
        "jobs": 2,
        "backend": "ray",
    }
    assert planner.question.pins == ("tp=8",)
    assert planner.question.global_batch == 64


@pytest.mark.parametrize("form", ["json", "csv", "markdown"])
def test_forms_of_a_comparison(form: str, planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "m", "-c", "c", "-f", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        assert len(json.loads(out)["rows"]) == 10
    elif form == "csv":
        assert len(list(csv.DictReader(out.splitlines()))) == 10
    else:
        assert out == (GOLDEN / "comparison.markdown").read_text()


def test_a_comparison_that_was_stopped(
    planner: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = planner.compare(None)
    part = whole.model_copy(update={"left_out": 3})
    monkeypatch.setattr(sys.modules["planner.api"], "compare", lambda *_, **__: part)
    assert main(["compare", "m", "-c", "c"]) == 4
    out, err = capsys.readouterr()
    assert out.startswith((GOLDEN / "comparison-100.txt").read_text())
    assert err == "Stopped. 3 rows were not looked at.\n"


def test_size_shows_the_page(planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = "size m -c h100-sxm --step-time 500ms --tokens 15T --days 30 --dollars 5M --what-if chip.price=2"
    assert main([*line.split(), "--quiet"]) == 0
    assert capsys.readouterr().out == (GOLDEN / "sizing-100.txt").read_text()
    assert (
        planner.asked | {"step": 0.5, "tokens": 15e12, "days": 30, "dollars": 5e6} == planner.asked
    )
    assert planner.question.what_if == ("chip.price=2",)
    assert main(["size", "m", "-c", "c", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"]["chips"] == 16
    assert main(["size", "m", "-c", "c", "-f", "csv"]) == 0
    assert "chips" in capsys.readouterr().out.splitlines()[0]


@pytest.fixture(scope="module")
def one_node() -> Plan:
    """A plan with figures, made before the planner is replaced."""
    return planned("one node")


def test_the_report_of_the_fastest_has_the_table_of_clusters(
    planner: Any, one_node: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planner.answer = one_node
    found = planner.compare(None)
    path = tmp_path / "report.html"
    assert main(["compare", "m", "-c", "c", "--out", str(path)]) == 0
    assert planner.question.figures
    assert planner.question.cluster == found.rows[found.fastest].cluster
    section = path.read_text().partition('id="whatif"')[2].partition("</section>")[0]
    assert 'id="study-table"' in section
    for row in found.rows:
        assert (row.what_if or row.cluster.partition(":")[0]) in section
    assert capsys.readouterr().err == f"Wrote {path}.\n"


@pytest.mark.parametrize("line", ["size m -c c", "size m -c c --largest seq-len"])
def test_the_report_of_a_size_has_its_curves(
    line: str, planner: Any, one_node: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = planner.size(None, largest="seq-len" if "--largest" in line else None).answer
    cluster = one_node.cluster.model_copy(update={"num_chips": best.chips})
    planner.answer = one_node.model_copy(update={"step": best.step, "cluster": cluster})
    path = tmp_path / "report.html"
    assert main([*line.split(), "--out", str(path)]) == 0
    assert planner.question.figures
    section = path.read_text().partition('id="whatif"')[2].partition("</section>")[0]
    assert 'id="study-table"' in section
    assert 'id="curves-drawing"' in section
    assert section.count('class="best winner"') == 2
    assert section.count('class="chosen"') == 1
    assert "are the fewest that fit" in section or "that fits" in section
    assert capsys.readouterr().err == f"Wrote {path}.\n"


@pytest.mark.parametrize("line", ["compare m -c c", "size m -c c", "size m -c c --largest seq-len"])
def test_tables_in_files(
    line: str, planner: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file holds what its form prints, is written again over its like, and over nothing else."""
    for ending, form in ((".csv", "csv"), (".md", "markdown"), (".json", "json")):
        path = tmp_path / f"table{ending}"
        assert main([*line.split(), "-f", form, "-o", str(path)]) == 0
        out, err = capsys.readouterr()
        assert path.read_text() == out
        assert err == f"Wrote {path}.\n"
        assert main([*line.split(), "-o", str(path), "--quiet"]) == 0
        assert path.read_text() == out
        path.write_text("{}" if form == "json" else "mine")
        planner.question = None
        assert main([*line.split(), "-o", str(path)]) == 2
        assert capsys.readouterr().err.rstrip().endswith("[O02]")
        assert planner.question is None
    assert len(list(tmp_path.iterdir())) == 3


def test_the_largest_sequence(planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "m", "-c", "c", "--largest", "seq-len", "-q"]) == 0
    assert capsys.readouterr().out == (GOLDEN / "largest-100.txt").read_text()
    assert planner.asked["largest"] == "seq-len"
    assert main(["size", "m", "-c", "c", "--largest", "seq-len", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["what"] == "seq-len"


@pytest.mark.parametrize("line", ["size m -c c", "size m -c c --largest seq-len"])
def test_a_size_that_was_stopped(
    line: str, planner: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = planner.size(None, largest="seq-len" if "--largest" in line else None)
    part = whole.model_copy(update={"stopped": True})
    monkeypatch.setattr(sys.modules["planner.api"], "size", lambda *_, **__: part)
    assert main(line.split()) == 4
    out, err = capsys.readouterr()
    assert " ✔" in out
    assert err == "Stopped. Others may be better than what was looked at.\n"


def test_progress_counts_plans(
    planner: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = planner.compare(None)

    def counted(*_: object, done: Callable[[int, int], None], **__: object) -> Comparison:
        done(3, 12)
        time.sleep(0.2)
        return whole

    monkeypatch.setattr("cli.console.EVERY_FILE", 0.01)
    monkeypatch.setattr(sys.modules["planner.api"], "compare", counted)
    assert main(["compare", "m", "-c", "c"]) == 0
    assert capsys.readouterr().err.startswith("  3 of 12 plans ━━━━━━╸")


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("compare m", "A03", "missing option '--cluster'"),
        ("compare m -c c --chips many", "C02", "64,128 or 64..1024"),
        ("compare m -c c --price h100-sxm=cheap", "A04", "h100-sxm=2.50"),
        ("compare m -c c --price h100-sxm", "A04", "is not KEY=VALUE"),
        ("size m -c c --out table.pdf", "O01", ".json, .csv, .md or .html"),
        ("compare m -c c -f yaml", "A03", "table, json, csv or markdown"),
        ("size m -c c --step-time soon", "A03", "--step-time 'soon'"),
        ("size m -c c --tokens many", "A03", "15T, 300B or 5M"),
        ("size m -c c --largest batch", "A03", "Nearest: global-batch"),
    ],
)
def test_mistakes(
    line: str, code: str, words: str, planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.rstrip().endswith(f"[{code}]")
    assert planner.question is None


@pytest.mark.parametrize("kept", ["comparison", "sizing", "largest"])
def test_explain_shows_what_was_kept(
    kept: str, planner: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a row the page again, in every form."""
    path = str(GOLDEN.parent / f"{kept}.json")
    assert main(["explain", path]) == 0
    assert capsys.readouterr().out == (GOLDEN / f"{kept}-100.txt").read_text()
    assert main(["explain", path, "--format", "markdown"]) == 0
    assert capsys.readouterr().out == (GOLDEN / f"{kept}.markdown").read_text()
    assert main(["explain", path, "nothing"]) == 2
    assert "no row is called 'nothing'" in capsys.readouterr().err


def test_explain_shows_a_row_that_was_kept(
    planner: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.undo()
    path = str(tmp_path / "rows.json")
    asked = [
        "compare",
        "llama-3.2-1b",
        "-c",
        "h100-sxm:2",
        "-c",
        "a100-sxm-80gb:2",
        "-b",
        "8",
        "-s",
        "2048",
    ]
    assert main([*asked, "--out", path]) == 0
    page = capsys.readouterr().out
    assert main(["explain", path, "#2"]) == 0
    assert "step, stage 0" in capsys.readouterr().out
    assert main(["explain", path, "#2 mfu", "--format", "markdown"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("## llama-3.2-1b on 2 × a100-sxm-80gb, megatron\n\n`#2 mfu`\n")
    assert "of one a100-sxm-80gb in bf16" in told
    assert main(["explain", path, "turn.1"]) == 0
    assert re.search(r"below (\$[\d.]+) a chip-hour", page)[1] in capsys.readouterr().out  # type: ignore[index]
    assert main(["explain", path, "turn.1", "-f", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## llama-3.2-1b\n\n`turn.1`\n")
    assert main(["explain", path, "#1 mfu", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "mfu"
    assert main(["explain", path, "#1", "--measured", "run.json"]) == 2
    assert "--measured is beside a plan" in capsys.readouterr().err
