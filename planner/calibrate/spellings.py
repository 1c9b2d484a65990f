"""Words of rows for what our layouts have names for: as sources spell chips, shardings, precisions and recompute."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from planner.recipe import Precision
from planner.units import Json

Again: TypeAlias = Literal["none", "selective", "full"]

PRECISION_WORDS: tuple[tuple[str, Precision], ...] = (
    ("fp4", "fp4"),
    ("fp8", "fp8"),
    ("bf16", "bf16"),
    ("bfloat16", "bf16"),
    ("fp16", "fp16"),
    ("float16", "fp16"),
    ("half", "fp16"),
    ("amp", "fp16"),
    ("fp32", "fp32"),
    ("float32", "fp32"),
)
"""First word found in what the row says; the precision that we price."""
_MAKERS = re.compile(r"\b(?:nvidia|amd|huawei|google|intel|instinct|tesla|geforce|gpu|hbm\w*)\b-?")
_STAGE = re.compile(r"(?:zero|stage)[ _-]*(?:stage)?[ _-]*([0-3])\b|^([0-3])(?:\.0)?$")
_STAGES: tuple[tuple[str, int], ...] = (
    ("shard_grad_op", 2),
    ("no_shard", 0),
    ("full_shard", 3),
    ("hybrid_shard", 3),
    ("fsdp", 3),
    ("distributed optimizer", 1),
)
"""State sharding by other names: FSDP's strategies, Megatron's argument."""
_NOTHING = frozenset({"no", "off", "false", "none", "disabled", "without"})
_WHOLE = re.compile(
    r"^(?:full|all|every|whole|yes|on|true|block|uniform|(?:activation |gradient )?checkpoint)"
)


def text(value: Json) -> Json:
    """What stands for words in a row: a flag as yes or no, a list joined, a number as it is written.

    >>> text(True), text(["norm", "act"]), text(None), text(2)
    ('yes', 'norm, act', None, '2')
    """
    if isinstance(value, bool):
        return "yes" if value else "none"
    if isinstance(value, list):
        return ", ".join(str(text(each)) for each in value)
    return str(value) if isinstance(value, int | float) else value


def sharding_stage(value: Json) -> Json:
    """The stage of state sharding that a word means; what means none stays as it is.

    >>> sharding_stage("3"), sharding_stage("ZeRO-2"), sharding_stage("FULL_SHARD"), sharding_stage("auto")
    (3, 2, 3, 'auto')
    """
    if not isinstance(value, str):
        return value
    word = value.lower().strip()
    found = _STAGE.search(word)
    if found:
        return int(found[1] or found[2])
    return next((stage for name, stage in _STAGES if name in word), value)


def plain_chip(name: str) -> str:
    """A chip's name without its maker, in small letters and with dashes.

    >>> plain_chip("NVIDIA H100 80GB HBM3"), plain_chip("TPU v4"), plain_chip("a100_80g")
    ('h100-80gb', 'tpu-v4', 'a100-80gb')
    """
    joined = re.sub(r"[\s_]+", "-", name.strip().lower())
    return re.sub(r"(\d)g$", r"\1gb", _MAKERS.sub("", joined).strip("-"))


def recomputed(word: str) -> Again | None:
    """What runs again: all of a layer, nothing, or a part of it; None where only a guess says which part.

    >>> recomputed("Full"), recomputed("off"), recomputed("activation checkpointing"), recomputed("moe_act")
    ('full', 'none', 'full', None)
    """
    word = word.lower().strip()
    if word == "selective":
        return "selective"
    if word in _NOTHING:
        return "none"
    return "full" if _WHOLE.match(word) else None
