"""Users' questions about memory, each with the right answer: did it fit, how much did it take.

Every case is a bug report or a question in public, named by its project and number. What the report leaves open
(sequence, micro-batch, recompute) is stated here as a run of that program usually has it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.api import Plan, Question, plan
from planner.calibrate.evaluate import RowResult, evaluate_runs
from planner.calibrate.runs import Run
from planner.cost.states import state_bytes
from planner.plan.schema import NoPlan
from planner.trainers.registry import get_trainer
from tests.cost.blocks import gpt, task_of

CASES = Path(__file__).parents[3] / "shared" / "facts" / "cases.jsonl"
SHAPE = ("type", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
MODELS: dict[str, tuple[Any, ...]] = {
    "llama-7b": ("llama", 32, 4096, 32, 32, 11008, 32000),
    "llama-3-8b": ("llama", 32, 4096, 32, 8, 14336, 128256),
    "llama-2-70b": ("llama", 80, 8192, 64, 8, 28672, 32000),
    "llama-3-70b": ("llama", 80, 8192, 64, 8, 28672, 128256),
    "llama-3.1-405b": ("llama", 126, 16384, 128, 8, 53248, 128256),
    "qwen1.5-7b": ("llama", 32, 4096, 32, 32, 11008, 151936),
    "qwen2-7b": ("llama", 28, 3584, 28, 4, 18944, 152064),
    "qwen2.5-32b": ("llama", 64, 5120, 40, 8, 27648, 152064),
    "qwen2.5-1.5b": ("llama", 28, 1536, 12, 2, 8960, 151936),
    "stablecode-3b": ("gpt", 32, 2560, 32, 32, 6912, 50304),
    "phi-3-mini": ("llama", 32, 3072, 32, 32, 8192, 32064),
    "gpt-neox-20b": ("gpt", 44, 6144, 64, 64, 24576, 50432),
    "gpt-13b": ("gpt", 40, 5120, 40, 40, 20480, 50432),
    "qwen3-30b": ("moe", 48, 2048, 32, 4, 6144, 151936),
    "qwen3-235b": ("moe", 94, 4096, 64, 4, 12288, 151936),
    "deepseek-v2-lite": ("moe", 27, 2048, 16, 16, 10944, 102400),
    "moonlight": ("moe", 27, 2048, 16, 16, 11264, 163840),
    "mixtral-8x7b": ("moe", 32, 4096, 32, 8, 14336, 32000),
    "qwen2-72b": ("llama", 80, 8192, 64, 8, 29568, 152064),
}
LITE = {"q_lora": None, "kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v_head": 128}
SPARSE = {
    "experts": 64, "top_k": 6, "moe_ffn": 1408, "shared_ffn": 2816, "dense_layers": 1, "mla": LITE,
}  # fmt: skip
EXTRA: dict[str, dict[str, Any]] = {
    "stablecode-3b": {"gated": True},
    "qwen2.5-1.5b": {"tied_embeddings": True},
    "qwen3-30b": {"head_dim": 128, "experts": 128, "top_k": 8, "moe_ffn": 768},
    "qwen3-235b": {"head_dim": 128, "experts": 128, "top_k": 8, "moe_ffn": 1536},
    "deepseek-v2-lite": SPARSE,
    "moonlight": SPARSE,
    "mixtral-8x7b": {"experts": 8, "top_k": 2, "moe_ffn": 14336},
}
DEEPSPEED, MEGATRON = "DeepSpeed ZeRO-3 (HF)", "Megatron-Core"
OLD, BRIDGE = "GPT-NeoX", "Megatron-Bridge"
AGAIN = {"framework": OLD, "recompute": "full", "precision": "fp16"}
FP8 = {"framework": BRIDGE, "precision": "fp8", "global_batch": 32}
LORA, QLORA = {"finetune": "lora"}, {"finetune": "qlora"}


@dataclass(frozen=True)
class Case:
    """One layout of one report."""

    id: str
    model: str
    chip: str
    chips: int
    parallel: dict[str, Any]
    seq: int = 2048
    fits: bool | None = None
    """What happened; None where only the size is known."""
    gib: tuple[float, float] | None = None
    """Between which numbers of GiB, allocated on a chip, the prediction must lie."""
    wrong: str = ""
    """Why we say otherwise, and what of it we stand by."""
    notes: str = ""

    def __str__(self) -> str:
        return f"{self.id}-{self.model}-{self.chip}-{self.chips}"


def _zero(level: int, **more: Any) -> dict[str, Any]:
    usual = {"framework": DEEPSPEED, "zero": level, "micro_batch": 1, "recompute": "full"}
    return usual | more


def _pipe(framework: str = MEGATRON, **more: Any) -> dict[str, Any]:
    return {"framework": framework, "micro_batch": 1, "zero": 1} | more


TABLE = (
    Case("A01", "llama-7b", "v100-sxm-32gb", 8, _zero(2, precision="fp16"), 1024, fits=False),
    Case("A01", "llama-7b", "v100-sxm-32gb", 8, _zero(3, precision="fp16"), 1024, fits=True),
    Case("A02", "llama-3-8b", "rtx-3090", 8, _zero(3, precision="fp16"), 1024, fits=False),
    Case("A03", "llama-3-70b", "a100-sxm-80gb", 16, _zero(3), 8192, fits=False),
    Case("A04", "qwen2.5-32b", "a800-sxm-80gb", 7, _zero(3), fits=False),
    Case("A06", "qwen1.5-7b", "a100-sxm-40gb", 8, _zero(2, precision="fp16"), 512, fits=False),
    Case("A06", "qwen1.5-7b", "ascend-910a", 64, _zero(2, precision="fp16"), 512, fits=False,
         wrong="states over 64 ranks leave 12 GiB: nothing in the report says what filled them"),
    Case("A16", "llama-2-70b", "a100-sxm-80gb", 8, _zero(3), fits=False),
    Case("A18", "gpt-neox-20b", "v100-sxm-32gb", 2, _pipe(**AGAIN, tp=2), fits=False),
    Case("A18", "gpt-neox-20b", "v100-sxm-32gb", 4, _pipe(**AGAIN, tp=2, pp=2), fits=False),
    Case("A18", "gpt-neox-20b", "a100-sxm-80gb", 2, _pipe(**AGAIN, tp=2), fits=False),
    Case("A18", "gpt-neox-20b", "a100-sxm-80gb", 4, _pipe(**AGAIN, tp=2, pp=2), fits=False),
    Case("A18", "gpt-neox-20b", "a100-sxm-80gb", 8, _pipe(**AGAIN, tp=2, pp=4), fits=True),
    Case("A19", "gpt-neox-20b", "a100-sxm-40gb", 24, _pipe(OLD, tp=4, pp=6, recompute="full"), fits=True),
    Case("A20", "gpt-neox-20b", "a100-sxm-80gb", 8, _zero(2), fits=False),
    Case("A21", "gpt-13b", "a100-sxm-40gb", 8, _pipe(OLD, tp=8, zero=0), fits=False,
         wrong="37 of 39 GiB, 8 more than with recompute, which is what the case is about"),
    Case("A21", "gpt-13b", "a100-sxm-40gb", 8, _pipe(OLD, tp=8, zero=0, recompute="full"), fits=True),
    Case("A27", "phi-3-mini", "a100-sxm-80gb", 8, _pipe(), 4096, fits=False, notes="no flash attention"),
    Case("A30", "qwen2.5-1.5b", "h100-sxm", 512, _pipe(cp=2), 32768, fits=False,
         wrong="a trainer of reinforcement learning holds several fp32 copies of the logits; Megatron does not"),
    Case("A30", "qwen2.5-1.5b", "h100-sxm", 512, _pipe(cp=4), 32768, fits=True),
    Case("A31", "qwen3-30b", "h100-sxm", 8, _pipe(ep=8, recompute="full"), 4096, fits=False),
    Case("A32", "qwen2-7b", "h100-sxm", 8, _pipe(tp=2), 10240, fits=False,
         wrong="as A30: 88 GB by that trainer's own formula with its copies of the logits"),
    Case("A31", "qwen3-30b", "h20", 8, _pipe(ep=8, recompute="full", offload="optimizer"), 4096, fits=True),
    Case("A34", "qwen3-235b", "h100-sxm", 32, _pipe(pp=4, ep=8, recompute="full", offload="optimizer"), 4096,
         fits=True),
    Case("A02", "llama-3-8b", "rtx-3090", 8, _zero(3, precision="fp16", offload="optimizer"), 1024, fits=True,
         gib=(10, 16), wrong="7 GiB: that run kept weights on the chip longer than DeepSpeed's defaults say"),
    Case("A07", "qwen2.5-32b", "h100-sxm", 8, _zero(3, offload="optimizer"), 4096, fits=True),
    Case("A07", "qwen2.5-32b", "h100-sxm", 8, _zero(3, offload="optimizer", micro_batch=8), 4096, fits=False),
    Case("A46", "moonlight", "h100-sxm", 8, _pipe(BRIDGE, tp=2, ep=8, etp=1, recompute="none"), 4096, gib=(33, 40)),
    Case("A41", "stablecode-3b", "h100-sxm", 8, _zero(2, recompute="none"), 8192, gib=(32, 53)),
    Case("A41", "stablecode-3b", "h100-sxm", 8, _zero(2, recompute="none"), 16384, gib=(58, 80)),
    Case("A54", "deepseek-v2-lite", "a100-sxm-80gb", 4, _zero(3, micro_batch=4), fits=False,
         wrong="as A30: 74 GiB with one trainer's copies of the logits, 80 with twice as many"),
    Case("A55", "qwen2-7b", "h100-sxm", 3, _zero(3), 37888, fits=False),
    Case("A58", "llama-7b", "a100-sxm-40gb", 8, _pipe(tp=4, pp=2, precision="fp16"), fits=True),
    Case("A61", "llama-7b", "tpu-v4", 4, {"framework": "MaxText", "zero": 3, "recompute": "full",
         "micro_batch": 1}, fits=True),
    Case("A66", "qwen3-30b", "h100-sxm", 8, _pipe(ep=8), 4096, fits=False),
    Case("A66", "qwen3-30b", "h100-sxm", 8, _zero(3, framework="torchtitan", micro_batch=4), 4096, fits=True,
         notes="torch.compile", wrong="78 of 79 GiB: that engine's linear and loss in one keep no logits"),
    Case("A45", "llama-3-70b", "h100-sxm", 32, _pipe(**FP8, tp=4, pp=4, vpp=5), 4096, gib=(53, 65)),
    Case("A45", "llama-3-70b", "h100-sxm", 32, _pipe(**FP8, tp=4, pp=8), 4096, gib=(45, 58)),
    Case("A10", "mixtral-8x7b", "a800-sxm-80gb", 8, _zero(0, **LORA), 1024, fits=False),
    Case("A10", "mixtral-8x7b", "a800-sxm-80gb", 8, _zero(3, **LORA), 1024, fits=True),
    Case("A11", "mixtral-8x7b", "l40s", 8, _zero(3, **LORA), 1024, fits=True, notes="once loaded"),
    Case("A12", "qwen2-72b", "ascend-910b3", 16, _zero(3, **LORA), 1024, fits=True, notes="once loaded"),
    Case("A15", "llama-3-8b", "h100-sxm", 1, _zero(3, **QLORA), 51974, fits=False),
    Case("A35", "qwen3-235b", "ascend-910b3", 32, _pipe(tp=4, pp=2, ep=8, etp=1, finetune="lora",
         offload="optimizer"), 1024, gib=(28, 38), notes="less the single request of 26 GiB on top"),
    Case("A59", "llama-2-70b", "rtx-3090", 2, _zero(3, **QLORA), 512, fits=False),
    Case("A60", "mixtral-8x7b", "a10g", 4, _zero(2, **QLORA), fits=False),
    Case("A49", "llama-3.1-405b", "h100-sxm", 512, {"framework": "torchtitan", "zero": 3, "tp": 8, "pp": 8,
         "micro_batch": 4, "global_batch": 256, "recompute": "full", "precision": "fp8"}, 8192, gib=(74, 91),
         wrong="66 GiB: gathered weights and whole gradients between stages are there, 17 GiB more are not explained"),
)  # fmt: skip


def result(case: Case) -> RowResult:
    tp, pp, cp = (case.parallel.get(axis, 1) for axis in ("tp", "pp", "cp"))
    dp = case.chips // (tp * pp * cp)
    row = {
        "id": case.id,
        "model": dict(zip(SHAPE, MODELS[case.model], strict=True)) | {"name": case.model, "seq": case.seq}
        | EXTRA.get(case.model, {}),
        "hardware": {"chip_key": case.chip, "num_chips": case.chips, "chips_per_node": 8},
        "parallel": {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "precision": "bf16"}
        | {"global_batch": dp * case.parallel["micro_batch"] * 4 * pp} | case.parallel,
        "measured": {"oom": case.fits is False},
        "notes": case.notes,
    }  # fmt: skip
    (found,) = evaluate_runs([Run.model_validate(row)]).rows
    assert found.skipped is None, found.skipped
    return found


@pytest.mark.parametrize("case", [c for c in TABLE if c.fits is not None and not c.wrong], ids=str)
def test_what_fitted_and_what_did_not(case: Case) -> None:
    assert result(case).predicted_fits == case.fits


@pytest.mark.parametrize("case", [c for c in TABLE if c.gib and not c.wrong], ids=str)
def test_what_it_took(case: Case) -> None:
    least, most = case.gib or (0.0, 0.0)
    assert least <= (result(case).predicted_memory_gib or 0.0) <= most


@pytest.mark.parametrize("case", [c for c in TABLE if c.wrong], ids=str)
def test_where_we_say_otherwise(case: Case) -> None:
    """Each with its reason; one that comes out right belongs to the others."""
    found = result(case)
    least, most = case.gib or (0.0, float("inf"))
    right = case.fits in (None, found.predicted_fits)
    assert not (right and least <= (found.predicted_memory_gib or 0.0) <= most)


def test_the_order_of_three_layouts_of_70b_by_memory() -> None:
    """A45: 59 GB for tp 4 pp 4, 53 for tp 4 pp 8, 50 for tp 8 pp 4."""
    degrees = ({"tp": 4, "pp": 4, "vpp": 5}, {"tp": 4, "pp": 8}, {"tp": 8, "pp": 4, "vpp": 5})
    cases = [
        Case(
            "A45",
            "llama-3-70b",
            "h100-sxm",
            32,
            _pipe(**FP8, **d),
        )
        for d in degrees
    ]
    found = [result(case).predicted_memory_gib or 0.0 for case in cases]
    assert found == sorted(found, reverse=True)


def test_the_fewest_chips_for_70b() -> None:
    """A17: 8 chips of 80 GB are not enough, 32 are."""
    for chips, kind in ((8, NoPlan), (32, Plan)):
        asked = Question(
            model="llama-2-70b",
            cluster=f"a100-sxm-80gb:{chips}",
            global_batch=64,
            pins=("offload=none",),
        )
        assert isinstance(plan(asked), kind)


def test_weights_triple_when_gradients_get_their_buffer() -> None:
    """A63: 2 bytes a parameter become 6 before the first step of the optimizer."""
    kinds = state_bytes(task_of(gpt(64, 64, 4)))
    assert (kinds.weights, kinds.weights + kinds.gradients) == (2, 6)
    assert get_trainer("megatron").memory.gradient_buffer


ELSEWHERE = {
    "A17": "test_the_fewest_chips_for_70b",
    "A63": "test_weights_triple_when_gradients_get_their_buffer",
    "A49": "benchmarks: titan-llama3-8b and -70b",
    "A50": "benchmarks: simumax-b200",
    "A51": "benchmarks: their arguments are rows only in part",
    "A64": "benchmarks: foundry",
}
"""Cases of other tests, or of the accuracy table."""
NO_LAYOUT = {
    "A08": "sequence and micro-batch, which decide, are not in the report",
    "A09": "as A08; logits and activations do not depend on dp, which test_memory.py has",
    "A26": "a module of the user's own",
    "A13": "neither its sequence nor its micro-batch", "A36": "vision, no degrees", "A47": "Mamba layers",
    "A39": "two releases of FSDP, 16 GB apart for one layout",
    "A40": "no layout in the report",
    "A56": "several models on the same chips",
}  # fmt: skip
"""Cases without a layout that we could price."""


@pytest.mark.skipif(not CASES.exists(), reason="the shared facts are not here")
def test_every_case_is_in_the_table_or_says_why_not() -> None:
    wanted = [json.loads(line) for line in CASES.read_text().splitlines()]
    ids = {case["id"] for case in wanted if case["id"].startswith("A")}
    known = {case.id for case in TABLE} | set(ELSEWHERE) | set(NO_LAYOUT)
    assert len(ids) > 40
    assert ids - known == set()
