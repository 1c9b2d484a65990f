"""Files are whole or absent, and never replace something else."""

from __future__ import annotations

import csv
import os
import re
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from planner.errors import PlannerError
from planner.export.targets import TARGETS, export
from planner.output.files import check_outputs, write_output, write_whole
from planner.output.tabs import MOST, tabs
from planner.plan.read import read_plan
from planner.report.markdown import render_markdown
from tests.report.reports import planned

ASKED = ["plan", "llama-3-70b", "--cluster", "h100-sxm:256"]


def codes(paths: list[Path]) -> list[str]:
    with pytest.raises(PlannerError) as caught:
        check_outputs(paths)
    return [fault.code for fault in caught.value.faults]


def test_plan_and_alternatives_are_written(planner: Any, tmp_path: Path) -> None:
    plan, table = tmp_path / "new" / "folder" / "plan.json", tmp_path / "rows.csv"
    for _ in range(2):  # the second time over its own files
        assert main([*ASKED, "-o", str(plan), "-o", str(table)]) == 0
    assert read_plan(plan) == planner.answer
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert float(rows[1]["step_seconds"]) == planner.answer.alternatives[1].step
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "folder",
        "new",
        "plan.json",
        "rows.csv",
    ]


@pytest.mark.parametrize(
    "content", ["{}", "[1]", "hello", '{"schema_version": "1"}', "\xff", "rank;step"]
)
def test_another_kind_of_file_stays(content: str, planner: Any, tmp_path: Path) -> None:
    for name in ("plan.json", "rows.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode("latin-1"))
        assert codes([path]) == ["O02"]
        assert main([*ASKED, "--out", str(path)]) == 2
        assert planner.question is None
        assert path.read_bytes() == content.encode("latin-1")


def test_an_empty_file_is_filled(planner: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.touch()
    assert main([*ASKED, "--out", str(path)]) == 0
    assert read_plan(path) == planner.answer


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").touch()
    bad = [
        tmp_path / "folder.json",
        tmp_path / "file" / "plan.json",
        tmp_path / ("x" * 300 + ".json"),
    ]
    assert codes([*bad, tmp_path / "report.pdf", tmp_path / "plan"]) == ["O03"] * 3 + ["O01"] * 2


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said(planner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PlannerError, match=r"No space left on device\.   \[O03\]"):
        write_output(tmp_path / "plan.json", planner.answer)


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "plan.json", tmp_path / "link.json"
    path.touch(mode=0o640)
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_report_and_a_page_are_written(planner: Any, tmp_path: Path) -> None:
    page, text = tmp_path / "report.html", tmp_path / "page.md"
    planner.answer = planned("one chip")
    for _ in range(2):  # the second time over its own files
        assert main([*ASKED, "-o", str(page), "-o", str(text)]) == 0
    assert planner.question.figures
    assert page.read_text().startswith("<!doctype html>")
    assert "dtensor.json" in page.read_text()
    assert text.read_text() == render_markdown(planner.answer)
    assert main([*ASKED, "-o", str(text)]) == 0
    assert not planner.question.figures
    for path in (page, text):
        path.write_text("<p>mine</p>")
        assert codes([path]) == ["O02"]


def test_tabs_show_what_export_writes() -> None:
    plan = planned("pipeline")
    shown, refused = tabs(plan)
    assert shown[0].name == plan.trainer
    assert len(shown) + len(refused) == len(TARGETS)
    for tab in shown:
        written = {file.name: file.text for file in export(plan, tab.name)}
        assert dict(tab.files).items() <= written.items()
        assert sum(len(content) for _, content in tab.files) <= MOST
        missing = len(written) - len(tab.files)
        assert ("too long" in tab.note) == (missing > 0)
    assert all(re.search(r"cannot hold|only", it.why) for it in refused)


def test_a_report_that_was_stopped_leaves_the_plan(
    planner: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while figures are made: the answer is shown and kept."""
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    assert main([*ASKED, "-o", str(page), "-o", str(plan)]) == 4
    assert planner.question.figures
    out, err = capsys.readouterr()
    assert out.startswith("  Fits. ")
    assert f"Stopped before it was drawn, so {page} was not written." in err
    assert read_plan(plan) == planner.answer
    assert not page.exists()


def test_alternatives_as_parquet(
    planner: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers of the CSV; without pyarrow what to install, before anything is searched."""
    path = tmp_path / "rows.parquet"
    if find_spec("pyarrow") is None:
        assert main([*ASKED, "--out", str(path)]) == 2
        assert "pip install 'shardwright[parquet]'" in capsys.readouterr().err
        assert not path.exists()
        return
    from pyarrow.parquet import read_table

    assert main([*ASKED, "--out", str(path)]) == 0
    rows = read_table(path).to_pylist()
    assert [row["step_seconds"] for row in rows] == [
        row.step for row in planner.answer.alternatives
    ]
    assert rows[0]["tp"] == planner.answer.degrees.tp
    assert main([*ASKED, "--out", str(path)]) == 0
    path.write_text("something else")
    assert main([*ASKED, "--out", str(path)]) == 2
