"""A foreign configuration as families read it: typed values, faults collected, every key accounted for.

A miscount that passes silently is the worst fault of a planner. Every key is therefore either read, known to change no
shape, or refused by name where it looks as if it changed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite

from planner.errors import Fault, PlannerError, nearest
from planner.frontends.families.known import IRRELEVANT, looks_structural
from planner.units import Json

DESCRIBE = "Or describe the model yourself: shardwright schema model"
MAX_SIZE = 10**8
"""Larger than any width or vocabulary; a guard against slips and hostile files."""
MAX_LAYERS = 10_000


class Config:
    """One configuration while a family reads it."""

    def __init__(self, data: Mapping[str, Json], path: str, given: Iterable[str] = ()) -> None:
        self.data = data
        self.path = path
        self.given = frozenset(given)
        """Keys that the user overrode; each must be one that the family reads."""
        self.used: set[str] = set()
        self.asked: set[str] = set()
        self.faults: list[Fault] = []

    # -- values ------------------------------------------------------------------------------------

    def size(
        self, *names: str, default: int | None = None, most: int = MAX_SIZE, least: int = 1
    ) -> int:
        """A whole number under the first of these names that has a value; M02 without one and without default."""
        value = self.maybe(*names, most=most, least=least)
        if value is not None:
            return value
        if default is None and not self._faulty(names):
            self.missing(names[0])
        return least if default is None else default

    def maybe(self, *names: str, most: int = MAX_SIZE, least: int = 1) -> int | None:
        """A whole number, or None where the keys are missing or null."""
        name, value = self._find(names)
        if value is None:
            return None
        if not _whole(value):
            self._wrong(name, value, "a whole number")
        elif not least <= value <= most:
            self._wrong(name, value, f"at least {least} and at most {most}")
        else:
            return int(value)
        return None

    def states(self, *names: str) -> bool:
        """Whether any of these keys has a value."""
        return any(self.data.get(name) is not None for name in names)

    def agree(self, *names: str) -> None:
        """Names of one thing that do not say the same: which one counts would be a guess."""
        said = {name: self.data[name] for name in names if self.data.get(name) is not None}
        if len(said) > 1 and any(value != said[name] for value in said.values() for name in said):
            pairs = " and ".join(f"{name} = {_show(value)}" for name, value in said.items())
            self.impossible(f"has {pairs}; the two mean the same and must be equal.")

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._wrong(name, value, "true or false")
            return default
        return value

    def rate(self, *names: str) -> float:
        """The largest of some numbers between 0 and 1; missing ones are 0."""
        most = 0.0
        for name in names:
            value = self._find((name,))[1]
            if value is None:
                continue
            good = isinstance(value, int | float) and not isinstance(value, bool)
            if not good or not 0 <= value <= 1:
                self._wrong(name, value, "a number from 0 to 1")
            else:
                most = max(most, float(value))
        return most

    def word(self, *names: str, default: str = "") -> str:
        """A string."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, str):
            self._wrong(name, value, "a string")
            return default
        return value

    def items(self, name: str, kind: type, length: int | None = None) -> list[Json] | None:
        """A list of values of one type, of the length of the layers where ``length`` is given; None where missing."""
        value = self._find((name,))[1]
        if value is None:
            return None
        good = isinstance(value, list) and all(type(item) is kind for item in value)
        if not good:
            self._wrong(name, value, f"a list of {'strings' if kind is str else 'whole numbers'}")
            return None
        if length is not None and len(value) != length and not self.faults:
            self.impossible(
                f"gives {len(value)} {name} for {length} layers; the two must be equal."
            )
            return None
        return list(value)

    # -- faults ------------------------------------------------------------------------------------

    def missing(self, name: str, example: str = "...") -> None:
        """A fact that the file does not state and that has no default."""
        give = f"Give it: --set {name}={example}"
        self.faults.append(Fault("M02", f"{self.path} has no {name}.", (give, DESCRIBE)))

    def impossible(self, what: str, *fix: str) -> None:
        """A value, or values together, that cannot be."""
        self.faults.append(Fault("M04", f"{self.path} {what}", fix))

    def refuse(self, what: str, *fix: str) -> None:
        """A part of the model that is not described yet."""
        self.faults.append(Fault("M03", f"{self.path} {what}", fix))

    def only(self, name: str, allowed: Json, part: str, default: Json = None) -> None:
        """Refuse every value of a key but one (or a missing one, which means ``default`` or the allowed value)."""
        value = self._find((name,))[1]
        if value is None:
            value = allowed if default is None else default
        if type(value) is not type(allowed) or value != allowed:
            self.refuse(f"has {name} = {_show(value)}: {part} is not described yet.")

    def known(self, *names: str) -> None:
        """Keys of this family that change no shape."""
        self.used.update(names)

    def finish(self) -> None:
        """Refuse what nobody read, then report all faults together."""
        self._unread_keys()
        self._unused_overrides()
        self.stop()

    def stop(self) -> None:
        """Report the faults so far, if any."""
        if self.faults:
            raise PlannerError(*dict.fromkeys(self.faults))

    def _unread_keys(self) -> None:
        strange = [
            key
            for key, value in self.data.items()
            if key not in self.used
            and key not in IRRELEVANT
            and key not in self.given
            and not _empty(value)
            and looks_structural(key)
        ]
        for key in strange[:8]:
            value = _show(self.data[key])
            what = f"has {_clip(key)} = {value}, which this model's family does not have; "
            leave = f"If it changes no shape, leave it out: --set {_clip(key)}=null"
            unstated = [name for name in self.asked if self.data.get(name) is None]
            if close := get_close_matches(key, sorted(unstated), n=1, cutoff=0.85):
                self.refuse(f"{what}did you mean {close[0]}?", leave)
            else:
                self.refuse(f"{what}what it changes is not described yet.", leave)

    def _unused_overrides(self) -> None:
        for key in sorted(self.given - self.used - IRRELEVANT):
            if key in self.data and self.data[key] is None:
                continue
            close = ", ".join(nearest(key, self.asked)) if self.asked else ""
            what = f"--set {_clip(key)}: this model's family reads no such key."
            self.faults.append(Fault("M04", what, (f"Nearest: {close}.",) if close else ()))

    def _find(self, names: Sequence[str]) -> tuple[str, Json]:
        self.asked.update(names)
        self.used.update(names)
        for name in names:
            if self.data.get(name) is not None:
                return name, self.data[name]
        return names[0], None

    def _wrong(self, name: str, value: Json, right: str) -> None:
        self.impossible(f"gives {name} as {_show(value)}; it must be {right}.")

    def _faulty(self, names: Sequence[str]) -> bool:
        return any(self.data.get(name) is not None for name in names)


def _whole(value: Json) -> bool:
    """Whether a value is a whole number; 4096.0 is one, true is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or (isfinite(value) and value == int(value))


def _empty(value: Json) -> bool:
    """Values with which a feature is switched off."""
    if value is None or value is False:
        return True
    if isinstance(value, int | float):
        return not isinstance(value, bool) and value == 0
    return isinstance(value, str | list | dict) and not value


def _show(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the string '{_clip(value)}'"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return "null" if value is None else _clip(str(value))


def _clip(text: str, most: int = 40) -> str:
    printable = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    return printable if len(printable) <= most else printable[:most] + "…"
