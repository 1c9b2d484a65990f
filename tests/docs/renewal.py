"""Pages of the documentation with what their commands say now: ``DOCS=write python -m pytest tests/docs``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

WRITE = os.environ.get("DOCS") == "write"
GAP = "…"
"""Alone on a line it stands for lines that are left out, at the end of one for the rest of it."""


def renewed_page(text: str, block: re.Pattern[str], outputs: Sequence[str]) -> str:
    """A page whose blocks show, below each of their commands, what it says now.

    Args:
        text: of the page.
        block: what finds its blocks, their inside as a group.
        outputs: of all commands of the page, in order.
    """
    left = iter(outputs)

    def renew(match: re.Match[str]) -> str:
        parts = re.split(r"^(\$ .*\n)", match[1], flags=re.MULTILINE)[1:]
        inside = ""
        for command, shown in zip(parts[::2], parts[1::2], strict=True):
            lines = renewed(shown.splitlines(), next(left).strip("\n").splitlines())
            inside += command + "".join(f"{line}\n" for line in lines)
        return match[0].replace(match[1], inside)

    return block.sub(renew, text)


def renewed(shown: Sequence[str], now: Sequence[str]) -> list[str]:
    """What is shown of an output, as it is now: what was left out stays out.

    A part between two gaps begins at the line that has the first words of the one it began with.
    """
    found: list[str] = []
    place = 0
    parts = _parts(shown)
    for number, part in enumerate(parts):
        if part == [GAP] or not part:
            found += shown[len(found) : len(found) + 1] if part else []
            continue
        start = _start(part, now, place) if number else 0
        last = number == len(parts) - 1 and not part[-1].endswith(GAP)
        place = len(now) if last else start + len(part)
        found += now[start:place]
    cut = [line for line in shown if line.endswith(GAP) and line.strip() != GAP]
    return [_cut(line, cut) for line in found]


def _parts(shown: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == GAP:
            parts += [[GAP], []]
        else:
            parts[-1].append(line)
    return parts


def _start(part: Sequence[str], now: Sequence[str], after: int) -> int:
    first = next(index for index, line in enumerate(part) if line.strip())
    words = _words(part[first])
    places = (n for n in range(after, len(now)) if words and _words(now[n]) == words)
    place = next(places, None)
    assert place is not None, f"edit by hand: nothing begins like {part[first]!r} any more"
    return place - first


def _words(line: str) -> list[str]:
    return re.findall(r"[A-Za-z]{3,}", line)[:3]


def _cut(line: str, cut: Sequence[str]) -> str:
    return next((short for short in cut if line.startswith(short.removesuffix(GAP))), line)
