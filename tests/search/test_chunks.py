"""Several chunks a stage: uneven ones against brute force, bounds that hold, and what asks for them."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.candidates import SCHEDULES, single
from planner.cost.bounds import stage_bound
from planner.cost.cut import Cut, uniform
from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.cost.partition import even_cut
from planner.cost.prices import prices, with_cut
from planner.cost.step import exact
from planner.errors import PlannerError
from planner.planning import plan
from planner.question import Question, understand
from planner.search.stages import levelled
from planner.search.stages.levelled import floor, solve
from planner.search.stages.probes import Settled
from planner.search.stages.refine import refine
from planner.search.stages.solver import PROVEN

few = settings(max_examples=25, deadline=None, derandomize=True)
INTERLEAVED = SCHEDULES.index("interleaved")


def layout(model, layers, trainer="torchtitan", **degrees):
    """One interleaved layout, priced."""
    known = understand(
        Question(
            model=model,
            cluster="h100-sxm:1024",
            trainer=trainer,
            global_batch=512,
            seq_len=4096,
            overrides={} if layers is None else {"layers": str(layers)},
        )
    )
    return prices(known.task, single(schedule=INTERLEAVED, **degrees))


def compositions(layers, parts):
    for places in combinations(range(1, layers), parts - 1):
        yield np.diff([0, *places, layers])


def repeated(sizes, counts):
    """What the chunks of two stages recompute, layers taken from them in turn; ``counts`` full and selective."""
    again = np.zeros((2, len(sizes)), dtype=np.int64)
    for stage, (full, part) in enumerate(counts):
        chunks = range(stage, len(sizes), 2)
        turns = [c for turn in range(int(sizes.max())) for c in chunks if turn < sizes[c]]
        np.add.at(again[0], turns[:full], 1)
        np.add.at(again[1], turns[full : full + part], 1)
    return again


def brute_force(p, layers, vpp, *, mixed):
    """Exact steps and memory of every cut into two stages of several chunks."""
    mode = int(p.rows.recompute[0])
    for sizes in compositions(layers, 2 * vpp):
        held = [int(sizes[stage::2].sum()) for stage in range(2)]
        ways = [[(f, s) for f in range(n + 1) for s in range(n + 1 - f)] for n in held]
        cuts = (
            (Cut(sizes, *repeated(sizes, chosen)) for chosen in product(*ways))
            if mixed
            else [uniform(sizes, mode)]
        )
        for cut in cuts:
            rows = replace(p.rows, recompute=np.array([cut.base]))
            found = exact(with_cut(replace(p, rows=rows), cut))
            yield float(found.step[0]), float(found.memory[0])


@pytest.mark.parametrize("head", [32_000, 256_000])
@pytest.mark.parametrize("share", [1.0, 0.93])
def test_brute_force_agrees(head, share):
    facts = {"layers": "9", "vocab": str(head)}
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:8", trainer="torchtitan", global_batch=16,
        seq_len=4096, overrides=facts,
    )  # fmt: skip
    task = understand(question).task
    p = prices(task, single(pp=2, vpp=2, tp=2, dp=2, sp=1, micro_batch=2, schedule=INTERLEAVED))
    limit = share * float(exact(p).memory[0])
    best = min(
        (step for step, memory in brute_force(p, 9, 2, mixed=False) if memory <= limit),
        default=np.inf,
    )
    found = refine(p, "alike", limit)
    assert (np.inf if found is None else found.step) == pytest.approx(best, rel=1e-9)
    assert found is None or found.memory <= limit


@pytest.mark.parametrize("share", [0.95, 0.9, 0.85])
def test_brute_force_over_cuts_and_recompute_agrees(share):
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:8", trainer="torchtitan", global_batch=16,
        seq_len=4096, overrides={"layers": "5"},
    )  # fmt: skip
    task = understand(question).task
    p = prices(task, single(pp=2, vpp=2, tp=2, dp=2, sp=1, micro_batch=2, schedule=INTERLEAVED))
    limit = share * float(exact(p).memory[0])
    steps = [step for step, memory in brute_force(p, 5, 2, mixed=True) if memory <= limit]
    found = refine(p, "stages", limit)
    assert found is not None
    assert found.step == pytest.approx(min(steps), rel=1e-9)
    assert found.memory <= limit
    assert found.gap <= PROVEN * (1 + 1e-9)
    assert found.step * (1 - found.gap) <= min(steps) * (1 + 1e-9)


class Numbers:
    """Chunks of layers of given times on stages that hold at most so many layers."""

    def __init__(self, seconds, p, v, m, most):
        self.sums = np.concatenate([np.zeros((2, 1)), np.cumsum(seconds, axis=1)], axis=1)
        self.p, self.v, self.m, self.most = p, v, m, most
        self.lead = np.zeros(p)

    def times(self, cuts):
        ends = np.cumsum(cuts, axis=1)
        parts = self.sums[:, ends] - self.sums[:, ends - cuts]
        return parts.reshape(2, len(cuts), self.v, self.p).swapaxes(2, 3)

    def loads(self, cuts):
        held = cuts.reshape(-1, self.v, self.p).sum(axis=1)
        seconds = self.times(cuts).sum(axis=(0, 3)) * self.m
        return np.where(held <= self.most, seconds, np.inf)

    def makespans(self, cuts):
        return makespan(Schedule.INTERLEAVED, self.m, *self.times(cuts), 0.01)

    def bounds(self, cuts):
        return stage_bound(Schedule.INTERLEAVED, self.m, *self.times(cuts), 0.01)

    def settled(self, cuts, known, place):
        return Settled(known, known, place, None)


@given(
    st.integers(0, 2**32), st.sampled_from([(2, 2), (3, 2), (2, 3)]), st.sampled_from([0.0, 0.4])
)
@few
def test_levelled_cuts_are_close_to_the_best_and_never_worse_than_the_first(seed, shape, spread):
    (p, v), layers = shape, 13
    generator = np.random.default_rng(seed)
    seconds = np.exp(spread * generator.standard_normal((2, layers))) * [[1.0], [2.0]]
    seconds[:, -1] += generator.random() * 3
    pricing = Numbers(seconds, p, v, 6 * p, most=layers // p + 2)
    stage, start = np.arange(p * v) % p, even_cut(layers, p, v)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levelled, "EXHAUSTIVE", 0)
        found = solve(pricing, stage, start, np.ones_like(start))
    assert found is not None
    cut, step = found.layers, found.makespan
    assert cut.sum() == layers
    assert cut.min() >= 1
    assert step <= pricing.makespans(start[None])[0] * (1 + 1e-12)
    every = np.array(list(compositions(layers, p * v)))
    every = every[np.isfinite(pricing.loads(every)).all(axis=1)]
    best = pricing.makespans(every).min()
    assert found.bound <= best <= step <= best * 1.03


def of_random_layers(seed, p, v, layers, most):
    """Chunks of equal layers on stages that differ in speed, and what their stages take by the number of layers."""
    generator = np.random.default_rng(seed)
    speed = np.exp(0.5 * generator.standard_normal(p))
    pricing = Numbers(np.ones((2, layers)), p, v, 3 * p, most)
    plain = pricing.times
    pricing.times = lambda cuts: plain(cuts) * speed[:, None]
    held = np.arange(layers + 1)
    values = np.where(held <= most, 6.0 * p * speed[:, None] * held, np.inf)
    return pricing, np.arange(p * v) % p, values


@given(st.integers(0, 2**32), st.sampled_from([(2, 2), (3, 2), (2, 3)]))
@few
def test_cuts_are_filled_to_the_floor(seed, shape):
    (p, v), layers = shape, 13
    pricing, stage, values = of_random_layers(seed, p, v, layers, layers // p + 3)
    found = levelled.filled(values, layers, stage)
    for cut in found:
        assert cut.sum() == layers
        assert pricing.loads(cut[None]).max() == pytest.approx(floor(values, layers))
    assert found


@given(st.integers(0, 2**32), st.sampled_from([(2, 2), (3, 2), (2, 3)]))
@few
def test_possible_cuts_are_all_that_are_below_what_is_known_and_the_best_is_among_them(seed, shape):
    (p, v), layers = shape, 11
    pricing, stage, values = of_random_layers(seed, p, v, layers, layers - 3)
    every = np.array(list(compositions(layers, p * v)))
    every = every[np.isfinite(pricing.loads(every)).all(axis=1)]
    known = float(pricing.makespans(every[:1])[0])
    cuts = levelled.possible(values, layers, stage, known)
    below = every[(pricing.loads(every) < known).all(axis=1)]
    assert sorted(map(tuple, cuts.tolist())) == sorted(map(tuple, below.tolist()))
    best = levelled.exhausted(pricing, cuts, levelled.Levelled(every[0], known, 0.0), known)
    assert best.makespan == best.bound == pytest.approx(pricing.makespans(every).min())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levelled, "MANY", 0)
        assert levelled.possible(values, layers, stage, known) is None


def test_the_floor_is_the_least_time_of_the_busiest_stage():
    generator = np.random.default_rng(1)
    for _ in range(20):
        values = np.cumsum(generator.random((3, 9)), axis=1)
        values[generator.integers(3), 6:] = np.inf
        best = min(
            max(values[stage, n] for stage, n in enumerate(held))
            for held in product(range(9), repeat=3)
            if sum(held) == 11
        )
        assert floor(values[:, :], 11) <= best * (1 + 1e-12)
        wide = np.hstack([values, np.full((3, 3), np.inf)])
        assert floor(wide, 11) == pytest.approx(best)
    assert np.isinf(floor(np.array([[0.0, np.inf], [0.0, np.inf]]), 1))


@pytest.mark.parametrize("share", [1.0, 0.8])
@pytest.mark.parametrize(
    ("layers", "degrees", "limit"),
    [
        (126, {"tp": 8, "pp": 16, "vpp": 8, "dp": 8}, 0.3),
        (1000, {"tp": 8, "pp": 64, "vpp": 4, "dp": 2}, 3.0),
    ],
)
@pytest.mark.parametrize("mixing", ["stages", "count"])
def test_long_models_are_cut_into_chunks_quickly(layers, degrees, limit, share, mixing):
    p = layout("llama-3.1-405b", layers, sp=1, **degrees)
    even = exact(p)
    begin = time.process_time()
    found = refine(p, mixing, share * float(even.memory[0]))
    assert time.process_time() - begin < 3 * limit
    assert found is not None
    assert found.gap <= (PROVEN * (1 + 1e-9) if layers == 126 else 0.15)
    if share == 1.0:
        assert found.step <= float(even.step[0]) * (1 + 1e-12)


@pytest.mark.parametrize("share", np.linspace(1.0, 0.64, 12).round(2))
def test_stages_that_recompute_at_will_are_proven_from_loose_to_tight_memory(share):
    p = layout("llama-3.1-405b", 126, sp=1, tp=8, pp=16, vpp=8, dp=8)
    limit = share * float(exact(p).memory[0])
    begin = time.process_time()
    found = refine(p, "stages", limit)
    assert time.process_time() - begin < 3 * 0.3
    assert found is not None
    assert found.memory <= limit
    assert found.gap <= PROVEN * (1 + 1e-9)


@pytest.mark.parametrize("trainer", ["megatron", "mindspore"])
def test_a_bound_on_chunks_holds_for_what_recompute_finds(trainer):
    p = layout("llama-3-8b", 32, trainer, pp=4, vpp=2, tp=2, dp=128, sp=1)
    limit = 0.85 * float(exact(p).memory[0])
    free = refine(p, "stages", limit)
    assert free is not None
    assert 0.0 <= free.gap < 1.0
    counted = refine(p, "count", limit)
    assert counted is not None
    assert counted.step * (1 + 1e-9) >= free.step * (1 - free.gap)


def test_uneven_chunks_are_planned_where_they_are_asked_for():
    facts = {"cluster": "h100-sxm:16", "trainer": "megatron", "global_batch": 64}
    question = Question(
        model="llama-3-8b",
        seq_len=2048,
        overrides={"layers": "29"},
        **facts,
        pins=("pp=4", "vpp=2"),
    )
    found = plan(question)
    cut = [len(layers) for layers in chunk_layers(found)]
    assert len(cut) == 8
    assert sum(cut) == 29
    assert plan(replace(question, pins=("pp=4",))).step <= found.step * (1 + 1e-9)
    with pytest.raises(
        PlannerError, match="pp 8 × 4 virtual stages are 32, more than the 29 layers"
    ):
        plan(replace(question, pins=("pp=8", "vpp=4")))


def chunk_layers(found):
    """Layers of every chunk of a plan, in the order of the model."""
    spans = [stage.layers for stage in found.stages]
    count = len(spans[0])
    return [
        range(int(span.split("-")[0]), int(span.split("-")[-1]) + 1)
        for chunk in range(count)
        for span in (each[chunk] for each in spans)
    ]
