"""Commands on the pages of the documentation run, and say what the pages show of them.

``DOCS=write python -m pytest tests/docs`` writes what they say now.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import main
from cli.program import app
from planner.frontends.catalog import entries
from planner.frontends.model_file import read_model
from planner.graph.blocks import build_model
from planner.graph.operator import Operator
from tests.docs.renewal import WRITE, renewed_page

ROOT = Path(__file__).parents[2]
COMMANDS = sorted((ROOT / "docs" / "commands").glob("*.md"))
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
PAGES = [
    *COMMANDS,
    *(p for p in sorted((ROOT / "docs").glob("*.md")) if BLOCK.search(p.read_text("utf-8"))),
]
FILE = re.compile(r"```\w+ (\S+)\n(.*?)```", re.DOTALL)
"""A block with a file's name behind its language: the commands of the page find that file."""

LEFT = "schema"
"""Its page leaves lines out of the middle of JSON, where no words tell places apart."""


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Command lines of a page with the lines shown below each."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(BLOCK.findall(page.read_text(encoding="utf-8"))).splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ shardwright "), []))
        else:
            found[-1][1].append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers change with the cost model; words without numbers are there as they are shown."""
    monkeypatch.chdir(tmp_path)
    whole = page.read_text(encoding="utf-8")
    for name, text in FILE.findall(whole):
        Path(name).write_text(text, encoding="utf-8")
    asked = commands(page)
    assert asked
    outputs: list[str] = []
    for line, shown in asked:
        code = main(shlex.split(line))
        out = capsys.readouterr().out
        outputs.append(out)
        assert code == (3 if any("Does not fit" in text for text in shown) else 0), line
        said = set(re.findall(r"[A-Za-z]{4,}", out))
        for text in shown:
            if not re.search(r"\d|…", text):
                assert WRITE or set(re.findall(r"[A-Za-z]{4,}", text)) <= said, (line, text)
    if WRITE and page.stem != LEFT:
        page.write_text(renewed_page(whole, BLOCK, outputs), encoding="utf-8")


def test_a_page_is_renewed_and_what_it_leaves_out_stays_out() -> None:
    page = (
        "```console\n$ a b\n  Fits. 3 s\n  made by …\n  …\n  Memory 3\n$ c\n  Fits. …\n```\ntext\n"
    )
    new = renewed_page(
        page,
        BLOCK,
        ["\n  Fits. 4 s\n  made by me\n  more\n  Memory 4\n  end\n", "  Fits. 1\n  2\n"],
    )
    assert new == (
        "```console\n$ a b\n  Fits. 4 s\n  made by …\n  …\n  Memory 4\n  end\n$ c\n  Fits. …\n```\ntext\n"
    )


def test_every_command_has_a_page() -> None:
    from typer.main import get_command

    names = list(get_command(app).commands)  # type: ignore[attr-defined]
    assert len(names) >= 11
    assert [page.stem for page in COMMANDS] == sorted(names)
    for page in COMMANDS:
        assert any(line.startswith(f"{page.stem} ") for line, _ in commands(page)), page.stem


def test_every_operator_stands_on_their_page() -> None:
    """Of all models that are known by name, and of attention that is not fused."""
    text = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:\w+\.)?\w+)`", text)
    known = {name for full in names for name in (full, full.partition(".")[2])}
    found = {
        op.name
        for entry in entries("model")
        for fused in (True, False)
        for op in operators(entry.name, fused)
    }
    assert len(found) > 40
    assert found - known == set()


def operators(model: str, fused: bool) -> Iterator[Operator]:
    built = build_model(read_model(model), 1024, fused=fused)
    for block in (built.embedding, *built.blocks, *built.mtp, built.head):
        yield from block.operators


def test_links_lead_somewhere() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not link.startswith("http")
    ]
    assert len(links) >= 10
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


MINE = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "vocab_size": 32000,
    "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 8192,
}  # fmt: skip
"""What a page calls ``./my-model``."""
SPOKEN = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if re.search(r"^ {4}shardwright ", page.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("page", SPOKEN, ids=lambda page: page.stem)
def test_commands_without_their_output_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Indented lines that begin with the program's name, one after another: each has an answer."""
    monkeypatch.chdir(tmp_path)
    Path("my-model").mkdir()
    Path("my-model/config.json").write_text(json.dumps(MINE))
    runs = FILE.search((ROOT / "docs" / "commands" / "calibrate.md").read_text(encoding="utf-8"))
    assert runs is not None
    Path("my-runs.jsonl").write_text(runs[2])
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^ {4}shardwright (.+)$", text, re.MULTILINE)
    assert len(lines) >= (12 if page.stem == "README" else 1)
    for line in lines:
        code = main(shlex.split(line, comments=True))
        out, err = capsys.readouterr()
        assert code == 0, (line, err)
        assert out, line


def test_the_front_page_s_python_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        known: dict[str, object] = {}
        exec(block, known)
        assert "answer" in known
