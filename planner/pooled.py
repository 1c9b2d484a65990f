"""From a question on pools of different chips to its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from planner.answered import drawn, header_of, made_by
from planner.cost.prices import Prices, prices, with_cut
from planner.errors import PlannerError
from planner.hardware.change import hardware_numbers
from planner.hardware.change_pools import link_numbers
from planner.hardware.limit import memory_limit
from planner.hardware.pools import Pools
from planner.plan.figures import Sensitivity
from planner.plan.layout import SEATS, layout_of, plain
from planner.plan.schema import Assumption, NoPlan, Plan
from planner.question import Question, Understood, assumed_hardware, fingerprint, understand
from planner.search.engine import Progress
from planner.search.miss import build_miss
from planner.search.pins import Pins, from_layout
from planner.search.pools.answer import build_plan, pool_facts, price_placed
from planner.search.pools.place import Site, placed, spread
from planner.search.pools.sensitivity import pool_sensitivities
from planner.search.pools.stated import seats_of, stated_row
from planner.search.pools.uses import Way, ways
from planner.search.sensitivity import sensitivities
from planner.search.stages.stated import stated_cut
from planner.trainers.registry import faults


def plan_pools(
    question: Question, pools: Pools, progress: Callable[[Progress], None] | None = None
) -> Plan | NoPlan:
    """The fastest way to use the pools, with its proof; or why there is none.

    Raises:
        PlannerError: wrong input, or something that pools of different chips do not take (C06).
    """
    known, site = understood(question, pools)
    own = _stated(known, site, question.warm_start)[0] if question.warm_start else None
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


def price_pools(question: Question, pools: Pools, layout: Mapping[str, int | str]) -> Plan:
    """What a stated layout on pools costs.

    Args:
        question: what is asked.
        pools: its pools.
        layout: as for any cluster, and ``pools`` for what the stages stand on: ``h100-sxm:2+a100-sxm-80gb:1``.
            Without, every stage has chips of all pools.

    Raises:
        PlannerError: wrong input, or every rule of the trainer that the layout breaks.
    """
    known, site = understood(question, pools)
    priced, pinned = _stated(known, site, layout)
    header = replace(
        header_of(known, pinned), asked=known.asked.model_copy(update={"layout": dict(layout)})
    )
    plan = drawn(price_placed(site, pools, priced, header), question, priced)
    return _with_sensitivities(plan, site, pools, priced)


def sensitive(question: Question, pools: Pools, answer: Plan) -> tuple[Sensitivity, ...]:
    """The step of a plan on pools with every number of their hardware a fifth lower and higher."""
    known, site = understood(question, pools)
    priced, _ = _stated(known, site, layout_of(answer.degrees, answer.pins))
    if priced.mix is None:
        return sensitivities(priced.task, priced, known.pins)
    return _on_pools(site, pools, priced)


def _stated(known: Understood, site: Site, layout: Mapping[str, int | str]) -> tuple[Prices, Pins]:
    """A stated layout on pools, priced: stages all on one pool as on that pool alone."""
    words = {plain(key): value for key, value in layout.items()}
    seats = seats_of(str(words.pop(SEATS)), site) if SEATS in words else None
    pinned = from_layout(words, known.task.trainer)
    row, tasks = stated_row(site, pinned, seats)
    wrong = tuple(dict.fromkeys(fault for task in tasks for fault in faults(task, row)))
    if wrong:
        raise PlannerError(*wrong)
    if seats is None:
        priced = spread(site, row)
    elif len(seats.pools) == 1:
        priced = prices(site.tasks[seats.pools[0]], row)
    else:
        priced = placed(site, row, seats)
    cut = stated_cut(words, row, tasks[0])
    return (priced if cut is None else with_cut(priced, cut)), pinned


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
    _check(question)
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


def _check(question: Question) -> None:
    if question.objective != "step-time":
        raise _not_taken(f"--objective {question.objective} is")


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
