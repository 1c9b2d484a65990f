"""``--set`` says what is so: keys of a layout for ``price``, everything else about the model.

The names cannot be confused: a layout's keys are a closed list, and no model file has one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cli.options import is_number

if TYPE_CHECKING:
    from planner.errors import Fault

LAYOUT = frozenset({
    "dp", "tp", "pp", "cp", "ep", "etp", "vpp", "mbs", "micro-batch", "sharding", "zero", "shard-group", "offload",
    "recompute", "sp", "sequence-parallel", "schedule", "order", "kv-heads", "stage-layers", "full-layers",
    "selective-layers", "recompute-unit", "pools",
})  # fmt: skip
"""Keys of a layout, as the planner's pins have them too."""


def is_layout(key: str) -> bool:
    """Whether a key says something about the layout; capitals and underscores do not matter."""
    return _plain(key) in LAYOUT


def _plain(key: str) -> str:
    return key.lower().replace("_", "-")


def divided(pairs: Mapping[str, str]) -> tuple[dict[str, int | str], dict[str, str]]:
    """Settings divided into the layout and the model's keys.

    Raises:
        PlannerError: a key is so near to a layout's key that it is a slip (A04).
    """
    from planner.errors import Fault, PlannerError

    layout: dict[str, int | str] = {}
    model: dict[str, str] = {}
    faults = []
    for key, value in pairs.items():
        if is_layout(key):
            layout[key] = int(value) if is_number(value) else value
        elif slip := _slip(key):
            faults.append(
                Fault(
                    "A04", f"no layout key {key!r} in --set {key}={value}.", (f"Nearest: {slip}.",)
                )
            )
        else:
            model[key] = value
    if faults:
        raise PlannerError(*faults)
    return layout, model


def model_only(pairs: Mapping[str, str]) -> dict[str, str]:
    """Settings of a command that chooses the layout itself.

    Raises:
        PlannerError: a key belongs to a layout (A04).
    """
    from planner.errors import Fault, PlannerError

    layout, model = divided(pairs)
    if layout:
        raise PlannerError(
            *(
                Fault(
                    "A04",
                    f"--set {key}={pairs[key]} is a layout, and this command chooses the layout.",
                    (
                        f"To fix it: --pin {key}={pairs[key]}",
                        "To price a whole layout: shardwright price",
                    ),
                )
                for key in layout
            )
        )
    return model


def _slip(key: str) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(_plain(key), sorted(LAYOUT), n=1, cutoff=0.75)), "")


def in_words_of_set(faults: Iterable[Fault]) -> list[Fault]:
    """Faults of a layout where it is stated with ``--set``: what speaks of pins elsewhere speaks of that.

    Pins on operators, whose keys have dots, stay what they are.
    """
    import re

    def said(text: str) -> str:
        text = re.sub(r"--pin (?=[\w-]+(?:[<>=]|$))", "--set ", text)
        return re.sub(r"pin '(?=[\w-]+(?:[ <>=']))", "--set '", text)

    return [
        replace(fault, what=said(fault.what), fix=tuple(map(said, fault.fix))) for fault in faults
    ]
