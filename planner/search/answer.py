"""From what the search found to the plan that people and trainers read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.cost.offload import host_room
from planner.cost.prices import Prices
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster
from planner.plan.asked import Asked
from planner.plan.left_open import LeftOpen
from planner.plan.schema import (
    Alternative,
    Assumption,
    ClusterFacts,
    Degrees,
    Fingerprints,
    LevelFacts,
    ModelFacts,
    PinPrice,
    Plan,
    Proof,
    RecipeFacts,
    Removed,
)
from planner.search.alternatives import alternatives
from planner.search.bounded import fits
from planner.search.breakdown import Breakdown, breakdown, chunk_sizes, degrees_of, stages
from planner.search.derive import derivations
from planner.search.detail import block_plans
from planner.search.engine import Outcome
from planner.search.space import Space
from planner.search.trust import extrapolated, memory_upper, noise, trust
from planner.trainers.registry import notes, padding
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import show_bytes, show_seconds

NEAR_LIMIT = 0.95
"""Share of the limit above which the upper quantile of memory warns that a plan barely fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a plan carries besides what the search found."""

    made_by: str
    """Program and version."""
    asked: Asked
    """The question."""
    fingerprints: Fingerprints
    pins: tuple[str, ...]
    """As the user wrote them."""
    assumptions: tuple[Assumption, ...]
    """What the user did not state."""
    hints: tuple[str, ...]
    pin_prices: tuple[PinPrice, ...] = ()
    left_open: LeftOpen | None = None
    """What a stated layout left open."""
    idle: str = ""
    """Why chips are left idle, where they are."""
    objective: str = ""
    """What another objective than the fastest step came to."""
    on_chips: float = math.inf
    """Seconds of the fastest layout that keeps nothing in host memory; infinite where none is known."""


def build_plan(task: Task, outcome: Outcome, header: Header, own: Prices | None = None) -> Plan:
    """The plan of a search that found at least one candidate; the user's own layout, if any, is one of its rows."""
    if outcome.best is None:
        raise ValueError("a plan needs at least one candidate")
    return assembled(
        task,
        outcome.row(0),
        header,
        alternatives=alternatives(task, outcome, own),
        removed=removed_facts(task, outcome.space),
        proof=proof_of(outcome),
    )


def assembled(
    task: Task,
    priced: Prices,
    header: Header,
    *,
    alternatives: tuple[Alternative, ...],
    removed: tuple[Removed, ...],
    proof: Proof,
) -> Plan:
    """A plan of one layout; of stages on pools of different chips, ``task`` is that of the fullest stage's pool."""
    b = breakdown(priced, 0)
    degrees = degrees_of(priced)
    memory, host = float(b.memory.total[0, b.fullest]), float(b.memory.host[0].max())
    tokens = task.recipe.tokens / b.step
    price = priced.chip.price
    hours = b.paid * b.step / 3600.0
    return Plan(
        made_by=header.made_by,
        asked=header.asked,
        fingerprints=header.fingerprints,
        model=model_facts(task),
        cluster=cluster_facts(task),
        recipe=recipe_facts(task),
        trainer=task.trainer.name,
        trainer_release=task.trainer.release,
        pins=header.pins,
        pin_prices=header.pin_prices,
        left_open=header.left_open,
        degrees=degrees,
        step=b.step,
        time=b.terms,
        tokens_per_second=tokens,
        tokens_per_second_per_chip=tokens / b.paid,
        mfu=mfu(task, b.step, b.paid, priced.chip),
        price_per_million_tokens=None
        if price is None
        else price * hours / task.recipe.tokens * 1e6,
        memory=memory,
        memory_upper=memory_upper(task, memory),
        memory_stage=b.fullest,
        memory_limit=task.memory_limit,
        host_memory=host,
        host_limit=None if math.isinf(host_room(task)) else host_room(task),
        fits=bool(fits(task, np.array(memory), np.array(host))),
        derivations=derivations(b),
        stages=stages(b),
        blocks=block_plans(b.prices),
        alternatives=alternatives,
        removed=removed,
        proof=proof,
        assumptions=header.assumptions,
        warnings=_warnings(task, b, degrees, memory, header),
        extrapolated=extrapolated(task, degrees),
        hints=header.hints,
        objective=header.objective,
        trust=trust(task),
    )


def mfu(task: Task, step: float, chips: int, chip: Chip) -> float:
    """Model FLOPs utilisation: three forward passes' FLOPs (causal attention halved) over the peak of the chips."""
    flops = task.model.training_flops() * task.recipe.global_batch
    return flops / (step * chips * chip.peak_for(task.recipe.precision))


