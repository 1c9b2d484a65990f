"""Plain data as YAML text, in the order in which it was written and with short lists on one line."""

from __future__ import annotations

from planner.units import Json


def yaml_text(value: dict[str, Json], indent: int = 0) -> str:
    """Block-style YAML of nested dicts; lists and scalars stand behind their key.

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
            lines.append(f"{pad}{key}:\n{yaml_text(item, indent + 2)}")
        else:
            lines.append(f"{pad}{key}: {_flow(item)}\n")
    return "".join(lines)


def _flow(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    words = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
    plain = text.replace("_", "a").replace(".", "a").replace("-", "a").isalnum()
    if plain and text[0].isalpha() and text.lower() not in words and len(text) > 1:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
