"""The recompute of runs of layers that is found by halving, against every choice there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.candidates import single
from planner.cost.cut import uniform
from planner.cost.partition import even_cut
from planner.cost.prices import prices, with_cut
from planner.question import Question, understand
from planner.search.stages.runs import Runs
from planner.search.stages.single import beginnings
from planner.search.stages.solver import solve
from planner.search.stages.table import StageTable
from tests.search.test_stages import PLAIN, table_of

GIB = 2.0**30


def layout(model, trainer, pp, layers):
    known = understand(
        Question(
            model=model,
            cluster="h100-sxm:16",
            trainer=trainer,
            global_batch=64,
            seq_len=4096,
            overrides={"layers": str(layers)} if layers else {},
        )
    )
    row = prices(known.task, single(pp=pp, tp=2, dp=16 // (2 * pp)))
    return with_cut(row, uniform(even_cut(known.task.model.num_layers, pp, 1), 0))


@pytest.mark.parametrize(
    ("model", "trainer", "layers"),
    [
        ("llama-3-8b", "megatron", 9),
        ("llama-3-8b", "mindspore", 9),
        ("deepseek-v2-lite", "megatron", None),
        ("deepseek-v2-lite", "mindspore", None),
    ],
)
@pytest.mark.parametrize("pp", [2, 4])
def test_halving_finds_what_is_fastest_of_all_choices(model, trainer, layers, pp):
    p = layout(model, trainer, pp, layers)
    kinds = p.task.model.layers
    ends = [(0, 1), (0, 4), (0, 9), (1, 7), (2, 9), (4, 4)]
    spans = [kinds[low:high] for low, high in ends]
    some = 0
    for limit in np.geomspace(4.0, 120.0, 120) * GIB:
        runs = Runs(p, p.task.trainer.mixes_recompute, limit)
        held = runs.held(spans)
        run, full, selective, known = runs.choices(held)
        found = runs.fastest(held)
        for stage in range(pp):
            for number in range(len(spans)):
                fits = np.flatnonzero((run == number) & known.fits[stage])
                assert bool(len(fits)) == bool(found.known.fits[stage, number])
                if not len(fits):
                    continue
                best = fits[known.backward[stage, fits].argmin()]
                mine = (found.full[stage, number], found.selective[stage, number])
                seconds = known.backward[stage, best]
                assert found.known.backward[stage, number] == pytest.approx(seconds, rel=1e-12)
                assert mine == (full[best], selective[best])
                some += bool(full[best] + selective[best])
    assert some > 10


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.integers(0, 12))
def test_beginnings_are_alike_where_the_same_layers_follow(layers, longest):
    kind, firsts = beginnings(layers, longest)
    for low, number in enumerate(kind.tolist()):
        first = firsts[number]
        follow = layers[low : low + longest]
        assert layers[first : first + longest][: len(follow)] == follow
    assert len(kind) == len(layers) + 1
    if len(set(layers)) == 1:
        assert firsts == [0]


@given(st.sampled_from(PLAIN), st.integers(1, 12), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_table_folded_by_equal_layers_is_solved_as_the_whole_one(schedule, m, seed):
    """Seconds that depend on the stage and the number of layers only."""
    whole = table_of(schedule, m, 12, 3, 0.1, seed)
    equal = {
        name: np.repeat(getattr(whole, name)[:, :1], 13, axis=1)
        for name in ("forward", "backward", "weight")
    }
    whole = replace(whole, **equal)
    folded = StageTable(
        schedule=whole.schedule,
        micro_batches=m,
        sizes=whole.sizes,
        kind=np.zeros(13, dtype=np.int64),
        forward=whole.forward[:, :1],
        backward=whole.backward[:, :1],
        weight=whole.weight[:, :1],
        send=whole.send,
    )
    mine, other = solve(folded), solve(whole)
    assert mine is not None
    assert other is not None
    assert mine.layers.tolist() == other.layers.tolist()
    assert (mine.makespan, mine.bound) == (other.makespan, other.bound)
