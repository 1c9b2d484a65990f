"""torchtitan's own selective recompute, on a layer that torch splits: what it keeps is what the plan says.

Counted on tensors without memory. CPU attention is no operator that it knows, so that its result is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from test_memory import FFN, HIDDEN, SEQ, group, made
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.filterwarnings("ignore")
PRODUCTS = {"q": (HIDDEN, 1024), "k": (HIDDEN, 512), "v": (HIDDEN, 512), "o": (1024, HIDDEN),
            "gate": (HIDDEN, FFN), "up": (HIDDEN, FFN), "down": (FFN, HIDDEN)}  # fmt: skip


class Block(nn.Module):
    """The layer of the plans: grouped-query attention and a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        for name, (inner, outer) in PRODUCTS.items():
            self.register_module(name, nn.Linear(inner, outer, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        heads = [f(y).unflatten(-1, (-1, 64)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def split(block: Block, tp: int) -> None:
    rows, columns = (
        RowwiseParallel(output_layouts=Shard(1)),
        ColwiseParallel(input_layouts=Shard(1)),
    )
    ways = {name: rows if name in ("o", "down") else columns for name in PRODUCTS}
    norms = dict.fromkeys(("norm1", "norm2"), SequenceParallel())
    parallelize_module(block, init_device_mesh("cpu", (tp,)), ways | norms)


def kept(tp: int, sequences: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Bytes of every result that its policy keeps, by kind of operator."""
    from torchtitan.distributed.activation_checkpoint import SelectiveAC

    stores: list[dict[Any, Any]] = []
    mode = checkpoint._CachingTorchDispatchMode
    begin = mode.__init__

    def noted(self: Any, policy: Any, storage: Any, *rest: Any, **more: Any) -> None:
        stores.append(storage)
        begin(self, policy, storage, *rest, **more)

    monkeypatch.setattr(mode, "__init__", noted)
    with group(max(tp, 2)):
        with torch.device("meta"):
            block = Block()
        if tp > 1:
            split(block, tp)
        with FakeTensorMode(allow_non_fake_inputs=True):
            block.to_empty(device="cpu")
            wrapped = SelectiveAC(SelectiveAC.Config())._wrap_block(block, base_fqn="layers.0")
            wrapped(torch.randn(sequences, SEQ // tp, HIDDEN, requires_grad=True))
    found: dict[str, list[int]] = {}
    for store in stores:
        for func, results in store.items():
            for result in tree_leaves(
                list(results.values()) if isinstance(results, dict) else results
            ):
                value = getattr(result, "val", result)
                value = value.to_local() if isinstance(value, DTensor) else value
                if isinstance(value, Tensor):
                    found.setdefault(str(func).split(".")[1], []).append(
                        value.untyped_storage().nbytes()
                    )
    return found


@pytest.mark.parametrize(("name", "tp"), [("selective", 1), ("selective-tp-sp", 2)])
def test_what_selective_recompute_keeps(
    name: str, tp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second product (q, v, gate, down), and what was scattered. Compiled code drops the sums that are scattered:
    only eager code keeps those of ``down``, whole, beside their result."""
    plan = made(tmp_path, name)
    block = next(block for block in plan.blocks if block.layers == "0-1")
    saved = {op.name: op.saved for op in block.operators}
    found = kept(tp, plan.degrees.micro_batch, monkeypatch)
    *products, down = found["mm"]
    assert products == [saved["attn.rotary_q"], saved["attn.rotary_kv"], saved["mlp.act"]]
    assert down == tp * saved["add2"]
    scattered = [saved["add1"], saved["add2"]] if tp > 1 else []
    assert found.get("reduce_scatter_tensor", []) == scattered
    stream = 2 * plan.degrees.micro_batch * SEQ * HIDDEN // tp
    core = saved["attn.core"]
    assert sum(saved.values()) == core + stream + sum(products) + (sum(scattered) or down)
