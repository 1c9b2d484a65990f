"""Under the strategies of a trainer's roles, free axes move what the fixed roles move."""

from __future__ import annotations

import pytest

from planner.graph.architecture import Attention, LatentAttention, Mlp
from tests.cost.blocks import model_of, priced
from tests.operators.schemes import moved, solved

ATTENTION = {
    "all heads": Attention(heads=8, kv_heads=8, head_dim=16),
    "grouped": Attention(heads=8, kv_heads=4, head_dim=16, qk_norm="head"),
    "gated": Attention(heads=8, kv_heads=4, head_dim=16, output_gate=True),
    "latent": LatentAttention(
        heads=8, q_latent=24, kv_latent=16, nope_dim=8, rope_dim=4, value_dim=8
    ),
}


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("row", [{"tp": 4}, {"tp": 4, "sp": 1}, {"cp": 4}, {"dp": 4}], ids=str)
def test_the_same_collectives(attention, row):
    model = model_of(ATTENTION[attention], Mlp(width=256), 128, norm="rms")
    block = model.blocks[0]
    fixed = priced(model, block, **row)
    axis = next(iter(row))
    pins = {
        op.name: {axis: split[axis]} if axis in split else {}
        for op, split in zip(block.operators, fixed.form.splits, strict=True)
    }
    sequences = 4 if axis == "dp" else 1
    found = solved(model, block, {axis: 4}, sequences=sequences, pins=pins)
    theirs = {(phase, kind, name): size for (phase, kind, name, _), size in fixed.moves().items()}
    assert moved(found) == pytest.approx(theirs)