def model_facts(task: Task) -> ModelFacts:
    """The model as the plan shows it."""
    model = task.model
    return ModelFacts(
        name=model.name,
        num_params=model.num_params,
        num_active_params=round(model.num_active_params),
        num_layers=model.num_layers,
        tied=bool(model.head.tied),
        source=model.source,
    )


def cluster_facts(task: Task) -> ClusterFacts:
    """The cluster as the plan shows it."""
    cluster = task.cluster
    return ClusterFacts(
        name=cluster.name,
        chip=cluster.chip.name,
        num_chips=cluster.num_chips,
        memory=cluster.chip.memory_bytes,
        peak=cluster.chip.peak_for(task.recipe.precision),
        levels=level_facts(cluster),
        price=cluster.chip.price,
        watts=cluster.chip.watts,
        efficiency_sources=efficiency_sources(cluster.chip),
    )


def level_facts(cluster: Cluster) -> tuple[LevelFacts, ...]:
    """The levels that a cluster needs."""
    return tuple(
        LevelFacts(
            name=level.name,
            size=level.size or cluster.num_chips,
            bandwidth=level.bandwidth,
            achieved=level.achieved,
            latency=level.latency,
        )
        for level in cluster.levels[: cluster.depth]
    )


def efficiency_sources(chip: Chip) -> dict[str, str]:
    """Where a chip's efficiencies come from, by key."""
    own = chip.sources.get("calibrated")
    keys = ("matmul_efficiency", "attention_efficiency", "memory_efficiency")
    return {
        key: f"calibrated: {own}" if own else chip.sources[key]
        for key in keys
        if own or key in chip.sources
    }


def recipe_facts(task: Task) -> RecipeFacts:
    """The recipe as the plan shows it."""
    recipe = task.recipe
    return RecipeFacts(
        global_batch=recipe.global_batch,
        seq=recipe.seq,
        precision=recipe.precision,
        optimizer=recipe.optimizer,
        lora=recipe.lora.described if recipe.lora else "",
    )


def removed_facts(task: Task, space: Space) -> tuple[Removed, ...]:
    """What each rule removed, most first."""
    rules = {rule.name: rule for rule in task.trainer.rules}
    counts = sorted(space.removed.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Removed(rule=name, family=rules[name].family, sentence=rules[name].sentence, count=count)
        for name, count in counts
        if count
    )


def proof_of(outcome: Outcome) -> Proof:
    """What a search knows of the layouts that it did not price."""
    gap = outcome.gap
    return Proof(
        optimal=gap < 1e-12,
        bound=outcome.bound,
        gap=gap,
        searched=outcome.space.searched,
        allowed=len(outcome.space.candidates),
        fitting=outcome.fitting,
        refined=outcome.refined,
        cut_gap=outcome.cut_gap,
        front=outcome.front,
        stopped=outcome.stopped,
    )


def _beside_host(task: Task, step: float, on_chips: float) -> str:
    """What the chips alone would take, beside a plan that keeps something in host memory."""
    if math.isinf(on_chips):
        return "Nothing fits on the chips alone: host memory is used, and it is slow."
    told = f"Host memory is used: on the chips alone the step takes {show_seconds(on_chips)}"
    if on_chips <= step * (1.0 + noise(task)):
        told += ", the same within what predictions scatter; --pin offload=none stays there"
    return f"{told}."


def _warnings(
    task: Task, b: Breakdown, degrees: Degrees, memory: float, header: Header
) -> tuple[str, ...]:
    found = [*notes(task, b.prices.rows), *padding(task, chunk_sizes(b.prices).tolist())]
    most = memory_upper(task, memory)
    if memory <= task.memory_limit and most > NEAR_LIMIT * task.memory_limit:
        left = task.memory_limit - most
        found.append(
            f"Memory leaves {show_bytes(left)} of the limit in nine of ten runs."
            if memory <= room(task)
            else f"Most runs would fit, but one in ten may need {show_bytes(-left)} more than the limit."
        )
    if far := extrapolated(task, degrees):
        found.append(f"Beyond all measured runs of this chip family: {', '.join(far)}.")
    idle = task.cluster.num_chips - degrees.chips_used
    if idle:
        why = header.idle or "the layout uses no more."
        are = "is" if idle == 1 else "are"
        found.append(f"{idle:,} of {task.cluster.num_chips:,} chips {are} idle: {why}")
    if degrees.offload != "none":
        if not any("offload" in pin for pin in header.pins):
            found.append(_beside_host(task, b.step, header.on_chips))
        if math.isinf(host_room(task)):
            found.append("Nobody says how much memory the hosts have: give host_memory_gib.")
    return tuple(found)
