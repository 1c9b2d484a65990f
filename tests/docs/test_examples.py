"""Examples in the documentation and in docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import planner
from cli.main import main
from tests.docs.renewal import WRITE

ROOT = Path(__file__).parents[2]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules_with_examples():
    """Names of the modules whose source has an example."""
    for found in pkgutil.walk_packages(planner.__path__, "planner."):
        path = ROOT.joinpath(*found.name.split("."))
        source = path / "__init__.py" if found.ispkg else path.with_suffix(".py")
        if ">>> " in source.read_text(encoding="utf-8"):
            yield found.name


PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if ">>> " in p.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(page), module_relative=False, optionflags=FLAGS, encoding="utf-8")
    assert found.attempted and not found.failed


@pytest.mark.parametrize("name", sorted(modules_with_examples()))
def test_examples_of_a_module(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert found.attempted and not found.failed


def test_the_readme_shows_the_plan_as_it_is(capsys):
    """A refit changes the page that ``make demo`` prints: the README shows the same one."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    shown = text.partition("```text\n")[2].partition("```")[0].partition("\n  Next ")[0].strip("\n")
    assert main(["plan", "llama-3-70b", "--cluster", "h100-sxm:256", "--quiet"]) == 0
    now = capsys.readouterr().out.strip("\n")
    if WRITE:
        path.write_text(text.replace(shown, now), encoding="utf-8")
    else:
        assert now == shown
