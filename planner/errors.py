"""What can be wrong with what a person gave us: data, not only text.

Inner code raises a :class:`PlannerError` with the facts it knows; the border (frontends, command line)
renders it. Several faults travel together so that they are reported together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with an input."""

    code: str
    """Stable code of the kind of fault, such as ``M01``; a section of docs/errors.md."""
    what: str
    """One sentence that says what is wrong, in the user's own words and values."""
    fix: tuple[str, ...] = ()
    """Lines that say what would be right: nearest valid names or degrees, or a command to type."""
    where: str = ""
    """``file:line:column`` where the fault stands, or empty."""

    def __str__(self) -> str:
        """The fault as it is shown to a person: position, sentence, fixes, code."""
        first = f"{self.where}: error: {self.what}" if self.where else f"Error: {self.what}"
        lines = [first, *(f"       {line}" for line in self.fix)]
        lines[-1] += f"   [{self.code}]"
        return "\n".join(lines)


class PlannerError(Exception):
    """Wrong input: one or more faults. The command line turns it into exit code 2."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults

    @classmethod
    def of(cls, code: str, what: str, *fix: str, where: str = "") -> PlannerError:
        """One fault, written in place."""
        return cls(Fault(code, what, fix, where))


def nearest(word: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names closest to a misspelt word, best first; at least one where any name exists."""
    known = set(names)
    return alike(word, known, count) or alike(word, known, 1, least=0.0)


def alike(word: str, names: Iterable[str], count: int = 3, least: float = 0.5) -> list[str]:
    """The names that a misspelt word may stand for, best first; none where none is like it."""
    squeezed = {_squeeze(name): name for name in sorted(set(names), reverse=True)}
    close = difflib.get_close_matches(_squeeze(word), squeezed, n=count, cutoff=least)
    return [squeezed[key] for key in close]


def _squeeze(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def listed(values: Sequence[object], last: str = "or") -> str:
    """Values as a person lists them: ``1, 2, 4 or 8``."""
    words = [str(value) for value in values]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
