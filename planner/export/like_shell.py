"""Options of a launch script replaced where they stand; variables that hold them are changed instead of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from planner.errors import PlannerError
from planner.units import Json

OTHER_WAYS = (
    "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank", "--num-layer-list",
    "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-modules",
    "--recompute-activations", "--num-distributed-optimizer-instances", "--moe-token-dispatcher-type",
    "--moe-flex-dispatcher-backend", "--pipeline-model-parallel-layout", "--optimizer-cpu-offload",
)  # fmt: skip
"""Options that say what a plan decides, and must go where the plan says otherwise."""
NOT_OURS = frozenset({"--bf16", "--fp16", "--fp8-format", "--fp8-recipe", "--optimizer", "--exp-avg-dtype",
                      "--exp-avg-sq-dtype", "--cross-entropy-loss-fusion"})  # fmt: skip
"""Options of the recipe, which a plan keeps."""
DEFAULTS: dict[str, Json] = {
    "--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 1, "--context-parallel-size": 1,
    "--expert-model-parallel-size": 1, "--moe-token-dispatcher-type": "allgather",
}  # fmt: skip
"""What an option means that a script does not have (Megatron-LM 0.19.2)."""
ANCHOR = "--tensor-model-parallel-size"
_VARIABLE = re.compile(r"^\$\{?(\w+)\}?$")


def edited(text: str, pairs: Sequence[tuple[str, Json]], name: str) -> str:
    """A script with the options of a plan.

    Raises:
        PlannerError: no option of the plan stands in it, so there is no place for the others (W05).
    """
    wanted = {option: value for option, value in pairs if option not in NOT_OURS}
    if not _found(text, ANCHOR):
        what = f"has no {ANCHOR} beside which the plan's options could stand."
        raise PlannerError.of("W05", what, where=name)
    missing = []
    for option in dict.fromkeys((*wanted, *OTHER_WAYS)):
        value = wanted.get(option)
        gone = value is None or value is False
        if _found(text, option):
            text = _without(text, option) if gone else _with(text, option, value)
        elif not gone and value != DEFAULTS.get(option):
            missing.append((option, value))
    for option, value in reversed(missing):
        match = _found(text, ANCHOR)
        assert match is not None
        text = (
            text[: match.end()]
            + f" {option}{_shown(text, match.end(), value)}"
            + text[match.end() :]
        )
    return text


def _found(text: str, option: str) -> re.Match[str] | None:
    """The first place of an option outside comments, with the values behind it."""
    word = r"(?:'[^']*'|\$\(\([^)]*\)\)|[^\s\\\"')-][^\s\\\"')]*)"
    pattern = re.compile(rf"(?<![\w-]){re.escape(option)}(?![\w-])(?P<value>(?:[ \t=]+{word})*)")
    for match in pattern.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not re.search(r"(^|\s)#", line):
            return match
    return None


def _with(text: str, option: str, value: Json) -> str:
    match = _found(text, option)
    assert match is not None
    said = [word.strip("'\"") for word in match["value"].replace("=", " ").split()]
    words = (
        [] if value is True else [str(v) for v in (value if isinstance(value, list) else [value])]
    )
    if said == words:
        return text
    held = _VARIABLE.match(match["value"].strip(" =\t"))
    if held and len(words) == 1:
        assigned = re.compile(
            rf"^([ \t]*(?:export[ \t]+|readonly[ \t]+)?{held[1]}=(?:['\"]?\$\{{\w+:?[-=]|['\"]?))"
            r"(\w+)(\}?['\"]?[ \t]*(?:[#;][^\n]*)?\r?)$",
            re.MULTILINE,
        )
        if assigned.search(text):
            return assigned.sub(lambda m: f"{m[1]}{words[0]}{m[3]}", text)
    return text[: match.start()] + option + _shown(text, match.start(), value) + text[match.end() :]


def _without(text: str, option: str) -> str:
    """The option and its values gone, and its line too where nothing else stands on it."""
    match = _found(text, option)
    assert match is not None
    start, end = match.span()
    left = text.rfind("\n", 0, start) + 1
    right = text.find("\n", end)
    right = len(text) if right < 0 else right
    rest = text[left:start] + text[end:right]
    if not rest.strip(" \t\\"):
        return text[:left] + text[right + 1 :]
    return (
        text[:start].rstrip(" \t") + text[end:]
        if text[start - 1 : start] in " \t"
        else text[:start] + text[end:]
    )


def _shown(text: str, place: int, value: Json) -> str:
    """A value as it is written at a place: quoted, but not inside a string that a script takes apart itself."""
    if value is True:
        return ""
    inside = len(re.findall(r'(?<!\\)"', _code(text[:place]))) % 2 == 1
    words = [str(v) for v in (value if isinstance(value, list) else [value])]
    return "".join(f" {word if inside else shlex.quote(word)}" for word in words)


def _code(text: str) -> str:
    """A script without its comments, whose quotes end nothing."""
    return re.sub(r"(^|\s)#[^\n]*", r"\1", text)
