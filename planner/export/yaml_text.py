"""Plain data as YAML text, in the order in which it was written and with short lists on one line."""

from __future__ import annotations

from collections.abc import Callable

from planner.units import Json


def flow(value: Json, quote: str = "") -> str:
    """A value on one line; text between a quote of one's choice, if any.

    >>> flow([True, None, "no"]), flow("it's", "'")
    ('[true, null, "no"]', "'it''s'")
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str):
        return repr(value)
    return (
        "'" + value.replace("'", "''") + "'" if quote == "'" else _quoted(value, always=bool(quote))
    )


def yaml_text(value: dict[str, Json], indent: int = 0, shown: Callable[[Json], str] = flow) -> str:
    """Block-style YAML of nested dicts; lists and scalars stand behind their key, as ``shown`` writes them.

    >>> print(yaml_text({"a": {"b": [1, "x"], "c": True}, "d": None}), end="")
    a:
      b: [1, "x"]
      c: true
    d: null
    """
    lines = []
    for key, item in value.items():
        pad = " " * indent
        if isinstance(item, dict) and item:
            lines.append(f"{pad}{key}:\n{yaml_text(item, indent + 2, shown)}")
        else:
            lines.append(f"{pad}{key}: {shown(item)}\n")
    return "".join(lines)


def _quoted(text: str, *, always: bool = False) -> str:
    words = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
    plain = text.replace("_", "a").replace(".", "a").replace("-", "a").isalnum()
    if not always and plain and text[0].isalpha() and text.lower() not in words and len(text) > 1:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
