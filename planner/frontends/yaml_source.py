"""A person's YAML file as plain data that still knows its lines and columns.

The round-trip loader is slow but knows positions, which error messages need; packaged files go through
:func:`load_packaged`, which is quick and knows none.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

from planner.errors import PlannerError
from planner.units import Json

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of a document to one value."""

MAX_BYTES = 4_000_000
"""Descriptions are a few kilobytes; anything larger is some other file."""
MAX_NODES = 100_000
"""Values in one document, aliases expanded."""


@dataclass(frozen=True, slots=True)
class YamlSource:
    """Plain data, and where each key and value of it stands."""

    path: str
    data: Json
    """Dicts, lists, strings, numbers, booleans and None only."""
    positions: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Line and column of every key or list item, counted from 1."""
    values: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Line and column of every value, counted from 1."""

    def where(self, path: KeyPath = (), *, value: bool = False) -> str:
        """``file:line:column`` of a key (or of its value); of the nearest ancestor that has a position otherwise."""
        table = self.values if value else self.positions
        for length in range(len(path), -1, -1):
            if path[:length] in table:
                line, column = table[path[:length]]
                return f"{self.path}:{line}:{column}"
        return f"{self.path}:1:1" if self.positions else self.path

    def under(self, path: KeyPath) -> YamlSource:
        """What stands at a place, as a source of its own whose positions are those of the file."""
        data = self.data
        for part in path:
            data = data[part]
        tables = (
            {key[len(path) :]: at for key, at in table.items() if key[: len(path)] == path}
            for table in (self.positions, self.values)
        )
        return YamlSource(self.path, data, *tables)


def load_yaml(path: Path) -> YamlSource:
    """A user's file with positions.

    Raises:
        PlannerError: Y02 for a key given twice, Y03 for anything else that is no readable YAML.
    """
    return parse_yaml(_text(path), str(path))


def parse_yaml(text: str, name: str) -> YamlSource:
    """YAML text with positions; ``name`` is the file's name in messages."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    loader = YAML(typ="rt")
    loader.allow_duplicate_keys = False
    try:
        tree = loader.load(text)
    except DuplicateKeyError as error:
        raise _duplicate(text, name, error) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = error.problem or error.context or "cannot be read"
        raise PlannerError.of("Y03", f"this is not YAML: {what}.", where=where) from None
    except (YAMLError, ValueError, TypeError, RecursionError, AttributeError, KeyError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise PlannerError.of("Y03", f"this is not YAML: {first}", where=name) from None
    source = YamlSource(name, None, {}, {})
    try:
        data = _plain(tree, (), source)
    except _TooLargeError:
        raise PlannerError.of("Y03", "the document is too large.", where=name) from None
    except RecursionError:
        raise PlannerError.of("Y03", "the document contains itself.", where=name) from None
    return YamlSource(name, data, source.positions, source.values)


def load_packaged(path: Path) -> Json:
    """A packaged file, quickly: plain data without positions; it is read once in a process, unless it changes."""
    return deepcopy(_packaged(path, path.stat().st_mtime_ns))


@cache
def _packaged(path: Path, _changed: int) -> Json:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def dump_yaml(data: Json) -> str:
    """Plain data as block-style YAML that reads back equal."""
    from io import StringIO

    from ruamel.yaml import YAML

    dumper = YAML(typ="safe", pure=True)
    dumper.default_flow_style = False
    dumper.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    dumper.width = 100
    out = StringIO()
    dumper.dump(data, out)
    return out.getvalue()


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PlannerError.of(
                "Y03", "this file is too large for a description.", where=str(path)
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PlannerError.of("Y03", "this file is not text.", where=str(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlannerError.of(
            "Y03", f"this file cannot be read: {reason}.", where=str(path)
        ) from None


def _duplicate(text: str, name: str, error: Exception) -> PlannerError:
    """The message of error 9: both places of a key given twice."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return PlannerError.of("Y02", "a key is given twice.", where=name)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    key = line[mark.column :].split(":", 1)[0].strip().strip("'\"")
    start = getattr(error, "context_mark", None)
    first = start.line if start is not None else 0
    for number in range(first, mark.line):
        if lines[number].strip().lstrip("{- ").split(":", 1)[0].strip("'\" ") == key:
            what = f"key '{key}' is given twice (first on line {number + 1})."
            break
    else:
        what = f"key '{key}' is given twice."
    return PlannerError.of("Y02", what, where=f"{name}:{mark.line + 1}:{mark.column + 1}")


def _plain(node: Json, path: KeyPath, source: YamlSource) -> Json:
    """Round-trip nodes as plain Python values, their positions written down on the way."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    if isinstance(node, CommentedMap):
        return _plain_map(node, path, source)
    if isinstance(node, CommentedSeq | list):
        items = []
        for index, item in enumerate(node):
            here = (*path, index)
            at = node.lc.item(index) if isinstance(node, CommentedSeq) else None
            _note(source, here, at, at)
            items.append(_plain(item, here, source))
        return items
    return _scalar(node)


def _plain_map(node: Json, path: KeyPath, source: YamlSource) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for key, item in node.items():
        here = (*path, str(key))
        local = key in (node.lc.data or {})
        _note(
            source, here, node.lc.key(key) if local else None, node.lc.value(key) if local else None
        )
        out[str(key)] = _plain(item, here, source)
    return out


class _TooLargeError(Exception):
    """More values than a description can have (aliases of aliases, for one)."""


def _note(
    source: YamlSource, path: KeyPath, key: tuple[int, int] | None, value: tuple[int, int] | None
) -> None:
    if len(source.positions) > MAX_NODES or len(path) > 100:
        raise _TooLargeError
    for table, at in ((source.positions, key), (source.values, value)):
        if at is not None and isinstance(table, dict):
            table[path] = (at[0] + 1, at[1] + 1)


def _scalar(node: Json) -> Json:
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, int):
        return bool(node) if type(node).__name__ == "ScalarBoolean" else int(node)
    if isinstance(node, float):
        return float(node)
    return str(node)
