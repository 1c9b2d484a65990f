"""Keys of a TOML file set where they stand, in their section; lists may run over lines, and comments stay."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

from planner.errors import PlannerError
from planner.export.torchtitan import toml_text
from planner.units import Json

DEFAULTS: dict[str, Json] = {
    "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "fsdp_reshard_after_forward": "default",
    "tensor_parallel_degree": 1, "context_parallel_degree": 1, "pipeline_parallel_degree": 1,
    "expert_parallel_degree": 1, "expert_tensor_parallel_degree": 1, "local_batch_size": 8,
    "pipeline_parallel_microbatch_size": 1, "pipeline_parallel_schedule": "1F1B", "enable_cpu_offload": False,
    "mode": "selective", "selective_ac_option": "2",
}  # fmt: skip
"""What a key means that a job file does not have (torchtitan 0.2.2)."""
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'', re.DOTALL
)


def parsed(text: str, name: str) -> dict[str, Json]:
    """What a file says.

    Raises:
        PlannerError: no TOML (W05).
    """
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise PlannerError.of("W05", f"is not TOML: {error}.", where=name) from None


def edited(text: str, sections: Mapping[str, Mapping[str, Json]], name: str) -> str:
    """A file with values replaced, added at the end of their section, or taken out where they are None.

    Raises:
        PlannerError: no TOML, or a section that is written in another way than under its own header (W05).
    """
    wanted = parsed(text, name)
    for section, keys in sections.items():
        now = wanted.get(section, {})
        for key, value in keys.items():
            if now.get(key, DEFAULTS.get(key)) == (DEFAULTS.get(key) if value is None else value):
                continue
            text = _with(text, section, key, value)
            wanted = {**wanted, section: {**wanted.get(section, {}), key: value}}
            wanted[section] = {k: v for k, v in wanted[section].items() if v is not None}
    if parsed(text, name) != wanted:
        what = f"says {' and '.join(sections)} in other ways than [section] and key = value."
        raise PlannerError.of("W05", what, "Write them so, or leave --like out.", where=name)
    return text


def _with(text: str, section: str, key: str, value: Json) -> str:
    line = "\r\n" if "\r\n" in text else "\n"
    header = re.search(rf"^[ \t]*\[\s*{re.escape(section)}\s*\][^\n]*\n?", text, re.MULTILINE)
    if header is None:
        gap = "" if text.endswith("\n") else line
        return f"{text}{gap}{line}[{section}]{line}{key} = {toml_text(value)}{line}"
    following = re.compile(r"^[ \t]*\[[^\n]*\]", re.MULTILINE).search(text, header.end())
    stop = following.start() if following else len(text)
    found = re.compile(rf"^[ \t]*[\"']?{re.escape(key)}[\"']?[ \t]*=[ \t]*", re.MULTILINE).search(
        text, header.end(), stop
    )
    if found is not None:
        end = _end(text, found.end())
        if value is not None:
            return text[: found.end()] + toml_text(value) + text[end:]
        after = text.find("\n", end) + 1
        return text[: found.start()] + text[after or len(text) :]
    body = text[header.end() : stop].rstrip()
    at = header.end() + len(body) if body else header.end() - len(line) * header[0].endswith("\n")
    return f"{text[:at]}{line}{key} = {toml_text(value)}{text[at:]}"


def _end(text: str, at: int) -> int:
    """Where a value ends that begins at a place: brackets may run over lines, with comments in them."""
    depth, last = 0, at
    while at < len(text):
        if string := _STRING.match(text, at):
            at = last = string.end()
            continue
        letter = text[at]
        if letter == "#":
            stop = text.find("\n", at)
            if depth == 0 or stop < 0:
                return last
            at = stop
            continue
        if depth == 0 and letter in "\r\n":
            return last
        depth += (letter in "[{") - (letter in "]}")
        at += 1
        last = last if letter.isspace() else at
    return last
