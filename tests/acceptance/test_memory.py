"""Bytes that a rank holds: the plan's against torch's own, operator by operator, counted on tensors without memory.

Torch in eager mode keeps more than a trainer's fused kernels in a few places, each of which is accounted for by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.api import Question, price
from planner.export.dtensor import settings
from planner.export.view import View
from planner.plan.schema import Plan
from planner.runtime.apply import apply, ranks
from planner.runtime.flow import Again
from planner.runtime.model import Decoder, Weights
from planner.runtime.program import Program, program

pytestmark = pytest.mark.filterwarnings("ignore")
HIDDEN, SEQ, FFN, EXPERTS, TOP, WIDE = 1024, 512, 2048, 8, 2, 512
MODEL = f"""name: middling
source: "of this test"
hidden: {HIDDEN}
vocab: 2048
max_seq: {SEQ}
layers: 2
attention: {{heads: 16, kv_heads: 8, head_dim: 64}}
"""
DENSE = f"mlp: {{width: {FFN}}}\n"
SPARSE = f"experts: {{count: {EXPERTS}, top_k: {TOP}, width: {WIDE}}}\n"
CASES: dict[str, tuple[str, dict[str, int | str], int]] = {
    "fsdp": (DENSE, {"zero": 3}, 2),
    "tp": (DENSE, {"tp": 2, "zero": 1, "sp": "off"}, 4),
    "tp-sp": (DENSE, {"tp": 2, "zero": 3}, 4),
    "ring": (DENSE, {"cp": 2, "zero": 3}, 4),
    "selective": (DENSE, {"zero": 3, "recompute": "selective"}, 2),
    "selective-tp-sp": (DENSE, {"tp": 2, "zero": 3, "recompute": "selective"}, 4),
    "checkpointed": (DENSE, {"zero": 3, "recompute": "full"}, 2),
    "experts": (SPARSE, {"ep": 2, "zero": 3}, 4),
    "experts-tp-sp": (SPARSE, {"ep": 2, "tp": 2, "zero": 3}, 4),
    "experts-checkpointed": (SPARSE, {"ep": 2, "zero": 3, "recompute": "full"}, 2),
}
"""Name to the feed-forward part, layout and chips."""


def made(folder: Path, name: str, precision: str = "bf16") -> Plan:
    text, layout, chips = CASES[name]
    if precision == "fp32" and layout.get("sp") == "off":
        layout = layout | {"zero": 0}
    (folder / "m.yaml").write_text(MODEL + text)
    question = Question(
        model=str(folder / "m.yaml"),
        cluster=f"h100-sxm:{chips}",
        trainer="megatron" if layout.get("sp") == "off" else "torchtitan",
        global_batch=2 * chips,
        seq_len=SEQ,
        precision=precision,
    )
    return price(question, layout, usual=True)


@contextmanager
def group(size: int) -> Iterator[None]:
    """A process group of so many ranks that nobody else is in."""
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        dist.destroy_process_group()


def kept(plan: Program, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes of distinct storages that each operator of a layer saves first, weights left out."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    running = ["whole layer"]
    pack, forward = Again.pack, Weights.forward

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            found[running[0]] = found.get(running[0], 0) + storage.nbytes()
        return tensor

    def packed(self, tensor):
        held = pack(self, tensor)
        return note(held) if isinstance(held, torch.Tensor) else held

    def named(self, *reads):
        running[0] = self.call.op.name
        return forward(self, *reads)

    monkeypatch.setattr(Again, "pack", packed)
    with group(plan.ranks):
        place = ranks(plan).grid
        with FakeTensorMode(allow_non_fake_inputs=True):
            layer = Decoder(plan, place).layers["0"]
            seen |= {p.untyped_storage()._cdata for p in layer.parameters()}
            cut = plan.axes["cp"] * (plan.axes["tp"] if plan.sequence_parallel else 1)
            x = torch.randn(plan.micro_batch, SEQ // cut, HIDDEN, requires_grad=True)
            if layer.part.recomputed:
                layer = checkpoint_wrapper(layer)
            else:
                monkeypatch.setattr(Weights, "forward", named)
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                layer(x)
    return found


def eager(plan: Program) -> dict[str, int]:
    """What torch keeps besides: bytes on a rank, by operator."""
    tp, sp = plan.axes["tp"], plan.sequence_parallel
    rows = plan.micro_batch * SEQ // plan.axes["cp"]
    tokens = rows // (tp if sp else 1)
    norm = tokens * (2 * 4 * HIDDEN + 4 - 2 * HIDDEN)
    """Two fp32 copies of the stream and a number a token, instead of the stream."""
    found = {"norm1": norm, "norm2": norm}
    if plan.axes["cp"] > 1:
        found["attn.core"] = 2 * rows * SEQ
        """The mask: torch's kernel knows only the causal one of a whole sequence."""
    if not plan.expert_parallel:
        return found | {"mlp.act": 2 * rows * FFN // tp}
    sent = tokens * TOP
    return found | {
        "moe.act": 2 * sent * WIDE,  # the gate's result
        "moe.top_k": tokens * EXPERTS * (2 + 1 - 2 * 4),  # bf16 and a mask, where trainers keep fp32 logits and shares
        "moe.dispatch": 8 * sent,  # which tokens
        "moe.combine": sent * (2 * HIDDEN + 2 + 8),  # rows times their shares, the shares, and which tokens
    }  # fmt: skip


EVERYTHING = [name for name in CASES if not CASES[name][1].get("recompute")]
"""Cases that keep all that they need."""


@pytest.mark.parametrize("name", EVERYTHING)
def test_saved_activations_of_every_operator(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = made(tmp_path, name)
    small = program(settings(View(plan)))
    block = next(block for block in plan.blocks if block.layers == "0-1")
    predicted = {op.name: op.saved for op in block.operators if op.saved}
    besides = eager(small)
    names = predicted.keys() | besides.keys()
    expected = {op: predicted.get(op, 0) + besides.get(op, 0) for op in names}
    assert kept(small, monkeypatch) == expected


@pytest.mark.parametrize("name", [name for name in CASES if "checkpointed" in name])
def test_a_checkpointed_layer_keeps_its_input(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = made(tmp_path, name)
    block = next(block for block in plan.blocks if block.layers == "0-1")
    predicted = sum(op.saved for op in block.operators)
    found = kept(program(settings(View(plan))), monkeypatch)
    assert found == {"whole layer": predicted}
    assert predicted == 2 * plan.degrees.micro_batch * SEQ * HIDDEN


@pytest.mark.parametrize("name", CASES)
def test_weights_and_states_of_a_rank(name: str, tmp_path: Path) -> None:
    """Parameters that FSDP2 leaves on a rank, in the bytes of the plan for weights, gradients and AdamW."""
    plan = made(tmp_path, name)
    small = program(settings(View(plan)))
    with group(small.ranks):
        place = ranks(small)
        model = apply(Decoder(small, place.grid), place)
        parameters = list(model.parameters())
        own = [p.to_local() if isinstance(p, DTensor) else p for p in parameters]
        sharded = sum(p.numel() for p in own)
        whole = sum(p.numel() for p in parameters)
    terms = {term.name: term.value for term in plan.stages[0].memory}
    level = small.level
    assert terms["memory.gradients"] == pytest.approx(4.0 * (sharded if level > 1 else whole))
    assert terms["memory.optimizer"] == pytest.approx((4.0 + 8.0) * sharded), "fp32, two moments"
    weights = terms.get("memory.weights", 0.0)
    assert weights == pytest.approx(0.0 if level == 3 else 2.0 * whole), "bf16, kept below ZeRO-3"


@pytest.mark.parametrize("name", CASES)
def test_torch_s_tracker_finds_the_same_states(name: str, tmp_path: Path) -> None:
    """A step with AdamW under torch's ``MemTracker``: weights and gradients behind the backward pass, and both moments.

    States that are sharded as a whole, or not at all: in between FSDP2 holds what it gathered only while it computes.
    Each parameter has a counter of steps besides.
    """
    plan = made(tmp_path, name, "fp32")
    small = program(settings(View(plan)))
    assert small.level in (0, 3)
    with group(small.ranks):
        torch.set_default_dtype(torch.float32)
        place = ranks(small)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = apply(Decoder(small, place.grid), place)
            optimizer = torch.optim.AdamW(model.parameters())
            seq = SEQ // small.axes["cp"]
            tokens = torch.zeros(small.micro_batch, seq, dtype=torch.long)
            targets = tokens[:, None]

            def backwards() -> None:
                model.loss(model(tokens), targets).backward()

            backwards()  # what the first step alone makes
            optimizer.step()
            optimizer.zero_grad()
            tracker = MemTracker()
            tracker.track_external(model, optimizer, tokens, targets)
            with tracker:
                backwards()
                kinds = tracker.get_tracker_snapshot("current")[torch.device("cpu")]
    found = {getattr(kind, "value", kind): size for kind, size in kinds.items()}
    terms = {term.name: term.value for term in plan.stages[0].memory}
    counters = 4 * len(list(model.parameters()))
    assert found["Parameter"] == terms["memory.weights"]
    assert found["Gradient"] == terms["memory.gradients"]
    assert found["Optstate"] == terms["memory.optimizer"] + counters
