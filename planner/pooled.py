"""From a question on pools of different chips to its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from planner.answered import drawn, header_of, made_by
from planner.cost.prices import Prices
from planner.errors import PlannerError
from planner.hardware.change import hardware_numbers
from planner.hardware.change_pools import link_numbers
from planner.hardware.limit import memory_limit
from planner.hardware.pools import Pools
from planner.plan.figures import Sensitivity
from planner.plan.fingerprint import fingerprint
from planner.plan.layout import layout_of
from planner.plan.schema import Assumption, NoPlan, Plan
from planner.question import Question, Understood, assumed_hardware, understand
from planner.search.engine import Progress
from planner.search.miss import build_miss
from planner.search.pins import Pins
from planner.search.pools.answer import build_plan, pool_facts, price_placed
from planner.search.pools.place import Site
from planner.search.pools.sensitivity import pool_sensitivities
from planner.search.pools.uses import Way, ways
from planner.search.sensitivity import sensitivities
from planner.seated import fastest_on_pools, read_on_pools


def plan_pools(
    question: Question, pools: Pools, progress: Callable[[Progress], None] | None = None
) -> Plan | NoPlan:
    """The fastest way to use the pools, with its proof; or why there is none.

    Raises:
        PlannerError: wrong input, or something that pools of different chips do not take (C06).
    """
    known, site = understood(question, pools)
    own = None
    if question.warm_start:
        mine = read_on_pools(known, site, question.warm_start)
        own = fastest_on_pools(mine, Pins(), question.time_limit)[0].prices
    found = ways(
        site, known.pins, top=question.top, time_limit=question.time_limit, progress=progress
    )
    best = found[0]
    if best.steps:
        plan = build_plan(site, pools, found, header_of(known, known.pins), own)
        pins = known.pins if best.outcome else None
        plan = drawn(plan, question, best.rows[0], best.outcome, pins)
        return _with_sensitivities(plan, site, pools, best.rows[0])
    return _miss(known, site, pools, found)


def price_pools(
    question: Question, pools: Pools, layout: Mapping[str, int | str], *, usual: bool = False
) -> Plan:
    """What a stated layout on pools costs; what it leaves open is chosen, as on chips of one kind.

    Args:
        question: what is asked.
        pools: its pools.
        layout: as for any cluster, and ``pools`` for what the stages stand on: ``h100-sxm:2+a100-sxm-80gb:1``.
            Without, every stage has chips of all pools.
        usual: let settings that are left out be what the trainer takes by itself.

    Raises:
        PlannerError: wrong input, or every rule of the trainer that the layout breaks.
    """
    known, site = understood(question, pools)
    stated = read_on_pools(known, site, layout)
    found, left = fastest_on_pools(stated, known.pins, question.time_limit, usual=usual)
    header = replace(
        header_of(known, stated.stated.pins),
        asked=known.asked.model_copy(update={"layout": dict(layout)}),
        left_open=left,
    )
    plan = drawn(
        price_placed(site, pools, found.prices, header, found.proof), question, found.prices
    )
    return _with_sensitivities(plan, site, pools, found.prices)


def sensitive(question: Question, pools: Pools, answer: Plan) -> tuple[Sensitivity, ...]:
    """The step of a plan on pools with every number of their hardware a fifth lower and higher."""
    known, site = understood(question, pools)
    stated = read_on_pools(known, site, layout_of(answer.degrees, answer.pins))
    priced = fastest_on_pools(stated, known.pins, question.time_limit)[0].prices
    if priced.mix is None:
        return sensitivities(priced.task, priced, known.pins)
    return _on_pools(site, pools, priced)


def _with_sensitivities(plan: Plan, site: Site, pools: Pools, priced: Prices) -> Plan:
    """The plan, to whose figures those of what each number of several pools is worth are added."""
    if plan.figures is None or priced.mix is None:
        return plan
    figures = plan.figures.model_copy(update={"sensitivities": _on_pools(site, pools, priced)})
    return plan.model_copy(update={"figures": figures})


def _on_pools(site: Site, pools: Pools, priced: Prices) -> tuple[Sensitivity, ...]:
    numbers = tuple(hardware_numbers(task.cluster) for task in site.tasks)
    return pool_sensitivities(site, priced, numbers, link_numbers(pools))


def understood(question: Question, pools: Pools) -> tuple[Understood, Site]:
    """Read model, recipe and trainer once, for all pools.

    Raises:
        PlannerError: as :func:`planner.question.understand`; what pools do not take (C06).
    """
    _check(question, pools)
    weakest = next((p for p in pools.pools if "bf16" not in p.chip.peak), pools.pools[0])
    stand_in = replace(weakest, num_chips=pools.num_chips, assumed=())
    known = understand(replace(question, memory_limit=None, what_if=()), stand_in)
    if known.pins.operators:
        raise _not_taken("--pin on operators is")
    tasks = []
    for pool in pools.pools:
        pool.chip.peak_for(known.task.recipe.precision)
        limit = memory_limit(question.memory_limit, pool.chip)
        tasks.append(
            replace(known.task, cluster=pool, memory_limit=limit, copy_kv=known.pins.copy_kv)
        )
    known = replace(
        known,
        fingerprints=known.fingerprints.model_copy(update={"cluster": fingerprint(asdict(pools))}),
        asked=question.asked(),
    )
    own = {a.text for a in assumed_hardware(question, known.task.trainer, stand_in)}
    told = [a for a in known.assumptions if a.text not in own or a.key == "trainer"]
    known = replace(known, assumptions=(*told, *_assumed(question, pools, known)))
    return known, Site(tuple(tasks), pools.link)


def _assumed(question: Question, pools: Pools, known: Understood) -> list[Assumption]:
    """What is assumed of every pool, with its name, and of the network between them."""
    found = [
        Assumption(key=each.key, text=f"{pool.name}: {each.text}")
        for pool in pools.pools
        for each in assumed_hardware(question, known.task.trainer, pool)
        if each.key != "trainer"
    ]
    return [*found, *(Assumption(key="cluster", text=text) for text in pools.assumed)]


def _check(question: Question, pools: Pools) -> None:
    """Says what comes nearest to an objective that pools do not take.

    Raises:
        PlannerError: another objective than the fastest step (C06).
    """
    whole = question.cluster
    parts = [part.strip() for part in whole.split("+")]
    parts = parts if len(parts) == len(pools.pools) else [pool.name for pool in pools.pools]
    each = " ".join(f"--cluster '{part}'" for part in (*parts, whole))
    nearest = {
        "pareto": "The fastest step in less memory, one limit at a time: --memory-limit 80%",
        "fewest-chips": f"Of one pool: shardwright size … --cluster '{parts[0]}'; or several mixes: "
        f"shardwright compare … {each}",
        "cost-per-token": f"What a token costs on each pool and on all: shardwright compare … {each}",
    }
    if question.objective != "step-time":
        told = f"--objective {question.objective} is not taken on pools of different chips."
        raise PlannerError.of("C06", told, nearest[question.objective])


def _not_taken(what: str) -> PlannerError:
    told = f"{what} not taken on pools of different chips."
    return PlannerError.of("C06", told, "Leave it out, or ask about one pool at a time.")


def _miss(known: Understood, site: Site, pools: Pools, found: tuple[Way, ...]) -> NoPlan:
    """No way fits: the closest miss of the pool with most memory."""
    roomiest = max(
        (way for way in found if way.pool is not None),
        key=lambda way: site.tasks[way.pool or 0].memory_limit,
    )
    assert roomiest.pool is not None and roomiest.outcome is not None
    miss = build_miss(
        site.tasks[roomiest.pool],
        known.pins,
        roomiest.outcome.space,
        made_by=made_by(),
        assumptions=known.assumptions,
        larger=None,
        stopped=roomiest.stopped,
    )
    told = f"No way to use the pools fits; this is the closest miss of {roomiest.text}."
    facts = pool_facts(site, pools, [0] * len(pools.pools))
    return miss.model_copy(
        update={"cluster": facts, "explanation": f"{told} {miss.explanation}".strip()}
    )
