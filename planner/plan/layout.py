"""The layout of a plan in the words in which a person states one."""

from __future__ import annotations

from collections.abc import Iterable

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
