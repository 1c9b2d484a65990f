"""The best stages of a layout against brute force over cuts and recompute, with each trainer's limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from planner.candidates import RECOMPUTE, SCHEDULES, single
from planner.cost.cut import Cut, uniform
from planner.cost.partition import even_cut
from planner.cost.prices import prices, with_cut, without_cut
from planner.cost.step import exact
from planner.errors import PlannerError
from planner.plan.layout import layout_of
from planner.planning import plan
from planner.pricing import price
from planner.question import Question, understand
from planner.search.stages.refine import refine
from planner.search.stages.solver import PROVEN

FULL, SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")


def layout(model="llama-3-8b", layers=6, trainer="megatron", vocab=128256, **degrees):
    """One layout of a model with few layers, priced."""
    known = understand(
        Question(
            model=model,
            cluster="h100-sxm:8",
            trainer=trainer,
            global_batch=16,
            seq_len=4096,
            overrides={"layers": str(layers), "vocab": str(vocab)},
        )
    )
    return prices(known.task, single(**degrees))


def every_cut(layers, pp, mixing):
    """All cuts into stages of any size, inner ones not empty, with all that they may recompute."""
    for places in combinations_with_replacement(range(layers + 1), pp - 1):
        sizes = np.diff([0, *places, layers])
        if (sizes[1:-1] == 0).any():
            continue
        if mixing == "count":
            for count in range(int(sizes.max()) + 1):
                yield Cut(sizes, np.minimum(sizes, count), np.zeros_like(sizes))
            continue
        ways = [[(f, s) for f in range(n + 1) for s in range(n + 1 - f)] for n in sizes.tolist()]
        for chosen in product(*ways):
            full, selective = np.array(chosen).T
            yield Cut(sizes, full, selective)


def brute_force(p, mixing, limit):
    found = []
    for cut in every_cut(p.task.model.num_layers, 2, mixing):
        mode = np.array([cut.base])
        rows = replace(p.rows, recompute=mode)
        found.append(exact(with_cut(replace(p, rows=rows), cut)))
    return min((float(e.step[0]) for e in found if e.memory[0] <= limit), default=np.inf)


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize(
    "degrees", [{"pp": 4, "tp": 2}, {"pp": 2, "dp": 4, "vpp": 3, "schedule": 2}]
)
def test_the_even_cut_costs_the_same_by_either_way(mode, degrees):
    p = layout(recompute=mode, **degrees)
    even = uniform(even_cut(6, degrees["pp"], degrees.get("vpp", 1)), mode)
    wide = with_cut(p, even)
    plain, found = exact(p), exact(wide)
    assert found.step == pytest.approx(plain.step, rel=1e-12)
    assert found.memory == pytest.approx(plain.memory, rel=1e-12)
    back = without_cut(wide)
    assert exact(back).step == pytest.approx(plain.step)
    assert back.table.saved.shape == p.table.saved.shape


@pytest.mark.parametrize("mixing", ["count", "stages"])
@pytest.mark.parametrize("share", [1.0, 0.93, 0.86])
def test_brute_force_agrees(mixing, share):
    p = layout(pp=2, dp=2, tp=2, sp=1, micro_batch=2)
    limit = share * float(exact(p).memory[0])
    best, found = brute_force(p, mixing, limit), refine(p, mixing, limit)
    if np.isinf(best):
        assert found is None
        return
    assert found is not None
    assert found.step == pytest.approx(best, rel=1e-9)
    assert found.memory <= limit


@pytest.mark.parametrize("vocab", [32_000, 400_000])
@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("trainer", ["megatron", "mindspore"])
def test_what_follows_the_schedule_counts_too(vocab, vpp, trainer):
    """Few micro-batches of few tokens: gradients and the optimizer take as long as the schedule."""
    degrees = {
        "pp": 2,
        "dp": 4,
        "vpp": vpp,
        "schedule": SCHEDULES.index("interleaved") if vpp > 1 else 1,
    }
    p = layout(layers=7, trainer=trainer, vocab=vocab, **degrees)
    cuts = [
        np.diff([0, *places, 7]) for places in combinations_with_replacement(range(8), 2 * vpp - 1)
    ]
    cuts = [cut for cut in cuts if (cut[1:-1] > 0).all() and (vpp == 1 or cut.min() > 0)]
    steps = [
        float(exact(with_cut(p, uniform(cut, int(p.rows.recompute[0])))).step[0]) for cut in cuts
    ]
    found = refine(p, "alike", 1e15)
    assert found is not None
    assert found.step == pytest.approx(min(steps), rel=PROVEN)


def test_a_tight_limit_makes_stages_uneven_or_repeats_only_some_layers():
    p = layout(layers=16, pp=4, tp=2, sp=1, micro_batch=2)
    even = exact(p)
    limit = 0.9 * float(even.memory[0])
    some, alike = refine(p, "stages", limit), refine(p, "alike", limit)
    whole = layout(layers=16, pp=4, tp=2, sp=1, micro_batch=2, recompute=FULL)
    assert some is not None
    assert some.step < float(exact(whole).step[0])
    assert some.step <= (np.inf if alike is None else alike.step) * (1 + 1e-12)
    assert some.prices.cut is not None
    assert some.prices.cut.layers.sum() == 16


def test_as_many_layers_of_every_chunk_are_repeated_where_a_trainer_has_one_number():
    p = layout(
        layers=16, pp=2, tp=4, vpp=4, sp=1, micro_batch=4, schedule=SCHEDULES.index("interleaved")
    )
    limit = 0.85 * float(exact(p).memory[0])
    found = refine(p, "count", limit)
    assert found is not None
    cut = found.prices.cut
    assert cut is not None
    assert cut.mixed
    assert set(np.minimum(cut.layers, cut.full.max()).tolist()) == set(cut.full.tolist())
    free = refine(p, "stages", limit)
    assert free is not None
    assert free.step <= found.step


def test_chunks_of_a_stage_take_turns_in_what_is_repeated():
    p = layout(
        layers=16, pp=2, tp=4, vpp=4, sp=1, micro_batch=4, schedule=SCHEDULES.index("interleaved")
    )
    found = refine(p, "stages", 0.9 * float(exact(p).memory[0]))
    assert found is not None
    assert found.prices.cut is not None
    again = (found.prices.cut.full + found.prices.cut.selective).reshape(4, 2)
    assert (again.max(axis=0) - again.min(axis=0) <= 1).all()


def test_nothing_fits_in_no_memory():
    p = layout(pp=2, dp=4)
    assert refine(p, "stages", 1e6) is None


def test_a_plan_states_its_stages_again():
    facts = {"model": "llama-3-8b", "cluster": "h100-sxm:16", "trainer": "mindspore"}
    whole = price(Question(**facts, global_batch=64), {"tp": 2, "pp": 2, "cp": 2}, usual=True)
    question = Question(
        **facts,
        global_batch=64,
        memory_limit=f"{0.9 * whole.memory_upper / 2**30:.2f}",
        pins=("tp=2", "pp=2", "cp=2", "vpp=1", "mbs=1"),
    )
    found = plan(question)
    assert found.degrees.recompute == "mixed"
    assert sum(found.degrees.layers) == 32
    again = price(question, layout_of(found.degrees))
    assert again.step == pytest.approx(found.step, rel=1e-12)
    assert again.memory == pytest.approx(found.memory, rel=1e-12)
    assert again.stages == found.stages
    assert sum(sum(stage.recompute.values()) for stage in found.stages) == 32


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ({"stage-layers": "16+15"}, "is 31 layers; the model has 32"),
        ({"stage-layers": "16+8+8"}, "names 3 chunks; pp · vpp is 2"),
        ({"stage-layers": "16,16"}, "no sum of whole numbers"),
        ({"full-layers": "1+1"}, "of which layers is not said"),
        (
            {"stage-layers": "30+2", "full-layers": "0+2", "selective-layers": "0+1"},
            "recomputes 3 of 2 layers",
        ),
    ],
)
def test_what_divides_no_layers_is_refused(words, wrong):
    question = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64)
    with pytest.raises(PlannerError) as error:
        price(question, {"pp": 2, "tp": 8, **words})
    assert error.value.faults[0].code == "N02"
    assert wrong in error.value.faults[0].what


def test_a_stated_division_stands_among_the_pins():
    question = Question(model="llama-3-8b", cluster="h100-sxm:16", global_batch=64)
    found = price(question, {"pp": 2, "tp": 8, "stage-layers": "17+15"})
    assert found.pins == ("pp=2", "tp=8", "stage-layers=17+15")


@pytest.mark.parametrize(
    ("trainer", "words", "wrong"),
    [
        ("torchtitan", {"full-layers": "1+1"}, "cannot recompute some layers and not others"),
        ("megatron", {"full-layers": "2+1"}, "one number of layers"),
        ("megatron", {"full-layers": "2+2", "selective-layers": "1+1"}, "one number of layers"),
    ],
)
def test_what_a_trainer_cannot_mix_is_refused(trainer, words, wrong):
    question = Question(model="llama-3-8b", cluster="h100-sxm:16", trainer=trainer, global_batch=64)
    with pytest.raises(PlannerError) as error:
        price(question, {"pp": 2, "tp": 8, "stage-layers": "16+16", **words})
    assert error.value.faults[0].code == "T01"
    assert wrong in error.value.faults[0].what
