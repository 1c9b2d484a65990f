"""Nothing fits: the closest miss, its arithmetic, and the smallest changes that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from planner.candidates import SHARDING, Candidates
from planner.cost.memory import memory_bound
from planner.cost.prices import Prices, prices
from planner.cost.step import exact_memory
from planner.cost.table import block_table
from planner.graph.adapters import with_adapters
from planner.hardware.cluster import Cluster
from planner.plan.schema import Assumption, NoPlan, Remedy, Term
from planner.recipe import Lora
from planner.search.answer import cluster_facts, model_facts, recipe_facts, removed_facts
from planner.search.bounded import SLICE
from planner.search.breakdown import Breakdown, breakdown, degrees_of, memory_terms
from planner.search.pins import ANY_OFFLOAD, Pins
from planner.search.space import Space, build_space
from planner.search.trust import memory_upper
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import IntArray

STATES = {"optimizer": 1, "gradients": 2, "weights": 3}
"""Kinds of state, and the sharding level from which each is spread over data ranks."""
MOST_DOUBLINGS = 6
"""How often the number of chips is doubled in the search for one that fits."""
CLOSE = 32
"""Candidates whose memory is worked out together, those of least bound first."""


def build_miss(
    task: Task,
    pins: Pins,
    space: Space,
    *,
    made_by: str,
    assumptions: Iterable[Assumption],
    larger: Iterable[Cluster] | None,
    stopped: bool = False,
) -> NoPlan:
    """Explain why nothing fits.

    Args:
        task: the question.
        pins: its restrictions.
        space: what the rules left.
        made_by: program and version.
        assumptions: what the user did not state.
        larger: clusters of as many chips with more memory, to try as remedies; None where nobody asks for any.
        stopped: whether the search ended before it had seen everything.
    """
    closest = closest_miss(task, space)
    facts = {
        "made_by": made_by,
        "model": model_facts(task),
        "cluster": cluster_facts(task),
        "recipe": recipe_facts(task),
        "trainer": task.trainer.name,
        "pins": pins.texts(),
        "memory_limit": task.memory_limit,
        "removed": removed_facts(task, space),
        "searched": space.searched,
        "stopped": stopped,
        "assumptions": tuple(assumptions),
    }
    if closest is None:
        return NoPlan.model_validate(facts | {"closest": None})
    terms = memory_terms(closest, closest.fullest)
    found = {
        "closest": degrees_of(closest.prices),
        "stage": closest.fullest,
        "memory": float(closest.memory.total.max()),
        "memory_upper": memory_upper(task, float(closest.memory.total.max())),
        "terms": terms,
        "explanation": _explain(closest, terms),
        "remedies": () if larger is None else tuple(_remedies(task, pins, larger)),
    }
    return NoPlan.model_validate(facts | found)


def closest_miss(task: Task, space: Space) -> Breakdown | None:
    """The candidate whose fullest chip needs least memory; None where the rules left none."""
    rows = space.candidates
    if not len(rows):
        return None
    task = replace(task, operators=space.operators)
    return breakdown(prices(task, rows.take(least_memory(task, rows))), 0)


def least_memory(task: Task, rows: Candidates) -> IntArray:
    """Index of the candidate whose fullest chip needs least memory, best bound first; shape ``(1,)``."""
    table, key = block_table(task, rows)

    def priced(index: IntArray | slice) -> Prices:
        return prices(task, rows.take(index), (table, key[index]))

    slices = (slice(start, start + SLICE) for start in range(0, len(rows), SLICE))
    bounds = np.concatenate([memory_bound(priced(part)) for part in slices])
    order = np.argsort(bounds, kind="stable")
    least, found = np.inf, order[:1]
    for start in range(0, len(order), CLOSE):
        some = order[start : start + CLOSE]
        if bounds[some[0]] >= least:
            break
        memory = exact_memory(priced(some))
        if memory.min() < least:
            least, found = float(memory.min()), some[[int(memory.argmin())]]
    return found


def _explain(b: Breakdown, terms: tuple[Term, ...]) -> str:
    """Why the largest term is large, in one clause."""
    rows = b.prices.rows
    worst = max(terms, key=lambda term: term.value).name.removeprefix("memory.")
    if worst in STATES:
        level, data = int(rows.sharding[0]), int(rows.dp[0] * rows.cp[0])
        if level < STATES[worst]:
            does = f"{SHARDING[level]} does not shard" if level else "nothing shards"
            return f"{does} {worst}; pp and tp alone divide them"
        if data == 1:
            return "dp is 1: nothing left to shard them over"
        return f"spread over {int(rows.shard_group[0])} data ranks already"
    if worst == "activations":
        return f"{b.memory.in_flight[0, b.fullest]:g} micro-batches of one sequence are in flight"
    if worst == "logits":
        return "logits of one sequence over the whole vocabulary"
    return "one layer's working set"


def _remedies(task: Task, pins: Pins, larger: Iterable[Cluster]) -> Iterator[Remedy]:
    """The smallest change of each kind that fits: more chips or memory, smaller states, fewer of them, or elsewhere."""
    clusters = (
        (f"{chips:,} chips", "", replace(task, cluster=replace(task.cluster, num_chips=chips)))
        for chips in _more_chips(task.cluster)
    )
    chips = (
        (
            f"{c.chip.name}, {c.num_chips:,} chip{'s' * (c.num_chips > 1)}",
            "",
            replace(task, cluster=c, memory_limit=c.chip.memory_bytes),
        )
        for c in larger
    )
    recipe, usable = task.recipe, task.cluster.chip.memory_bytes
    held = pins.on(("offload",))
    free = tuple(pin for pin in pins.pins if pin not in held)
    away, far = replace(pins, pins=(*free, ANY_OFFLOAD)), "slower: host memory is far"
    lifted = None
    if task.memory_limit < usable:
        whole, word = replace(task, memory_limit=usable), "no --memory-limit"
        lifted = _remedy(pins, word, "", whole)
        remedy = lifted or (None if held else _remedy(away, word, far, whole))
        if remedy is not None:
            yield remedy
    small = replace(task, recipe=replace(recipe, optimizer="adamw-8bit"))
    states = [("--optimizer adamw-8bit", "changes convergence: check first", small)]
    lora = Lora()
    tuned = replace(
        task,
        model=with_adapters(task.model, lora.rank, lora.targets),
        recipe=replace(recipe, lora=lora),
    )
    few = [(f"lora: {{rank: {lora.rank}}} in a recipe file", "trains adapters only", tuned)]
    for kind in (
        clusters,
        () if lifted else chips,
        states if recipe.optimizer == "adamw" else [],
        few if recipe.lora is None else [],
    ):
        remedy = next(filter(None, (_remedy(pins, *change) for change in kind)), None)
        if remedy is not None:
            yield remedy
    if held:
        remedy = _remedy(away, f"--pin {ANY_OFFLOAD.text}", far, task)
        if remedy is not None:
            yield remedy


def _more_chips(cluster: Cluster) -> list[int]:
    """Numbers of chips to try: whole hosts, a power of two, and its doublings."""
    count, host = cluster.num_chips, cluster.chips_per_host
    whole = -(-count // host) * host
    power = 1 << (count - 1).bit_length()
    tried = [whole, *(power << doubling for doubling in range(MOST_DOUBLINGS + 1))]
    return sorted({chips for chips in tried if chips > count})


def _remedy(pins: Pins, change: str, note: str, task: Task) -> Remedy | None:
    memory = _least(task, pins)
    if memory is None or memory > room(task):
        return None
    return Remedy(change=change, memory=memory, limit=task.memory_limit, note=note)


def _least(task: Task, pins: Pins) -> float | None:
    space = build_space(task, pins)
    rows, task = space.candidates, replace(task, operators=space.operators)
    if not len(rows):
        return None
    return float(exact_memory(prices(task, rows.take(least_memory(task, rows))))[0])
