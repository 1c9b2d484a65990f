"""What every writer asks of a plan: stages as lists of layers, data ranks taken apart, and the words for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from planner.errors import PlannerError
from planner.plan.schema import BlockPlan, Degrees, OperatorPlan, Plan
from planner.units import show_bytes, show_seconds

DATA_LEVELS: dict[str, int] = {"none": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}
"""State sharding as a number: what is sharded over the data ranks."""

IN_A_V = ("zbv", "dualpipev")
"""Schedules whose chunks go down the stages and back up, so that the first stage also has the head."""


def unfolded(text: str) -> tuple[int, ...]:
    """Layers from their folded form.

    >>> unfolded("0-2, 5"), unfolded("")
    ((0, 1, 2, 5), ())
    """
    found: list[int] = []
    for part in filter(None, re.split(r",\s*", text)):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


@dataclass(frozen=True)
class View:
    """A plan, and what follows from it without any arithmetic of costs."""

    plan: Plan

    def __post_init__(self) -> None:
        if any(not block.sizes for block in self.plan.blocks):
            raise PlannerError.of(
                "V02",
                f"was made by {self.plan.made_by}, which did not keep the sizes of the model; exports need them.",
                "Make the plan again: shardwright plan",
            )

    @property
    def degrees(self) -> Degrees:
        return self.plan.degrees

    @property
    def world(self) -> int:
        """Chips that the plan uses."""
        return self.degrees.chips_used

    def ranks(self, axis: str) -> int:
        """Ranks of an axis, also of ``edp``: those that hold the same experts."""
        d = self.degrees
        if axis == "edp":
            return d.dp * d.cp * d.tp // (d.ep * d.etp)
        return int(getattr(d, axis))

    @property
    def level(self) -> int:
        """State sharding as a number, 0 to 3."""
        return DATA_LEVELS[self.degrees.sharding]

    @property
    def replicas(self) -> int:
        """Groups of data ranks that hold the same states: all of them where nothing is sharded."""
        data = self.degrees.dp * self.degrees.cp
        return data // self.degrees.shard_group if self.level else self.degrees.dp

    @cached_property
    def chunks(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For every stage, for every chunk, its layers."""
        return tuple(tuple(unfolded(text) for text in stage.layers) for stage in self.plan.stages)

    @cached_property
    def visits(self) -> tuple[tuple[int, ...], ...]:
        """Layers in the order in which a token meets them: the first chunk of every stage, and so on."""
        turns = range(max(len(stage) for stage in self.chunks))
        back = self.degrees.schedule in IN_A_V
        orders = [self.chunks[:: -1 if back and turn % 2 else 1] for turn in turns]
        return tuple(
            stage[turn] for turn, stages in zip(turns, orders, strict=True) for stage in stages
        )

    @property
    def repeated_layers(self) -> int | None:
        """Layers of every chunk, all of a shorter one, that are computed again as a whole; None where chunks differ."""
        stages = self.plan.stages
        if any("selective" in stage.recompute for stage in stages):
            return None
        wanted = [stage.recompute.get("full", 0) for stage in stages]
        for count in range(max(map(len, self.visits)) + 1):
            found = [sum(min(count, len(chunk)) for chunk in stage) for stage in self.chunks]
            if found == wanted:
                return count
        return None

    @property
    def recomputing(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Layers that are computed again as a whole, and those of which some operators are."""
        d = self.degrees
        if d.recompute != "mixed":
            all_layers = tuple(layer for chunk in self.visits for layer in chunk)
            return all_layers * (d.recompute == "full"), all_layers * (d.recompute == "selective")
        whole: list[int] = []
        some: list[int] = []
        for chunk, first, then in zip(self.visits, d.full_layers, d.selective_layers, strict=True):
            whole += chunk[:first]
            some += chunk[first : first + then]
        return tuple(whole), tuple(some)

    @property
    def stage_sizes(self) -> tuple[int, ...]:
        """Layers of every stage, all chunks together."""
        return tuple(sum(map(len, stage)) for stage in self.chunks)

    @property
    def even(self) -> bool:
        """Every chunk of every stage has as many layers."""
        return len({len(visit) for visit in self.visits}) == 1

    @cached_property
    def layer_blocks(self) -> tuple[BlockPlan, ...]:
        """The block of every layer, in order."""
        table = {
            layer: block
            for block in self.plan.blocks
            if block.layers not in ("embedding", "head", "mtp")
            for layer in unfolded(block.layers)
        }
        return tuple(table[layer] for layer in sorted(table))

    def block(self, place: str) -> BlockPlan | None:
        """The block at ``embedding``, ``head`` or ``mtp``, if there is one."""
        return next((block for block in self.plan.blocks if block.layers == place), None)

    @property
    def experts(self) -> bool:
        """Whether some layer has experts."""
        return any("experts" in block.sizes for block in self.plan.blocks)

    @cached_property
    def recomputed(self) -> frozenset[str]:
        """Names of the operators of layers that are computed again in the backward pass."""
        return frozenset(op.name for op in self.operators() if op.recomputed)

    def operators(self) -> list[OperatorPlan]:
        """Operators of all distinct layers."""
        kinds = {id(block): block for block in self.layer_blocks}
        return [op for block in kinds.values() for op in block.operators]


def layout_words(degrees: Degrees) -> str:
    """The layout in a line, everything said."""
    d = degrees
    words = [f"dp {d.dp} × cp {d.cp} × tp {d.tp} × pp {d.pp}"]
    words += [f"vpp {d.vpp}"] * (d.vpp > 1)
    words += [f"ep {d.ep}, etp {d.etp}"] * (d.ep > 1 or d.etp > 1)
    words.append(f"micro-batch {d.micro_batch} × {d.num_micro_batches}")
    over = f" over {d.shard_group}" if d.sharding != "none" and d.shard_group < d.dp * d.cp else ""
    words.append(d.sharding + over if d.sharding != "none" else "states not sharded")
    together = f" of {d.recompute_unit} layers at a time" if d.recompute_unit > 1 else ""
    words.append(f"recompute {d.recompute}{together}")
    words += [f"{d.offload} in host memory"] * (d.offload != "none")
    words += ["sequence parallel"] * d.sequence_parallel
    words += [d.schedule] * (d.pp > 1)
    return ", ".join(words)


def header(view: View, release: str) -> list[str]:
    """What every exported file says first: which plan, made by what, for which release of which trainer."""
    plan, prints = view.plan, view.plan.fingerprints
    return [
        f"{plan.model.name} on {plan.cluster.name} ({view.world} chips), for {release}",
        f"made by {plan.made_by} from plan schema {plan.schema_version}: model {prints.model}, "
        f"cluster {prints.cluster}, recipe {prints.recipe}, trainer {prints.trainer} ({plan.trainer_release})",
        layout_words(plan.degrees),
        f"predicted {show_seconds(plan.step)} a step, {show_bytes(plan.memory)} on the fullest chip",
        *_nodes(view),
    ]


def _nodes(view: View) -> list[str]:
    """In which order nodes of different chips get their ranks: those of the first stage first."""
    pools = view.degrees.pools
    each = view.world // max(1, len(pools))
    runs = [(pool, len(list(run))) for pool, run in groupby(pools)]
    ends = [sum(count for _, count in runs[: n + 1]) * each for n in range(len(runs))]
    words = [
        f"{end - count * each}-{end - 1} on {pool}"
        for (pool, count), end in zip(runs, ends, strict=True)
    ]
    return [f"stages stand on different chips: start ranks {', '.join(words)}"] if pools else []


def commented(lines: list[str], mark: str = "#") -> str:
    """Lines as comments, with an end."""
    return "".join(f"{mark} {line}\n" for line in lines)
