"""Bytes that a layer keeps for its backward pass: the plan's against torch's own, counted on tensors without memory.

Torch in eager mode keeps more than a fused trainer in three places, each of which is accounted for by itself:
its RMS norm keeps two fp32 copies of a stream where a fused one keeps its input; heads of keys and values are repeated
where a fused kernel reads them in place; the gate's result is kept besides its input and the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planner.api import Question, price
from planner.plan.schema import BlockPlan, Plan
from planner.runtime import model as small
from planner.runtime.shrink import Small, shrink

pytestmark = pytest.mark.filterwarnings("ignore")
HIDDEN, HEADS, SEQ = 1024, 16, 512
MODEL = f"""name: middling
source: "of this test"
hidden: {HIDDEN}
vocab: 2048
max_seq: {SEQ}
layers: 2
attention: {{heads: {HEADS}, kv_heads: {HEADS // 2}, head_dim: {HIDDEN // HEADS}}}
mlp: {{width: {2 * HIDDEN}}}
"""


def made(folder: Path, layout: dict[str, int | str]) -> Plan:
    (folder / "m.yaml").write_text(MODEL)
    chips = int(layout.get("tp", 1)) * 2
    question = Question(
        model=str(folder / "m.yaml"),
        cluster=f"h100-sxm:{chips}",
        trainer="torchtitan",
        global_batch=8,
        seq_len=SEQ,
    )
    return price(question, layout)


def layer(plan: Plan) -> BlockPlan:
    return next(block for block in plan.blocks if block.layers == "0-1")


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch

    monkeypatch.setattr(small, "WIDTH", HIDDEN)
    monkeypatch.setattr(small, "HEADS", HEADS)
    monkeypatch.setattr(small, "SEQ", SEQ)
    monkeypatch.setattr(small, "VOCAB", 2048)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


def kept(plan: Plan, *, fused: bool) -> int:
    """Bytes of distinct storages that one layer of one rank saves, weights left out."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from planner.export.dtensor import settings
    from planner.export.view import View
    from planner.runtime.apply import apply

    shape: Small = replace(shrink(settings(View(plan))), level=0, replicate=1, shard=1)
    found: dict[int, int] = {}

    def local(tensor: torch.Tensor) -> torch.Tensor:
        return tensor._local_tensor if isinstance(tensor, DTensor) else tensor

    dist.init_process_group("fake", rank=0, world_size=shape.tp, store=FakeStore())
    try:
        mesh = init_device_mesh(
            "cpu", (1, 1, 1, shape.tp), mesh_dim_names=("pp", "replicate", "shard", "tp")
        )
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = small.Decoder(shape)
            if fused:
                fuse(model)
            apply(model, shape, mesh)
            block = model.layers["0"]
            weights = {local(p).untyped_storage()._cdata for p in model.parameters()}

            def pack(tensor: torch.Tensor) -> torch.Tensor:
                storage = local(tensor).untyped_storage()
                if storage._cdata not in weights:
                    found[storage._cdata] = storage.nbytes()
                return tensor

            sequences = plan.degrees.micro_batch
            x = torch.randn(
                sequences,
                SEQ // (shape.tp if shape.sequence_parallel else 1),
                HIDDEN,
                requires_grad=True,
            )
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                block(x)
    finally:
        dist.destroy_process_group()
    return sum(found.values())


def fuse(model: small.Decoder) -> None:
    """Norms and gates that keep their inputs only, and attention that reads grouped heads in place."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, gate, up):
            ctx.save_for_backward(gate, up)
            return F.silu(gate) * up

    class Rms(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return torch.empty_like(x)

    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(HIDDEN))

        def forward(self, x):
            return Rms.apply(x, self.weight)

    for block in model.layers.values():
        block.norm1, block.norm2 = Norm(), Norm()
        mlp, attention = block.mlp, block.attention
        mlp.forward = lambda x, m=mlp: m.down(Gate.apply(m.gate(x), m.up(x)))

        def attend(x, a=attention):
            batch = x.shape[0]
            q, k, v = (
                p(x).view(batch, x.shape[1], -1, a.size).transpose(1, 2) for p in (a.q, a.k, a.v)
            )
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return a.out(o.transpose(1, 2).reshape(batch, x.shape[1], -1))

        attention.forward = attend


def test_a_layer_that_fuses_as_the_trainer_does(tmp_path: Path) -> None:
    plan = made(tmp_path, {"zero": 3})
    assert kept(plan, fused=True) == sum(op.saved for op in layer(plan).operators)


def test_eager_torch_keeps_more_for_three_reasons(tmp_path: Path) -> None:
    plan = made(tmp_path, {"zero": 3})
    tokens = plan.degrees.micro_batch * SEQ
    norms = 2 * (2 * 4 * HIDDEN - 2 * HIDDEN) + 2 * 4
    """Each of two norms: two fp32 streams for one of bf16, and one fp32 number a token."""
    heads = 2 * 2 * HIDDEN // 2
    """Keys and values of the heads that are repeated."""
    gate = 2 * 2 * HIDDEN
    """The gate's result."""
    predicted = sum(op.saved for op in layer(plan).operators)
    assert kept(plan, fused=False) == predicted + tokens * (norms + heads + gate)


def test_a_layer_split_by_tp_with_sequence_parallelism(tmp_path: Path) -> None:
    plan = made(tmp_path, {"tp": 2, "zero": 3})
    tokens = plan.degrees.micro_batch * SEQ
    predicted = sum(op.saved for op in layer(plan).operators)
    norms = (2 * (2 * 4 * HIDDEN - 2 * HIDDEN) + 2 * 4) / 2
    heads, gate = 2 * 2 * HIDDEN // 2 / 2, 2 * 2 * HIDDEN / 2
    again = 2 * 2 * HIDDEN / 2
    """Megatron gathers the input of a product again, DTensor keeps it whole: half a stream more at both entries."""
    assert kept(plan, fused=False) == predicted + tokens * (norms + heads + gate + again)


def test_a_checkpointed_layer_keeps_its_input(tmp_path: Path) -> None:
    plan = made(tmp_path, {"zero": 3, "recompute": "full"})
    predicted = sum(op.saved for op in layer(plan).operators)
    assert kept(plan, fused=False) == predicted == 2 * plan.degrees.micro_batch * SEQ * HIDDEN


@pytest.mark.parametrize("layout", [{"zero": 3}, {"zero": 2}, {"tp": 2, "zero": 3}])
def test_weights_and_states_of_a_rank(layout: dict[str, int | str], tmp_path: Path) -> None:
    """Parameters that FSDP2 leaves on a rank, in the bytes of the plan for weights, gradients and AdamW."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from planner.export.dtensor import settings
    from planner.export.view import View
    from planner.runtime.apply import apply

    plan = made(tmp_path, layout)
    shape = replace(shrink(settings(View(plan))), visits=(2,))
    dist.init_process_group("fake", rank=0, world_size=shape.ranks, store=FakeStore())
    try:
        names = ("pp", "replicate", "shard", "tp")
        mesh = init_device_mesh("cpu", (1, 1, shape.shard, shape.tp), mesh_dim_names=names)
        with torch.device("meta"):
            model = small.Decoder(shape)
        apply(model, shape, mesh)
        assert all(isinstance(p, DTensor) for p in model.parameters())
        count = sum(p.to_local().numel() for p in model.parameters())
    finally:
        dist.destroy_process_group()
    terms = {term.name: term.value for term in plan.stages[0].memory}
    assert terms["memory.gradients"] == pytest.approx(4.0 * count, rel=1e-9)
    assert terms["memory.optimizer"] == pytest.approx((4.0 + 8.0) * count, rel=1e-9), (
        "the fp32 weight, two moments"
    )
    gathered = 0.0 if layout["zero"] == 3 else 2.0 * count * shape.shard
    assert terms.get("memory.weights", 0.0) == pytest.approx(gathered, rel=1e-9), (
        "bf16 weights, kept below ZeRO-3"
    )
