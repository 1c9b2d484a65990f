"""The names that programs may rely on, and the codes that people look up."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import planner.api as api

ROOT = Path(__file__).parents[2]
RESERVED: set[str] = set()
"""Codes with a meaning that no command has yet."""


def test_public_names() -> None:
    """What ``planner.api`` exports; a new name is a promise, so it changes the list beside this file too."""
    names = (Path(__file__).parent / "public_names.txt").read_text().split()
    assert sorted(api.__all__) == dir(api) == names
    assert all(callable(getattr(api, name)) for name in names)
    assert len(ast.parse((ROOT / "planner" / "__init__.py").read_text()).body) == 1


def test_every_code_has_a_section() -> None:
    used: set[str] = set()
    for path in (*ROOT.glob("planner/**/*.py"), *ROOT.glob("cli/*.py")):
        used |= set(re.findall(r'(?:"|\[)([A-Z]\d\d)(?:"|\])', path.read_text()))
    described = re.findall(
        r"^## ([A-Z]\d\d) ", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE
    )
    assert len(used) > 20
    assert sorted(described) == described
    assert used <= set(described), f"no section: {sorted(used - set(described))}"
    assert set(described) <= used | RESERVED, (
        f"no such fault: {sorted(set(described) - used - RESERVED)}"
    )
