"""The fastest pipeline over pools of different chips against brute force over layouts, seats and cuts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest

from planner.candidates import SCHEDULES, single
from planner.cost.cut import Cut, uniform
from planner.cost.prices import prices, with_cut
from planner.cost.step import exact, makespans, memory_of_stages, stage_times
from planner.frontends.cluster_file import read_cluster
from planner.hardware.pools import Pools, slowest_link
from planner.planning import plan
from planner.question import Question, understand
from planner.search.breakdown import breakdown
from planner.search.pools import search, uses
from planner.search.pools.bounds import Beside, speeds, step_bounds
from planner.search.pools.place import Seats, Site, placed, rooms, spread
from planner.search.pools.room import Rounds, needs
from planner.search.pools.room import makespans as least_makespans
from planner.search.pools.search import search_pipelines
from planner.search.pools.space import may_run, orders, seatings, stage_layouts
from planner.search.stages.paths import Met
from planner.search.stages.refine import refine_chunks
from planner.search.timeline import timeline
from tests.pools.sites import MIXED, asked, site_of

INTERLEAVED = SCHEDULES.index("interleaved")


def cuts(layers, stages):
    """Numbers of layers of every stage, inner ones not empty."""
    for places in combinations_with_replacement(range(layers + 1), stages - 1):
        sizes = np.diff([0, *places, layers])
        if (sizes[1:-1] > 0).all():
            yield sizes


def recomputed(sizes, mixing):
    """Cuts of these sizes: every chunk recomputes the same number of layers, or nothing may be recomputed."""
    counts = range(int(sizes.max()) + 1) if mixing == "count" else (0,)
    for count in counts:
        yield Cut(sizes, np.minimum(sizes, count), np.zeros_like(sizes))


def rows_of(site, pins, *, chunked=False):
    """Every layout of a stage, a table of one row each."""
    rows, chunks = stage_layouts(site, pins, chunked=chunked)
    for index, counts in enumerate(chunks):
        for vpp in counts:
            yield replace(rows.take(np.array([index])), vpp=np.array([vpp]))


def everything(site, pins, mixing):
    """Steps of all pipelines over several pools that fit, with what they are."""
    for row in rows_of(site, pins):
        chips = int(row.ranks[0] // row.pp[0])
        for stages in seatings(site, chips, pins).T:
            if not may_run(site, row, stages[:, None])[0]:
                continue
            for seats in orders(stages):
                p = placed(site, row, seats)
                for sizes in cuts(site.tasks[0].model.num_layers, len(seats.of_stage)):
                    for cut in recomputed(sizes, mixing if row.recompute[0] == 0 else ""):
                        mode = np.array([cut.base]) if mixing else row.recompute
                        if not mixing:
                            cut = uniform(sizes, int(row.recompute[0]))
                        cutting = with_cut(p, cut).stated(replace(p.rows, recompute=mode))
                        memory = memory_of_stages(cutting, stage_times(cutting).blocks).total[0]
                        if (memory <= rooms(site, seats)).all():
                            yield float(exact(cutting).step[0]), seats, sizes


@pytest.mark.parametrize(
    ("question", "mixing"),
    [
        (asked(pins=("recompute=none", "mbs=1", "tp=1", "zero=1"), layers=5), ""),
        (asked(pins=("recompute=none", "mbs=2", "cp=1", "zero=1"), batch=16, layers=4), ""),
        (asked("t4:2 + v100-sxm-16gb:3", pins=("recompute=none", "mbs=1", "cp=1"), layers=4), ""),
        (
            asked("a100-sxm-80gb:2 + h100-sxm:1 + t4:2", pins=("recompute=none", "mbs=1", "cp=1", "zero=1"), layers=4,
                  precision="fp16"),
            "",
        ),
        (
            asked(model="gpt2-xl", pins=("mbs=1", "zero=0"), layers=12,
                  memory_limit="52%", cluster="v100-sxm-16gb:1 + t4:1", batch=6),
            "count",
        ),
    ],
)  # fmt: skip
def test_search_finds_what_brute_force_finds(question, mixing):
    site, pins = site_of(question)
    best, seats, sizes = min(everything(site, pins, mixing), key=lambda each: each[0])
    found = search_pipelines(site, pins)
    assert not found.stopped
    first = found.best[0]
    assert first.step == pytest.approx(best, rel=1e-3)
    assert first.step >= best * (1 - 1e-9)
    assert found.bound <= best * (1 + 1e-9)
    assert found.bound >= best * (1 - 1e-3)
    assert len(sizes) == len(seats.of_stage)


def chunked(site, pins):
    """Steps of all pipelines of several chunks over several pools that fit, none of whose chunks is empty."""
    for row in rows_of(site, pins, chunked=True):
        chips = int(row.ranks[0] // row.pp[0])
        for stages in seatings(site, chips, pins).T:
            if not may_run(site, row, stages[:, None])[0]:
                continue
            for seats in orders(stages):
                chunks = len(seats.of_stage) * int(row.vpp[0])
                layers = site.tasks[0].model.num_layers
                if chunks > layers:
                    continue
                p = placed(site, row, seats)
                for places in combinations(range(1, layers), chunks - 1):
                    sizes = np.diff([0, *places, layers])
                    cutting = with_cut(p, uniform(sizes, int(row.recompute[0])))
                    memory = memory_of_stages(cutting, stage_times(cutting).blocks).total[0]
                    if (memory <= rooms(site, seats)).all():
                        yield float(exact(cutting).step[0]), seats, sizes


def waiting(site, exchange):
    """The same where stages wait for what they exchange."""

    def waits(task):
        overhead = replace(task.trainer.overhead, exchange=exchange)
        return replace(task, trainer=replace(task.trainer, overhead=overhead))

    return replace(site, tasks=tuple(map(waits, site.tasks)))


@pytest.mark.parametrize("exchange", [None, 2e-3])
@pytest.mark.parametrize(
    "question",
    [
        asked("a100-sxm-80gb:1 + v100-sxm-16gb:1", model="gpt2-xl", layers=8, batch=8,
              precision="fp16", pins=("recompute=none", "mbs=1", "zero=1")),
        asked("h100-sxm:2 + a100-sxm-80gb:1", model="gpt2-xl", layers=7, batch=12,
              pins=("recompute=none", "mbs=1", "cp=1", "zero=1")),
        asked("v100-sxm-16gb:1 + t4:1", model="gpt2", layers=9, batch=16, memory_limit="45%",
              pins=("recompute=full", "zero=1", "mbs=2")),
    ],
)  # fmt: skip
def test_search_of_several_chunks_finds_what_brute_force_finds(question, exchange):
    site, pins = site_of(question)
    site = waiting(site, exchange)
    best, _, sizes = min(chunked(site, pins), key=lambda each: each[0])
    found = search_pipelines(site, pins, chunked=True)
    assert not found.stopped
    assert found.best[0].step == pytest.approx(best, rel=1e-3)
    assert found.bound <= best * (1 + 1e-9)
    assert found.bound >= best * (1 - 1e-3)
    told = uses._stages(site, uses.CHUNKED, replace(found, best=(replace(found.best[0], gap=0.5),)))
    assert told.gap <= 1e-3  # that of all cuts, not what was known when the best one was found
    assert int(found.best[0].prices.rows.vpp[0]) > 1
    assert len(sizes) >= 4


@pytest.mark.parametrize("share", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("how", ["bound", "moves", "programs"])
def test_no_cut_into_chunks_beats_its_bound_whatever_runs_again(how, share):
    """Every cut of two stages with every number of layers of a chunk that run again, within memory."""
    site, _ = site_of(asked("h100-sxm:2 + a100-sxm-80gb:2", model="gpt2-xl", layers=9, batch=16))
    row = single(dp=2, pp=2, vpp=2, micro_batch=2, sharding=1, schedule=INTERLEAVED)
    p = placed(site, row, Seats((1, 0), (1, 1)))
    steps, memories = [], []
    for places in combinations(range(1, 9), 3):
        for cut in recomputed(np.diff([0, *places, 9]), "count"):
            cutting = with_cut(p, cut).stated(replace(p.rows, recompute=np.array([cut.base])))
            steps.append(float(exact(cutting).step[0]))
            memories.append(memory_of_stages(cutting, stage_times(cutting).blocks).total.max())
    limit = float(np.quantile(memories, share))
    best = min(s for s, memory in zip(steps, memories, strict=True) if memory <= limit)
    found, bound = refine_chunks(p, "count", limit, 2 * best, Met(), how)
    assert bound <= best * (1 + 1e-9)
    assert bound >= best * (0.95 if how == "programs" else 0.9)
    if how != "bound":
        assert best * (1 - 1e-9) <= found.step <= best * 1.02


def test_layouts_that_the_trainer_forbids_take_no_place_of_those_that_are_cut(monkeypatch):
    """Of six micro-batches interleaving leaves numbers of stages that divide them; most of the least bounds do not."""
    site, pins = site_of(
        asked("a100-sxm-80gb:4 + h100-sxm:2", model="gpt2-xl", layers=12, batch=6, precision="fp16",
              pins=("recompute=none", "mbs=1", "zero=1", "cp=1"))
    )  # fmt: skip
    free = search_pipelines(site, pins, chunked=True)
    monkeypatch.setattr(search, "HOPES", 12)
    few = search_pipelines(site, pins, chunked=True)
    assert few.best[0].step == free.best[0].step
    assert few.bound == free.bound > 0.97 * free.best[0].step
    rows, _ = stage_layouts(site, pins, chunked=True)
    for index in range(len(rows)):
        row = rows.take(np.array([index]))
        chips = int(row.ranks[0] // row.pp[0])
        stages = seatings(site, chips, pins)
        batches = int(row.num_micro_batches(6)[0])
        assert (may_run(site, row, stages) == (batches % stages.sum(axis=0) == 0)).all()


def test_what_is_known_to_be_faster_ends_the_search():
    site, pins = site_of(asked(layers=4, pins=("tp=1", "cp=1", "zero=1")))
    free = search_pipelines(site, pins)
    held = search_pipelines(site, pins, reached=free.best[0].step * 0.9)
    assert not held.best
    assert held.refined < free.refined
    assert held.bound == free.best[0].step * 0.9


@pytest.mark.parametrize("limit", [None, "40%"])
def test_bounds_are_below_every_placing(limit):
    site, pins = site_of(asked(layers=4, batch=32, memory_limit=limit, pins=("cp=1", "zero=1")))
    rows, _ = stage_layouts(site, pins)
    rows = rows.take(rows.recompute == 0)
    some = rows.take(np.arange(0, len(rows), max(1, len(rows) // 3)))
    parts = tuple(prices(task, some) for task in site.tasks)
    fast = speeds(parts, site.link)
    need = needs(parts, [[0]] * len(some))
    overhead = site.tasks[0].trainer.overhead
    beside = Beside(overhead.step, overhead.jitter, site.tasks[0].model.num_layers)
    compared = 0
    for index in range(len(some)):
        row = some.take(np.array([index]))
        options = seatings(site, int(fast.chips[index]), pins)
        bounds = step_bounds(fast.repeat(index, options.shape[1]), options, beside)
        for stages, bound in zip(options.T, bounds, strict=True):
            for seats in orders(stages):
                steps, spans = [], []
                for sizes in cuts(4, len(seats.of_stage)):
                    p = with_cut(placed(site, row, seats), uniform(sizes, 0))
                    times = stage_times(p)
                    if (memory_of_stages(p, times.blocks).total[0] > rooms(site, seats)).any():
                        continue
                    steps.append(float(exact(p).step[0]))
                    spans.append(float(makespans(p, times)[0]))
                if not steps:
                    continue
                pools = np.array([seats.of_stage])
                m = int(fast.micro_batches[index])
                known = 2 * min(spans)
                rounds = Rounds(m, (1, 1), 4)
                (least,) = least_makespans(need, index, pools, rounds, known)
                assert bound <= min(steps) * (1 + 1e-9)
                assert least <= min(spans) * (1 + 1e-9)
                beat = min(spans) * (1 + 1e-6)
                (beaten,) = least_makespans(need, index, pools, rounds, beat)
                assert np.isfinite(beaten)
                compared += 1
    assert compared > 10


@pytest.mark.parametrize(("vpp", "exchange"), [(1, None), (3, None), (3, 1e-3)])
def test_two_pools_of_one_chip_cost_what_one_cluster_does(vpp, exchange):
    """Seats change nothing where pools have the same chips and the network between them is their own."""
    question = Question(model="gpt2-large", cluster="h100-sxm:32", global_batch=64, seq_len=1024)
    whole = understand(question).task
    half = replace(whole, cluster=read_cluster("h100-sxm:16"))
    link = slowest_link((half.cluster, half.cluster))
    site = Site((whole, half, half), replace(link, latency=whole.cluster.levels[-1].latency))
    whole, *halves = waiting(site, exchange).tasks
    site = replace(site, tasks=tuple(halves))
    degrees = {"dp": 4, "tp": 2, "pp": 4, "micro_batch": 2, "sp": 1, "sharding": 1, "vpp": vpp}
    row = single(**degrees, schedule=INTERLEAVED if vpp > 1 else 0)
    plain, mixed = prices(whole, row), placed(site, row, Seats((0, 1), (2, 2)))
    cut = uniform(np.full(4 * vpp, 36 // (4 * vpp)), 0)
    one, two = exact(with_cut(plain, cut)), exact(with_cut(mixed, cut))
    assert (mixed.sends.waits(mixed.delays(4)) > 0).all() == (exchange is not None)
    part = breakdown(with_cut(mixed, cut), 0)
    assert part.step == pytest.approx(float(one.step[0]), rel=1e-9)
    assert timeline(part).makespan == pytest.approx(part.makespan, rel=1e-12)
    assert two.step[0] == pytest.approx(one.step[0], rel=1e-12)
    assert two.memory[0] == pytest.approx(one.memory[0], rel=1e-12)
    over = spread(site, row)
    assert exact(with_cut(over, cut)).step[0] == pytest.approx(one.step[0], rel=1e-12)


@pytest.mark.parametrize("exchange", [None, 1e-3])
def test_a_slower_link_between_pools_makes_no_plan_faster(exchange):
    site, pins = site_of(
        asked("h100-sxm:2 + a100-sxm-80gb:1", model="gpt2-xl", layers=7, batch=12,
              pins=("recompute=none", "mbs=1", "cp=1", "zero=1"))
    )  # fmt: skip
    site, steps = waiting(site, exchange), []
    for slower in (1.0, 4.0, 64.0):
        link = replace(site.link, bandwidth=site.link.bandwidth / slower)
        steps.append(search_pipelines(replace(site, link=link), pins, chunked=True).best[0].step)
    assert steps == sorted(steps)
    assert steps[-1] > 1.01 * steps[0]


def test_a_stage_on_several_pools_waits_for_the_slowest():
    site, _ = site_of(asked("h100-sxm:8 + a100-sxm-80gb:8", layers=8, model="gpt2-xl", batch=32))
    row = single(dp=8, tp=1, pp=2, micro_batch=1)
    over = stage_times(spread(site, row))
    for part in spread(site, row).mix.parts:
        assert (over.forward >= stage_times(part).forward).all()
    b = breakdown(spread(site, row), 0)
    assert b.step == pytest.approx(float(exact(spread(site, row)).step[0]), rel=1e-9)
    slow = spread(site, row).mix.parts[1]
    assert np.array_equal(over.forward, stage_times(slow).forward)


def test_pools_know_their_names_and_sizes():
    pools = Pools(
        name="two",
        pools=(read_cluster("t4:4"), read_cluster("h100-sxm:8")),
        link=slowest_link((read_cluster("t4:4"), read_cluster("h100-sxm:8"))),
    )
    assert pools.num_chips == 12
    assert pools.link.bandwidth == read_cluster("t4:4").levels[-1].bandwidth


def test_an_ordinary_command_refuses_pools():
    from planner.errors import PlannerError

    with pytest.raises(PlannerError) as caught:
        plan(Question(model="gpt2", cluster=MIXED))
    assert caught.value.faults[0].code == "C06"


def test_many_layers_on_many_chips_are_proven_with_few_cuts():
    """The proof of two pools of 64 chips and 80 layers: nearly all placings are ruled out by their bounds."""
    question = Question(
        model="llama-3.1-70b",
        cluster="a100-sxm-80gb:64 + h100-sxm:64",
        global_batch=256,
        seq_len=8192,
        pins=("cp=1",),
    )
    site, pins = site_of(question)
    found = search_pipelines(site, pins, reached=30.0)
    assert not found.stopped
    assert found.best
    assert found.bound >= found.best[0].step * (1 - 1e-9)
    assert found.searched > 100_000
    assert found.refined < found.searched / 1000
