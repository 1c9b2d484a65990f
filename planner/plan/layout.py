"""The layout of a plan in the words in which a person states one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.plan.schema import Degrees


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
        "recompute": degrees.recompute,
        "sp": "on" if degrees.sequence_parallel else "off",
        "schedule": degrees.schedule,
        "order": "-".join(degrees.order),
    }
    if degrees.offload != "none":
        layout["offload"] = degrees.offload
    copies = any(pin.startswith("kv-heads") for pin in pins)
    return layout | ({"kv-heads": "copy"} if copies else {})


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
        "pp": ("dp", "vpp", "schedule"),
        "vpp": ("schedule",),
    }
    for key, others in follows.items():
        if stated.get(key, layout.get(key)) != layout.get(key):
            for other in others:
                kept.pop(other, None)
    return {key: value for key, value in kept.items() if key not in stated} | dict(stated)
