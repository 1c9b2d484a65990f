"""Files, classes and functions that one can hold in the head."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE, CLASS, FUNCTION, COMMAND = 400, 200, 60, 150
EXCEPTIONS: dict[str, str] = {}
"""What is longer, and why it should be: ``path`` or ``path::name``."""


def too_long() -> list[str]:
    paths = [*ROOT.glob("planner/**/*.py"), *ROOT.glob("cli/*.py")]
    assert len(paths) > 30
    found = []
    for path in paths:
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        if (lines := len(text.splitlines())) > FILE:
            found.append((name, lines))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                limit = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
                options = name.startswith("cli/") and isinstance(node, ast.FunctionDef)
                first = (
                    node.body[0].lineno if options else node.lineno
                )  # a command's arguments are its options
                lines = (node.end_lineno or 0) - first + 1
                if lines > limit:
                    found.append((f"{name}::{node.name}", lines))
    return [f"{name} has {lines} lines" for name, lines in found if name not in EXCEPTIONS]


def test_sizes() -> None:
    assert not too_long()


def test_exceptions_are_few_and_needed() -> None:
    assert len(EXCEPTIONS) <= 5
    for name, why in EXCEPTIONS.items():
        assert (ROOT / name.partition("::")[0]).exists()
        assert why


def test_commands_are_short() -> None:
    main = (ROOT / "cli" / "program.py").read_text()
    commands = re.findall(r'app\.command\("(\w+)"\)', main)
    assert len(commands) >= 9
    for command in commands:
        assert len((ROOT / "cli" / f"{command}.py").read_text().splitlines()) <= COMMAND
