"""Megatron-Bridge: overrides ``section.key=value`` of a recipe, in a script or in the JSON that we export.

The keys are Megatron-LM's arguments under a section; the recipe, which names the model, is Python and not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from planner.frontends.launch import megatron
from planner.frontends.launch.found import TrainerFile
from planner.frontends.launch.shell import plain, variables
from planner.units import Json

_OVERRIDE = re.compile(
    r"\+{0,2}(?:(?:model|dataset|train|ddp|dist|optimizer)\.(\w+)|(mixed_precision))=(.*)",
    re.DOTALL,
)
_WORD = re.compile(r"""(?:[^\s'"()]|'[^']*'|"[^"]*")+""")


def words_of(text: str) -> list[str]:
    """Overrides in a script, quotes gone.

    >>> words_of("run.py --recipe r model.context_parallel_size=2 'mixed_precision=bf16_mixed'")
    ['model.context_parallel_size=2', 'mixed_precision=bf16_mixed']
    """
    words = (re.sub(r"""['"]""", "", word) for word in _WORD.findall(plain(text)))
    return [word for word in words if _OVERRIDE.fullmatch(word)]


def read_script(path: str, text: str) -> TrainerFile:
    """A script with overrides, and what else it says of nodes."""
    return read(path, words_of(text), variables(text))


def read_json(path: str, data: Mapping[str, Json]) -> TrainerFile:
    """The overrides that ``export --to megatron-bridge`` writes beside the shell file."""
    words = data.get("overrides")
    world = data.get("world_size")
    known = {"WORLD_SIZE": str(world)} if world else {}
    return read(path, map(str, words if isinstance(words, list) else ()), known)


def read(path: str, words: Iterable[str], known: Mapping[str, str]) -> TrainerFile:
    """Overrides as Megatron-LM's arguments.

    Raises:
        PlannerError: values that are no numbers (W03).
    """
    values: dict[str, Json] = {}
    for word in words:
        found = _OVERRIDE.fullmatch(word)
        if found is None:
            continue
        key, value = found[1] or found[2], _value(found[3])
        values |= _precision(str(value)) if key == "mixed_precision" else {key: value}
    read = megatron.read(path, values, known)
    note = (
        "what no override sets is the recipe's, which is not read; priced with Megatron's defaults"
    )
    return replace(read, program="megatron-bridge", notes=(*read.notes, note))


def _value(text: str) -> Json:
    bare = text.strip("'\"")
    if bare.startswith("["):
        return [part.strip() for part in bare.strip("[]").split(",") if part.strip()]
    return None if bare in ("null", "None", "~") else bare


def _precision(word: str) -> dict[str, Json]:
    """Arguments that mean a recipe of precision, by its name.

    >>> _precision("bf16_with_fp8_current_scaling_mixed"), _precision("bf16_mixed")
    ({'fp8-format': 'hybrid'}, {'bf16': True})
    """
    if "fp8" in word:
        return {"fp8-format": "hybrid"}
    return {name: True for name in ("bf16", "fp16") if word.startswith(name)}
