"""``--set`` says what is so: keys of a layout for ``price``, everything else about the model.

The names cannot be confused: a layout's keys are a closed list, and no model file has one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

LAYOUT = {
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
    "etp": "etp",
    "vpp": "vpp",
    "mbs": "micro_batch",
    "micro_batch": "micro_batch",
    "sharding": "sharding",
    "zero": "sharding",
    "shard_group": "shard_group",
    "recompute": "recompute",
    "sp": "sequence_parallel",
    "sequence_parallel": "sequence_parallel",
    "schedule": "schedule",
    "order": "order",
    "kv_heads": "kv-heads",
}
"""Keys of a layout as people write them, and as the planner calls them."""


def layout_key(key: str) -> str | None:
    """The planner's name of a layout's key, or None for a key of the model."""
    return LAYOUT.get(key.lower().replace("-", "_"))


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
        name = layout_key(key)
        if name is not None:
            layout[name] = int(value) if value.isdecimal() else value
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
    wrong = [key for key in pairs if layout_key(key)]
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
                for key in wrong
            )
        )
    return model


def _slip(key: str) -> str:
    from difflib import get_close_matches

    return next(
        iter(get_close_matches(key.lower().replace("-", "_"), LAYOUT, n=1, cutoff=0.75)), ""
    )
