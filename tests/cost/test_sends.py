"""Sends between stages: each boundary costs what the level it crosses costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.candidates import SCHEDULES, Candidates, concatenate, single
from planner.cost.prices import Prices, prices
from planner.cost.step import exact
from planner.question import Question, understand
from planner.trainers.trainer import Task
from planner.units import Array


def task(scatters: bool = False) -> Task:
    found = understand(
        Question(model="llama-3-8b", cluster="h100-sxm:32", trainer="megatron", global_batch=32)
    ).task
    overlap = replace(found.trainer.overlap, sends=1.0)
    return replace(found, trainer=replace(found.trainer, overlap=overlap, scatters_sends=scatters))


def layout(**degrees: int) -> Candidates:
    return single(**degrees, shard_group=degrees.get("dp", 1))


def test_only_boundaries_between_nodes_cross_the_network() -> None:
    question = task()
    priced = prices(question, layout(tp=4, pp=8))
    node, network = priced.sends.exposed[:, 0]
    assert network > node
    seconds = priced.sends.boundaries(8)[0]
    assert seconds.tolist() == [node, network] * 4
    assert priced.sends.least[0] == node
    assert priced.sends.free().boundaries(8).max() == 0


def test_stages_that_fill_nodes_cross_the_network_every_time() -> None:
    priced = prices(task(), concatenate([layout(tp=8, pp=4), layout(dp=8, pp=4)]))
    for seconds, row in zip(priced.sends.boundaries(4), priced.sends.exposed.T, strict=True):
        assert seconds.tolist() == [row[1]] * 4
    assert priced.sends.least.tolist() == priced.sends.exposed[1].tolist()


def test_scattered_sends_carry_a_part_and_gather_it_inside_the_node() -> None:
    whole, part = (prices(task(scatters), layout(tp=8, pp=4)) for scatters in (False, True))
    assert part.sends.exposed[1, 0] < 0.5 * whole.sends.exposed[1, 0]
    split = prices(task(True), layout(tp=8, pp=4, sp=True))
    plain = prices(task(False), layout(tp=8, pp=4, sp=True))
    assert split.sends.exposed[1, 0] == plain.sends.exposed[1, 0]


def test_a_chip_that_sends_alone_has_the_card_that_its_node_shares() -> None:
    """Of four chips on a card, a stage of one has all of it, of two half each; stages of four or eight use it up."""
    own = task()
    network = replace(own.cluster.levels[-1], sharers=4)
    shared = replace(own, cluster=replace(own.cluster, levels=(*own.cluster.levels[:-1], network)))
    rows = concatenate([layout(tp=tp, pp=32 // tp) for tp in (1, 2, 4, 8)])
    alone, among = (
        prices(question, rows).sends.exposed[-1] - network.latency for question in (own, shared)
    )
    assert alone / among == pytest.approx([4.0, 2.0, 1.0, 1.0])


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_a_step_is_no_faster_than_without_sends(pp: int) -> None:
    priced = prices(task(), layout(tp=32 // pp if pp > 2 else 4, dp=4 if pp == 2 else 1, pp=pp))
    assert np.all(exact(priced).step >= exact(replace(priced, sends=priced.sends.free())).step)


def waiting(exchange: float | None, share: float = 1.0) -> Task:
    found = task()
    overlap, overhead = found.trainer.overlap, found.trainer.overhead
    trainer = replace(
        found.trainer,
        overlap=replace(overlap, sends=share),
        overhead=replace(overhead, exchange=exchange),
    )
    return replace(found, trainer=trainer)


def steady(question: Task, **degrees: int) -> float:
    """Seconds of 64 more micro-batches, less the jitter of pipelines."""
    steps = [
        float(exact(prices(replace(question, recipe=recipe), layout(**degrees))).step[0])
        for recipe in (replace(question.recipe, global_batch=count) for count in (64, 128))
    ]
    return (steps[1] - steps[0]) / (1.0 + question.trainer.overhead.jitter)


INTERLEAVED = SCHEDULES.index("interleaved")


@pytest.mark.parametrize("tp", [2, 8])
def test_interleaved_stages_that_wait_lose_an_exchange_for_every_pair_of_passes(tp: int) -> None:
    """Four chunks a stage: as many exchanges a micro-batch, each as long as its slower boundary and the host."""
    host = 1e-3
    degrees = {"tp": tp, "pp": 4, "vpp": 4, "dp": 8 // tp, "schedule": INTERLEAVED}
    longest = float(prices(waiting(host), layout(**degrees)).sends.boundaries(4).max())
    rounds = 64 * tp // 8 * 4
    lost = steady(waiting(host), **degrees) - steady(waiting(None), **degrees)
    assert lost == pytest.approx(rounds * (longest + host), rel=1e-6)


def waits(priced: Prices) -> Array:
    return priced.sends.waits(priced.delays(4))


def test_only_interleaved_stages_wait_and_without_sends_nobody_does() -> None:
    plain = {"tp": 8, "pp": 4, "schedule": SCHEDULES.index("1f1b")}
    assert steady(waiting(1e-3), **plain) == steady(waiting(None), **plain)
    degrees = {"tp": 8, "pp": 4, "vpp": 4, "schedule": INTERLEAVED}
    priced = prices(waiting(1e-3), layout(**degrees))
    assert waits(priced).min() > 0.5e-3
    assert waits(priced.without_sends()).max() == 0.0
    assert waits(prices(waiting(None), layout(**degrees))).max() == 0.0
