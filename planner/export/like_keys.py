"""Keys of a YAML or JSON file set where they stand: every byte that a plan does not decide stays as it was.

Text is never written anew from data. What a value means comes from the parser, where it stands from the parser's marks,
and a new value is spelled as the file spells its own: booleans, quotes, braces or lines, ends of lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from planner.errors import PlannerError
from planner.export.yaml_text import flow, yaml_text
from planner.units import Json

Path: TypeAlias = tuple[str, ...]
"""Keys from the top of a file to one value."""
_Event: TypeAlias = Any
"""Of ruamel.yaml, whose kinds have unlike attributes."""
NOTHING: Mapping[str, Json] = {}
_WORDS = {"yes": True, "on": True, "no": False, "off": False}
"""Booleans of YAML 1.1, which trainers read."""
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
_SPACE = re.compile(r"\s*")
_SPACES_AND_NOTE = re.compile(r"(?:[ \t]*#[^\r\n]*)?")
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value stands: characters from ``start`` up to ``end``."""

    start: int
    end: int
    flow: bool = True
    """On its own line or in braces; a block has lines below its key."""
    alias: bool = False
    keys: dict[str, tuple[int, int, _Place]] | None = None
    """Of a mapping: where a key begins, where its colon ends, and its value."""


def edited(
    text: str, changes: Mapping[Path, Json], name: str, defaults: Mapping[str, Json] = NOTHING
) -> str:
    """A file with values replaced or added; None takes a key out, and its section with the last of its keys.

    A value with an anchor is changed at the anchor: what repeats it follows, as its writer meant.

    Args:
        text: YAML, or JSON where ``name`` ends so.
        changes: new values by their keys from the top.
        name: of the file, for errors.
        defaults: what a key means that a file does not have, by its last part: it is not written there.

    Raises:
        PlannerError: the text cannot be read, or a section stands for another one (W05).
    """
    file = _read(text, name)
    for path, value in changes.items():
        usual = defaults.get(path[-1])
        now = at(file.data, path)
        if _same(usual if now is None else now, usual if value is None else value):
            continue
        new = file.changed(path, value)
        file = _read(new, name) if new != file.text else file
    return file.text


def said(text: str, name: str) -> dict[str, Json]:
    """What a file says.

    Raises:
        PlannerError: the text cannot be read, or holds no keys (W05).
    """
    data: dict[str, Json] = _read(text, name).data
    return data


def at(data: Json, path: Path) -> Json:
    """The value at some keys; None where there is none."""
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _read(text: str, name: str) -> _File:
    return (_JsonFile if name.lower().endswith(".json") else _YamlFile)(text, name)


