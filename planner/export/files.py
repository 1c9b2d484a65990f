"""What an export is made of: named texts, and how values are written in shells and tables."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.units import Json


@dataclass(frozen=True, slots=True)
class File:
    """One file of an export."""

    name: str
    text: str
    executable: bool = False


def shell_list(name: str, words: Sequence[str]) -> str:
    """A bash array, an option with its values a line.

    >>> print(shell_list("ARGS", ["--bf16", "--layout", "Et|tL"]), end="")
    ARGS=(
      --bf16
      --layout 'Et|tL'
    )
    """
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return "\n".join([f"{name}=(", *("  " + " ".join(line) for line in lines), ")", ""])


def json_text(value: Json) -> str:
    """JSON as people read it: keys in the order in which they were written."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def flags(pairs: Iterable[tuple[str, Json]]) -> list[str]:
    """Options and their values as words; True is an option alone, False and None are left out.

    >>> flags([("--tp", 8), ("--bf16", True), ("--fp8", False), ("--modules", ["a", "b"])])
    ['--tp', '8', '--bf16', '--modules', 'a', 'b']
    """
    words: list[str] = []
    for name, value in pairs:
        if value is None or value is False:
            continue
        words.append(name)
        if value is not True:
            words += [str(v) for v in (value if isinstance(value, list) else [value])]
    return words
