"""What a format cannot hold: collected, and told together with the nearest plan that it can hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.errors import Fault, PlannerError
from planner.export.view import View

LEVELS: dict[str, tuple[int, ...]] = {
    "megatron": (0, 1), "mindspeed": (0, 1), "mindspore": (0, 1), "torchtitan": (2, 3), "fsdp": (1, 2, 3),
    "deepspeed": (1, 2, 3),
}  # fmt: skip
"""State shardings that plans for a trainer have."""


@dataclass(slots=True)
class Limits:
    """The limits of one format, checked against one plan."""

    target: str
    faults: list[Fault] = field(default_factory=list)

    def refuse(self, when: bool, what: str, nearest: str) -> None:
        """Notes a fault.

        Args:
            when: whether the plan has what the format cannot hold.
            what: what that is, as the object of "cannot hold", such as ``cp 2``.
            nearest: the nearest plan that it can hold, as pins of ``shardwright plan`` or in words.
        """
        if when:
            fix = (f"Nearest that it can: {nearest}.",)
            self.faults.append(Fault("W01", f"{self.target} cannot hold {what}.", fix))

    def done(self) -> None:
        """Ends the check.

        Raises:
            PlannerError: everything that was noted (W01).
        """
        if self.faults:
            raise PlannerError(*self.faults)


def pinned(text: str) -> str:
    """The command that makes a plan with a pin.

    >>> pinned("cp=1")
    'shardwright plan … --pin cp=1'
    """
    return f"shardwright plan … --pin {text}"


def no_axis(limits: Limits, view: View, *axes: str) -> None:
    """Refuses degrees of axes that a format does not have."""
    for axis in axes:
        degree = getattr(view.degrees, axis)
        limits.refuse(degree > 1, f"{axis} {degree}: it has no such axis", pinned(f"{axis}=1"))


def schedules(limits: Limits, view: View, *names: str) -> None:
    """Refuses schedules that a format has no word for."""
    d = view.degrees
    chunks = " --pin vpp=1" if d.vpp > 1 and names and names[0] in ("gpipe", "1f1b") else ""
    limits.refuse(
        d.pp > 1 and d.schedule not in names,
        f"the schedule {d.schedule}",
        pinned(f"schedule={names[0]}") + chunks if names else pinned("pp=1"),
    )


SHARES = ("optimizer-25%", "optimizer-50%", "optimizer-75%")
"""Words for a share of the optimizer states in host memory."""


def host_share(view: View) -> float:
    """Share of the optimizer states in host memory, 0 to 1."""
    word = view.degrees.offload
    if word in SHARES:
        return float(word.partition("-")[2].rstrip("%")) / 100
    return float(word.startswith(("optimizer", "states")))


def offloads(limits: Limits, view: View, *known: str) -> None:
    """Refuses what a format cannot keep in host memory."""
    where = view.degrees.offload
    near = f"offload={known[0]}" if known else "offload=none"
    limits.refuse(where not in ("none", *known), f"{where} in host memory", pinned(near))


def even_stages(limits: Limits, view: View) -> None:
    """Refuses stages of unequal numbers of layers, where a format only knows how many stages there are."""
    sizes, count = view.stage_sizes, view.plan.model.num_layers
    pieces = view.degrees.pp * view.degrees.vpp
    fits = [p for p in range(1, count + 1) if count % p == 0]
    near = min(fits, key=lambda p: (abs(p - pieces), p))
    layers = "+".join([str(count // near)] * near)
    divided = f" --pin vpp=1 --pin stage-layers={layers}" if near > 1 else ""
    shown = ", ".join(map(str, sizes[:8])) + (", …" if len(sizes) > 8 else "")
    limits.refuse(
        not view.even,
        f"stages of {shown} layers: all are equal there",
        pinned(f"pp={near}") + divided,
    )


def equal_layers(limits: Limits, view: View) -> None:
    """Refuses kinds of layers that are cut differently, where a format has one set of rules for all."""
    cuts: dict[str, dict[str, str]] = {}
    for op in view.operators():
        known = cuts.setdefault(op.name, op.split)
        limits.refuse(
            known != op.split,
            f"{op.name} cut by {known} in one kind of layer and by {op.split} in another",
            "the plan of degrees alone, shardwright plan without operator strategies",
        )


def megatron_core(limits: Limits, view: View) -> None:
    """Refuses what no program on Megatron-Core has options for."""
    d = view.degrees
    limits.refuse(
        view.experts and d.tp > 1 and not d.sequence_parallel,
        "experts with tp but without sequence parallelism",
        pinned("sp=on"),
    )
    limits.refuse(
        d.recompute == "mixed" and view.repeated_layers is None,
        "layers that recompute unlike in number from chunk to chunk",
        f"{pinned('recompute=full')} or recompute=none",
    )


def whole_states(limits: Limits, view: View) -> None:
    """Refuses states that are sharded over a part of the data ranks only."""
    d = view.degrees
    part = view.level > 0 and d.shard_group < d.dp * d.cp
    limits.refuse(
        part,
        f"{d.sharding} over {d.shard_group} of {d.dp * d.cp} data ranks",
        pinned(f"shard-group={d.dp * d.cp}"),
    )


def any_level(limits: Limits, view: View, levels: tuple[int, ...]) -> None:
    """Refuses state shardings that a format has no word for; the nearest is one that the plan's trainer runs."""
    able = set(levels) & set(LEVELS.get(view.plan.trainer, levels))
    near = min(able or levels, key=lambda level: (abs(level - view.level), -level))
    shown = view.degrees.sharding if view.level else "states that are not sharded"
    limits.refuse(view.level not in levels, shown, pinned(f"zero={near}"))