class _File:
    """A text, what it says and where."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.line = "\r\n" if "\r\n" in text else "\n"
        self.data, self.root = self.parsed()
        if not isinstance(self.data, dict):
            raise PlannerError.of("W05", "holds no keys to change.", where=name)

    def parsed(self) -> tuple[Json, _Place]:
        """Data and places."""
        raise NotImplementedError

    def shown(self, value: Json, before: str = "") -> str:
        """A value on one line, spelled like the one that it replaces."""
        raise NotImplementedError

    def key(self, name: str) -> str:
        """A new key in braces."""
        raise NotImplementedError

    def changed(self, path: Path, value: Json) -> str:
        """The text with one value set."""
        place, data = self.root, self.data
        outer: list[tuple[_Place, str]] = []
        for depth, part in enumerate(path):
            inside = data if isinstance(data, dict) else {}
            if part not in (place.keys or {}):
                if value is None and at(inside, path[depth:]) is None:
                    return self.text
                if place.alias or (value is None and part in inside):
                    return self._elsewhere(path, at(inside, path[depth:]), value)
                same = part in inside and _same(at(inside, path[depth:]), value)
                return self.text if same else self._added(outer, place, path[depth:], value)
            assert place.keys is not None
            outer.append((place, part))
            place, data = place.keys[part][2], inside[part]
        if value is None:
            return self._without(outer)
        return self.text if _same(data, value) else self._with(*outer[-1], value)

    def _elsewhere(self, path: Path, now: Json, value: Json) -> str:
        """A key of a section that only repeats another one: as it is, or refused."""
        if _same(now, value):
            return self.text
        what = f"{'.'.join(path)} stands in a section that repeats another, whose keys would change too."
        raise PlannerError.of(
            "W05", what, "Write its keys out, or leave --like out.", where=self.name
        )

    def _with(self, mapping: _Place, part: str, value: Json) -> str:
        """A value in the place of another one."""
        assert mapping.keys is not None
        _, colon, place = mapping.keys[part]
        before = self.text[place.start : place.end]
        one_line = bool(before) and place.flow
        if isinstance(value, dict) and value and not mapping.flow and not one_line:
            tail = _SPACES_AND_NOTE.match(self.text, colon)
            assert tail is not None
            inner = self._block(value, self._column(mapping) + self._step())
            return self._spliced(tail.end(), max(place.end, tail.end()), self.line + inner)
        if one_line or not before:
            gap = "" if before or self.text[place.start - 1].isspace() else " "
            return self._spliced(place.start, place.end, gap + self.shown(value, before))
        note = self.text[colon : place.start].splitlines()[0].rstrip()
        note = note if note.lstrip().startswith("#") else ""
        return self._spliced(colon, place.end, f" {self.shown(value)}{note}")

    def _added(
        self, outer: list[tuple[_Place, str]], place: _Place, path: Path, value: Json
    ) -> str:
        """A value that is nowhere, at the end of its section."""
        if place.keys is None:
            return self._with(*outer[-1], _nested(path, value))
        item = _nested(path[1:], value)
        if place.flow:
            return self._in_braces(place, path[0], item)
        end = max(known[2].end for known in place.keys.values())
        stop = self.text.find("\n", end)
        line = self._block({path[0]: item}, self._column(place))
        if stop < 0:
            return f"{self.text}{self.line}{line}{self.line}"
        return self._spliced(stop + 1, stop + 1, line + self.line)

    def _in_braces(self, place: _Place, name: str, value: Json) -> str:
        """A key behind the last one of a mapping in braces, on its own line where they have lines of their own."""
        item = f"{self.key(name)}: {self.shown(value)}"
        if not place.keys:
            return self._spliced(place.start, place.end, "{" + item + "}")
        start, _, last = list(place.keys.values())[-1]
        line = self.text.rfind("\n", 0, start)
        lead = self.text[line + 1 : start]
        own = line > place.start and not lead.strip()
        return self._spliced(last.end, last.end, f",{self.line + lead if own else ' '}{item}")

    def _without(self, outer: list[tuple[_Place, str]]) -> str:
        """A key gone, and the sections that it was the last of."""
        while len(outer) > 1 and len(outer[-1][0].keys or ()) == 1:
            outer = outer[:-1]
        mapping, part = outer[-1]
        assert mapping.keys is not None
        start, _, place = mapping.keys[part]
        if not mapping.flow:
            stop = self.text.find("\n", place.end) + 1
            return self._spliced(self.text.rfind("\n", 0, start) + 1, stop or len(self.text), "")
        names = list(mapping.keys)
        at = names.index(part)
        if at:
            return self._spliced(mapping.keys[names[at - 1]][2].end, place.end, "")
        return self._spliced(start, mapping.keys[names[1]][0] if names[1:] else place.end, "")

    def _block(self, value: dict[str, Json], indent: int) -> str:
        text = yaml_text(value, indent, self.shown).rstrip("\n")
        return text.replace("\n", self.line)

    def _column(self, mapping: _Place) -> int:
        first = min(start for start, _, _ in (mapping.keys or {}).values())
        return first - self.text.rfind("\n", 0, first) - 1

    def _step(self) -> int:
        values = [known[2] for known in (self.root.keys or {}).values()]
        return next((self._column(v) for v in values if v.keys and not v.flow), 2)

    def _spliced(self, start: int, end: int, new: str) -> str:
        return self.text[:start] + new + self.text[end:]


class _YamlFile(_File):
    """Places from the events of the parser, which know aliases; block mappings end with their last value."""

    def parsed(self) -> tuple[Json, _Place]:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            data = YAML(typ="safe", pure=True).load(self.text)
            events = list(YAML(typ="safe", pure=True).parse(self.text))
        except (YAMLError, ValueError) as error:
            first = (str(error).splitlines() or ["no YAML"])[0]
            raise PlannerError.of("W05", f"is not YAML: {first}", where=self.name) from None
        if not isinstance(data, dict):
            return None, _Place(0, 0)
        inside = (e for e in events if _kind(e) not in ("StreamStart", "DocumentStart"))
        return data, self._place(next(inside), inside, 0)

    def shown(self, value: Json, before: str = "") -> str:
        if isinstance(value, bool) or value is None:
            words = re.findall(r":[ \t]+(True|true|TRUE|False|false|FALSE)\b", self.text)
            return _like(
                flow(value),
                before if before.lower() in ("true", "false", "null") else (words or [""])[0],
            )
        if isinstance(value, str) and before[:1] in ("'", '"'):
            return flow(value, before[0])
        if isinstance(value, list):
            return "[" + ", ".join(map(self.shown, value)) + "]"
        if isinstance(value, dict):
            return (
                "{" + ", ".join(f"{self.key(k)}: {self.shown(v)}" for k, v in value.items()) + "}"
            )
        return flow(value)

    def key(self, name: str) -> str:
        return name if _PLAIN.fullmatch(name) else flow(name)

    def _place(self, event: _Event, events: Iterator[_Event], colon: int) -> _Place:
        kind, start, end = _kind(event), event.start_mark.index, event.end_mark.index
        if kind == "Alias":
            return _Place(start, end, alias=True)
        start = _PROPERTIES.match(self.text, start, end).end()  # type: ignore[union-attr]
        if kind == "Scalar":
            if not self.text[start:end].strip():
                return _Place(colon, colon)
            end = start + len(self.text[start:end].rstrip())
            return _Place(start, end, flow=event.style not in ("|", ">"))
        keys: dict[str, tuple[int, int, _Place]] = {}
        while not _kind(inner := next(events)).endswith("End"):
            key = self._place(inner, events, end)
            end = key.end
            if kind == "MappingStart":
                after = self.text.index(":", key.end) + 1
                keys[inner.value] = key.start, after, self._place(next(events), events, after)
                end = keys[inner.value][2].end
        if event.flow_style:
            end = inner.end_mark.index
        return _Place(
            start, end, bool(event.flow_style), keys=keys if kind == "MappingStart" else None
        )


class _JsonFile(_File):
    """JSON: everything is in braces."""

    def parsed(self) -> tuple[Json, _Place]:
        try:
            return json.loads(self.text), self._place(self._next(0))
        except (ValueError, IndexError) as error:
            raise PlannerError.of("W05", f"is not JSON: {error}.", where=self.name) from None

    def shown(self, value: Json, before: str = "") -> str:
        del before
        return json.dumps(value, ensure_ascii=False)

    def key(self, name: str) -> str:
        return self.shown(name)

    def _next(self, at: int) -> int:
        return _SPACE.match(self.text, at).end()  # type: ignore[union-attr]

    def _place(self, start: int) -> _Place:
        read = json.JSONDecoder().raw_decode
        end = read(self.text, start)[1]
        if self.text[start] != "{":
            return _Place(start, end)
        keys: dict[str, tuple[int, int, _Place]] = {}
        at = self._next(start + 1)
        while self.text[at] != "}":
            name, after = read(self.text, at)
            colon = self.text.index(":", after) + 1
            keys[name] = at, colon, self._place(self._next(colon))
            at = self._next(keys[name][2].end)
            at = self._next(at + 1) if self.text[at] == "," else at
        return _Place(start, end, keys=keys)


def _kind(event: object) -> str:
    return type(event).__name__.removesuffix("Event")


def _like(word: str, before: str) -> str:
    """A word in the letters of another: ``true`` like ``False`` is ``True``."""
    return word.upper() if before.isupper() else word.capitalize() if before[:1].isupper() else word


def _nested(path: Path, value: Json) -> Json:
    for part in reversed(path):
        value = {part: value}
    return value


def _same(now: Json, value: Json) -> bool:
    """Whether two values mean the same; words of YAML 1.1 are booleans, and a number is none."""
    if isinstance(value, bool):
        now = _WORDS.get(now.lower(), now) if isinstance(now, str) else now
        return isinstance(now, bool) and now == value
    if isinstance(now, list) and isinstance(value, list):
        return len(now) == len(value) and all(map(_same, now, value))
    return bool(now == value) and not isinstance(now, bool)
