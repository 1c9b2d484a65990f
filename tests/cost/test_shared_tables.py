"""A table that embedding and head share is held, and its gradient reduced, once where both stand on one stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.candidates import SCHEDULES, single
from planner.cost.collectives import collective
from planner.cost.memory import TERMS
from planner.cost.prices import any_step_bound, prices, step_bound
from planner.cost.step import exact, memory_of_stages, stage_times, tight_bound
from planner.graph.architecture import Attention, Mlp
from tests.cost.blocks import cluster_of, level_of, model_of, task_of

HIDDEN, VOCAB = 64, 1024
TABLE = HIDDEN * VOCAB


def priced(facts, *, chips=0, levels=(), **layout):
    attention = Attention(heads=8, kv_heads=8, head_dim=16)
    model = model_of(attention, Mlp(width=128), 64, layers=4, vocab=VOCAB, **facts)
    chips = chips or layout.get("pp", 1) * layout.get("dp", 1)
    task = replace(task_of(model, global_batch=8), cluster=cluster_of(chips, *levels))
    row = single(sharding=0, **layout)
    return model, prices(task, row)


def weights(p):
    """Parameters of every stage."""
    found = memory_of_stages(p, stage_times(p).blocks)
    return found.parts[0, :, TERMS.index("weights")] / 2


@pytest.mark.parametrize("tied", [False, True])
def test_one_stage_holds_the_parameters_of_the_model(tied):
    model, p = priced({"tied": tied})
    assert weights(p).tolist() == [model.num_params]


def test_stages_that_are_apart_hold_a_table_each():
    model, p = priced({"tied": True}, pp=2)
    assert weights(p).sum() == model.num_params + TABLE


def test_a_stage_at_both_ends_of_a_v_holds_it_once():
    model, p = priced({"tied": True}, pp=2, vpp=2, schedule=SCHEDULES.index("zbv"))
    assert weights(p).sum() == model.num_params


@pytest.mark.parametrize(("pp", "tables"), [(1, 0), (2, 1)])
def test_multi_token_prediction_uses_the_head_beside_it_and_an_embedding_of_its_own(pp, tables):
    model, p = priced({"mtp": 1}, pp=pp)
    assert weights(p).sum() == model.num_params + model.num_mtp_params + tables * TABLE


def test_its_gradient_is_reduced_once():
    def seconds(tied):
        times = stage_times(priced({"tied": tied}, dp=2)[1])
        return float((times.exposed_states + times.hidden_states)[0, 0])

    model, _ = priced({"tied": True})
    other, _ = priced({"tied": False})
    assert seconds(True) < seconds(False)
    assert other.num_params == model.num_params + TABLE


CHIPS = (level_of(8, name="node", bandwidth=4e11), level_of())


@pytest.mark.parametrize(("pp", "tp", "level"), [(4, 2, 0), (2, 1, 0), (4, 4, 1), (2, 8, 1)])
def test_both_ends_sum_its_gradient_once_a_step(pp, tp, level):
    """One all-reduce of fp32 between two ranks over the link that first and last stage have to one another."""
    p = priced({"tied": True}, pp=pp, tp=tp, chips=16, levels=CHIPS)[1]
    pair = np.array([[2 if level == n else 1] for n in range(2)])
    size = 4.0 * TABLE / tp
    assert p.sends.ends == pytest.approx(
        collective("all-reduce", size, pair, p.task.cluster), rel=1e-12
    )
    link = CHIPS[level]
    slope = (size + np.sqrt(link.ramp_bytes * size)) / link.achieved
    assert p.sends.ends[0] == pytest.approx(slope + 2 * link.latency, rel=1e-9)


def test_it_is_part_of_the_step_and_of_its_bounds():
    apart, p = priced({"tied": False}, pp=4)[1], priced({"tied": True}, pp=4)[1]
    ends = p.sends.ends[0]
    assert ends > 0
    assert exact(p).step - exact(apart).step == pytest.approx(ends, rel=1e-9)
    for bound in (step_bound, any_step_bound, tight_bound):
        assert bound(p) - bound(apart) == pytest.approx(ends, rel=1e-9)
        assert bound(p) <= exact(p).step + 4 * np.spacing(exact(p).step)


@pytest.mark.parametrize(
    ("facts", "layout"),
    [
        ({"tied": False}, {"pp": 4}),
        ({"tied": True}, {"pp": 1, "dp": 4}),
        ({"tied": True}, {"pp": 2, "vpp": 2, "schedule": SCHEDULES.index("zbv")}),
    ],
)
def test_nothing_is_summed_where_no_table_is_on_two_stages(facts, layout):
    assert priced(facts, **layout)[1].sends.ends.tolist() == [0.0]


def test_a_module_that_looks_further_shares_the_embedding():
    assert priced({"mtp": 1}, pp=2)[1].sends.ends == priced({"tied": True}, pp=2)[1].sends.ends
