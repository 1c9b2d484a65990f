"""Frozen weights and adapters: parameters, FLOPs, what is kept and what is reduced."""

from __future__ import annotations

import pytest

from planner.graph.adapters import GROUPS, with_adapters
from planner.graph.architecture import Attention, Experts, Mlp
from tests.cost.blocks import model_of, priced

H, F, S = 64, 256, 32
DENSE = model_of(Attention(heads=8, kv_heads=2, head_dim=8), Mlp(width=F), S, hidden=H, layers=3)
MIXED = model_of(Attention(heads=8, kv_heads=8, head_dim=8), Experts(count=4, top_k=2, width=32), S)


@pytest.mark.parametrize("rank", [1, 8])
def test_parameters_of_adapters(rank):
    """r (d_in + d_out) for every product (LoRA, arXiv 2106.09685, section 4.2), keys and values, gate and up each."""
    attention = rank * ((H + 64) + 2 * (H + 16) + (64 + H))
    mlp = rank * (2 * (H + F) + (F + H))
    found = with_adapters(DENSE, rank, ("attention", "mlp"))
    assert found.num_trained == 3 * (attention + mlp)
    assert found.num_params == DENSE.num_params + found.num_trained
    assert with_adapters(DENSE, rank, ("attention",)).num_trained == 3 * attention
    experts = with_adapters(MIXED, rank, ("experts",))
    assert experts.num_trained == 4 * rank * (2 * (H + 32) + (32 + H))


def test_what_trains_when_nothing_is_frozen():
    assert DENSE.num_trained == DENSE.num_params
    assert DENSE.training_flops() == 3 * DENSE.flops()


def test_frozen_products_make_no_gradients_of_weights():
    """Two thirds of the FLOPs of products with weights, all of attention's."""
    found = with_adapters(DENSE, 1, ())
    products = sum(
        op.flops * block.elements(op.dims) * count
        for block, count in ((DENSE.blocks[0], 3), (DENSE.head, 1))
        for op in block.operators
        if op.kind == "matmul" and op.weights
    )
    assert found.num_trained == 0
    assert found.flops() == DENSE.flops()
    assert found.training_flops() == pytest.approx(3 * DENSE.flops() - products)


def test_inputs_of_frozen_products_are_not_kept():
    """Of a gated layer stay the norms' inputs, attention's, and what the activation reads; adapters keep their own."""

    def kept(model):
        return {n for op in model.blocks[0].operators for n in op.saves}

    bare = kept(with_adapters(DENSE, 4, ()))
    assert bare == {"x", "x_middle", "q_placed", "kv_placed", "o", "softmax_rows", "mlp_up"}
    assert kept(DENSE) - bare == {"normed1", "normed2", "mlp_act"}
    more = kept(with_adapters(DENSE, 4, ("attention",))) - bare
    assert more == {"normed1", "q.narrow", "kv.narrow", "attn_out.narrow"}


def test_tensor_parallel_collectives_stay_and_adapters_add_little():
    """The stream is gathered and scattered as without adapters; what is new carries the rank, not the width."""
    plain = priced(DENSE, DENSE.blocks[0], tp=2, sp=1)
    tuned = with_adapters(DENSE, 4, ("attention", "mlp"))
    found = priced(tuned, tuned.blocks[0], tp=2, sp=1)
    before, after = plain.moves(), found.moves()
    wide = [size for size in after.values() if size > 2 * S * 4 * 2]
    assert sum(wide) == pytest.approx(sum(before.values()))
    assert sum(after.values()) - sum(wide) < 0.2 * sum(before.values())


def test_every_group_names_products():
    models = {"attention": DENSE, "mlp": DENSE, "experts": MIXED}
    assert models.keys() == GROUPS.keys()
    for word, model in models.items():
        assert with_adapters(model, 2, (word,)).num_trained > 0
