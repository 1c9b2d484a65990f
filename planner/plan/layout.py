"""The layout of a plan in the words in which a person states one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from planner.plan.schema import Degrees

DIVISION = ("stage-layers", "full-layers", "selective-layers", "recompute-unit")
"""Sums, as ``7+8+8+7``: of every chunk of the model in its order the layers, those computed again as a whole, and those
that follow and are computed again in part. And how many layers are computed again together, where all are."""

FOLLOWS_CHIPS = ("dp", "shard-group", "order")
"""Keys of a layout that another cluster decides anew."""

SEATS = "pools"
"""Which pools the stages stand on, first to last, with the stages of each: ``h100-sxm:2+a100-sxm-80gb:1``."""


def layout_of(degrees: Degrees, pins: Iterable[str] = ()) -> dict[str, int | str]:
    """The layout of a plan or of an alternative, in the words in which it can be stated again.

    Args:
        degrees: all of it is stated, so that nothing takes a trainer's usual value.
        pins: of the plan; those that are no column are kept.
    """
    layout: dict[str, int | str] = {
        name: getattr(degrees, name) for name in ("dp", "tp", "pp", "cp", "ep", "etp", "vpp")
    }
    layout |= {
        "mbs": degrees.micro_batch,
        "zero": degrees.sharding,
        "shard-group": degrees.shard_group,
        "recompute": "none" if degrees.recompute == "mixed" else degrees.recompute,
        "sp": "on" if degrees.sequence_parallel else "off",
        "schedule": degrees.schedule,
        "order": "-".join(degrees.order),
    }
    if degrees.offload != "none":
        layout["offload"] = degrees.offload
    if degrees.pools:
        seats = ((name, len(list(stages))) for name, stages in groupby(degrees.pools))
        layout[SEATS] = "+".join(f"{name}:{count}" for name, count in seats)
    copies = any(pin.startswith("kv-heads") for pin in pins)
    return layout | _division(degrees) | ({"kv-heads": "copy"} if copies else {})


def restated(
    layout: Mapping[str, int | str], stated: Mapping[str, int | str]
) -> dict[str, int | str]:
    """A plan's layout with some of it stated anew: what followed from the old values follows from the new ones.

    Args:
        layout: all of it, as :func:`layout_of` gives it.
        stated: what is to be otherwise.

    >>> restated({"dp": 4, "cp": 1, "tp": 2, "pp": 1, "shard-group": 4, "sp": "on"}, {"tp": 8})
    {'cp': 1, 'pp': 1, 'tp': 8}
    """
    kept = dict(layout)
    if kept.get("shard-group") == int(kept.get("dp", 1)) * int(kept.get("cp", 1)):
        kept.pop("shard-group")
    follows = {
        "tp": ("dp", "sp"),
        "cp": ("dp",),
        "pp": ("dp", "vpp", "schedule", SEATS, *DIVISION),
        SEATS: ("dp", "pp", *DIVISION),
        "vpp": ("schedule", *DIVISION),
        "recompute": DIVISION,
    }
    for key, others in follows.items():
        if stated.get(key, layout.get(key)) != layout.get(key):
            for other in others:
                kept.pop(other, None)
    return {key: value for key, value in kept.items() if key not in stated} | dict(stated)


def elsewhere(layout: Mapping[str, int | str]) -> dict[str, int | str]:
    """A layout for other chips, whose number and wiring decide some of it anew."""
    return {key: value for key, value in layout.items() if key not in FOLLOWS_CHIPS}


def plain(key: str) -> str:
    """A key of a layout as it is compared: capitals and underscores do not matter."""
    return key.lower().replace("_", "-")


def _division(degrees: Degrees) -> dict[str, int | str]:
    """How layers are divided, where that is not the even way."""
    unit = (degrees.recompute_unit,) if degrees.recompute_unit > 1 else ()
    counts = (degrees.layers, degrees.full_layers, degrees.selective_layers, unit)
    return {
        word: "+".join(map(str, numbers))
        for word, numbers in zip(DIVISION, counts, strict=True)
        if numbers
    }
