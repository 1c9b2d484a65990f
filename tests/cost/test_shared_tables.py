"""A table that embedding and head share is held, and its gradient reduced, once where both stand on one stage."""

from __future__ import annotations

import pytest

from planner.candidates import SCHEDULES, single
from planner.cost.memory import TERMS
from planner.cost.prices import prices
from planner.cost.step import memory_of_stages, stage_times
from planner.graph.architecture import Attention, Mlp
from tests.cost.blocks import model_of, task_of

HIDDEN, VOCAB = 64, 1024
TABLE = HIDDEN * VOCAB


def priced(facts, **layout):
    attention = Attention(heads=4, kv_heads=4, head_dim=16)
    model = model_of(attention, Mlp(width=128), 64, layers=4, vocab=VOCAB, **facts)
    task = task_of(model, chips=layout.get("pp", 1) * layout.get("dp", 1), global_batch=8)
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
