"""All formats by name, and a plan written in one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import Fault, PlannerError, listed, nearest
from planner.export import (
    accelerate,
    bridge,
    deepspeed,
    dtensor,
    galvatron,
    maxtext,
    megatron,
    mindformers,
    mindspeed,
    mindspore,
    torchtitan,
    transformers,
)
from planner.export.files import File
from planner.export.refusal import Limits, pinned
from planner.export.view import View
from planner.plan.agreement import require_agreement
from planner.plan.schema import Plan


@dataclass(frozen=True, slots=True)
class Target:
    """One format."""

    name: str
    release: str
    write: Callable[[View], list[File]]
    trainers: tuple[str, ...] = ()
    """Trainers whose plans it is for, the nearest first; any where there are none."""
    aliases: tuple[str, ...] = ()
    any_strategy: bool = False
    """Holds a strategy for every operator, whatever it is."""
    mixes: bool = False
    """Can hold layers that differ in what they recompute, and says itself which it cannot."""
    units: bool = False
    """Can hold layers that are computed again several at a time."""


TARGETS: tuple[Target, ...] = (
    Target(
        "megatron",
        megatron.RELEASE,
        megatron.write,
        ("megatron",),
        ("megatron-lm", "mcore"),
        mixes=True,
        units=True,
    ),
    Target(
        "mindspeed",
        mindspeed.RELEASE,
        mindspeed.write,
        ("mindspeed",),
        ("mindspeed-llm",),
        mixes=True,
        units=True,
    ),
    Target(
        "megatron-bridge",
        bridge.RELEASE,
        bridge.write,
        ("megatron",),
        ("bridge", "nemo"),
        mixes=True,
        units=True,
    ),
    Target("torchtitan", torchtitan.RELEASE, torchtitan.write, ("torchtitan",), ("titan",)),
    Target(
        "torchtitan-0.2",
        torchtitan.OLD_RELEASE,
        torchtitan.write_toml,
        ("torchtitan",),
        ("torchtitan-toml",),
    ),
    Target("deepspeed", deepspeed.RELEASE, deepspeed.write, ("deepspeed", "fsdp"), ("zero",)),
    Target("accelerate", accelerate.RELEASE, accelerate.write, ("fsdp",), ("fsdp", "fsdp2")),
    Target(
        "transformers",
        transformers.RELEASE,
        transformers.write,
        ("fsdp", "megatron"),
        ("tp-plan", "hf"),
    ),
    Target(
        "mindspore",
        mindspore.RELEASE,
        mindspore.write,
        ("mindspore",),
        ("ms",),
        any_strategy=True,
        mixes=True,
    ),
    Target("mindformers", mindformers.RELEASE, mindformers.write, ("mindspore",), mixes=True),
    Target("galvatron", galvatron.RELEASE, galvatron.write, aliases=("galvatron-2.4",)),
    Target("galvatron-head", galvatron.NEW_RELEASE, galvatron.write_new),
    Target("maxtext", maxtext.RELEASE, maxtext.write, ("torchtitan", "fsdp")),
    Target("dtensor", dtensor.RELEASE, dtensor.write, aliases=("torch",)),
)


UNKNOWN = ("adafactor", "lion", "muon")
"""Optimizers for which no format has been compared with its trainer."""


def target(name: str) -> Target:
    """The format of a name, in any case.

    Raises:
        PlannerError: no format has that name (W02).
    """
    wanted = name.strip().lower().replace("_", "-")
    names = {known: t for t in TARGETS for known in (t.name, *t.aliases)}
    if wanted in names:
        return names[wanted]
    raise PlannerError.of(
        "W02",
        f"nothing is exported to '{name}'. Nearest: {listed(nearest(wanted, names), 'and')}.",
        f"Possible: {listed([t.name for t in TARGETS], 'and')}.",
    )


def export(plan: Plan, to: str) -> list[File]:
    """A plan as a trainer's own files. Rows of measured runs have one chip, so that pools get no ``remeasure.sh``.

    Raises:
        PlannerError: an unknown format (W02), what the format cannot hold (W01), or a plan whose parts disagree (V04).
    """
    found = target(to)
    require_agreement(plan)
    try:
        return _written(plan, found)
    except PlannerError as error:
        raise PlannerError(*error.faults, *_other_trainer(plan, found)) from None


def _other_trainer(plan: Plan, found: Target) -> list[Fault]:
    """Where a plan is for another trainer than the format: that pins may be refused there, and what to plan for."""
    if not found.trainers or plan.trainer in found.trainers:
        return []
    what = (
        f"The plan is for {plan.trainer}, and {found.release} runs plans for {found.trainers[0]}."
    )
    return [
        Fault(
            "W01",
            what,
            (f"Nearest that it can: shardwright plan … --trainer {found.trainers[0]}.",),
        )
    ]


def _written(plan: Plan, found: Target) -> list[File]:
    """The files.

    Raises:
        PlannerError: what the format cannot hold (W01).
    """
    limits = Limits(found.release)
    name = plan.recipe.optimizer
    limits.refuse(name in UNKNOWN, f"the optimizer {name}", "shardwright plan … --optimizer adamw")
    limits.refuse(bool(plan.recipe.lora), f"LoRA {plan.recipe.lora}", "a recipe without lora")
    vendors = sorted({pool.vendor for pool in plan.cluster.pools if pool.chips_used})
    words = f"chips of {listed(vendors, 'and')} in one job"
    limits.refuse(len(vendors) > 1, words, "a plan for one of the pools")
    mixed = plan.degrees.recompute == "mixed" and not found.mixes
    able = [f"--to {t.name}" for t in TARGETS if t.mixes and plan.trainer in t.trainers]
    closest = listed([*able, pinned("recompute=full")])
    limits.refuse(mixed, "layers that differ in what they recompute", closest)
    unit = plan.degrees.recompute_unit
    together = f"recompute of {unit} layers at a time: each layer runs again by itself there"
    limits.refuse(unit > 1 and not found.units, together, "the same layout without recompute-unit")
    encoder = any("source" in block.sizes for block in plan.blocks)
    words = f"the encoder of {plan.model.name}: a decoder alone is written"
    limits.refuse(
        encoder and found.name != "dtensor", words, "--to dtensor, which describes no model"
    )
    if not found.any_strategy:
        _only_roles(plan, limits)
    d = plan.degrees
    limits.refuse(
        bool(d.pools) and d.order.index("pp") < d.order.index("dp"),
        "stages on different chips inside data parallelism: ranks of a chip are no run of ranks",
        pinned("order=tp-cp-dp-pp"),
    )
    limits.done()
    files = found.write(View(plan))
    return [file for file in files if not plan.cluster.pools or file.name != "remeasure.sh"]


def _only_roles(plan: Plan, limits: Limits) -> None:
    """Refuses operators that do what no role of a trainer says."""
    for block in plan.blocks:
        for op in block.operators:
            cut = " ".join(f"{dim}/{axis}" for axis, dim in op.split.items())
            limits.refuse(
                not op.by_role,
                f"{block.name}.{op.name} cut by {cut}",
                "plan without that pin, or --to mindspore",
            )
