"""Rows say the same in other words: flags, numbers as text, other names of chips, shardings, precisions, programs."""

from __future__ import annotations

from typing import Any

import pytest

from planner.calibrate.evaluate import predict
from planner.calibrate.modules import recomputed_modules
from planner.calibrate.row_task import Case, case_of
from planner.calibrate.runs import Run
from planner.calibrate.shapes import NotPricedError
from planner.candidates import OFFLOAD, RECOMPUTE, SCHEDULES
from planner.cost.states import StateBytes, state_bytes
from planner.units import GIB
from tests.calibrate.test_rows import run

MIXTURE: dict[str, Any] = {"type": "moe", "experts": 8, "top_k": 2, "moe_ffn": 4096}


def chosen(case: Case, column: str) -> int:
    return int(getattr(case.layout, column)[0])


@pytest.mark.parametrize(
    ("word", "stage"),
    [("3", 3), (3, 3), ("ZeRO-2", 2), ("stage 1", 1), ("FULL_SHARD", 3), ("distributed optimizer", 1)],
)  # fmt: skip
def test_sharding_is_a_stage_in_any_words(word: str | int, stage: int) -> None:
    assert chosen(case_of(run(parallel={"zero": word})), "sharding") == stage


@pytest.mark.parametrize(
    ("word", "priced"),
    [(False, "none"), ("off", "none"), (True, "full"), ("Full", "full"), ("every layer", "full"),
     ("activation checkpointing", "full"), ("Selective", "selective"), ("moe_act", "selective")],
)  # fmt: skip
def test_recompute_in_any_words(word: str | bool, priced: str) -> None:
    case = case_of(run(parallel={"recompute": word}))
    assert chosen(case, "recompute") == RECOMPUTE.index(priced)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "priced"), [("bfloat16", "bf16"), ("half", "fp16"), ("MXFP8", "fp8"), ("float32", "fp32")]
)  # fmt: skip
def test_precisions_in_any_words(word: str, priced: str) -> None:
    assert case_of(run(parallel={"precision": word})).task.recipe.precision == priced


@pytest.mark.parametrize(
    ("name", "chip"),
    [("NVIDIA H100 80GB HBM3", "h100-sxm"), ("H100 SXM", "h100-sxm"), ("A100 40GB", "a100-sxm-40gb"),
     ("TPU v4", "tpu-v4"), ("RTX 4090", "rtx-4090"), ("Huawei Ascend 910B", "ascend-910b2")],
)  # fmt: skip
def test_chips_as_sources_write_them(name: str, chip: str) -> None:
    assert case_of(run(hardware={"chip_key": name})).task.cluster.chip.name == chip


@pytest.mark.parametrize(
    ("framework", "name"),
    [("EasyLM (JAX)", "jax"), ("Alpa (JAX)", "alpa"), ("Composer", "foundry"), ("deepspeed zero3", "deepspeed"),
     ("Hugging Face Transformers + Accelerate", "fsdp"), ("Axolotl", "fsdp")],
)  # fmt: skip
def test_programs_by_other_names(framework: str, name: str) -> None:
    case = case_of(run(parallel={"framework": framework, "dp": 16, "tp": 1, "pp": 1}))
    assert case.software.name == name


@pytest.mark.parametrize(
    ("words", "kinds"),
    [("cpu", "optimizer"), ("param+optimizer", "states"), (False, "none"), ("ZeRO-Infinity", "states"),
     ("optimizer + activations", "optimizer+activations")],
)  # fmt: skip
def test_offload_in_any_words(words: str | bool, kinds: str) -> None:
    assert chosen(case_of(run(parallel={"offload": words})), "offload") == OFFLOAD.index(kinds)


def test_an_offload_that_is_not_priced_is_told() -> None:
    assert (
        "offload 'swap-attention' not priced"
        in case_of(run(parallel={"offload": "swap-attention"})).assumed
    )


@pytest.mark.parametrize(
    ("word", "schedule"), [("GPipe", "gpipe"), ("AFAB", "gpipe"), ("ZB1P", "zb-1p")]
)
def test_schedules_by_other_names(word: str, schedule: str) -> None:
    case = case_of(run(parallel={"schedule": word}))
    assert chosen(case, "schedule") == SCHEDULES.index(schedule)  # type: ignore[arg-type]


def test_a_window_is_a_number_of_tokens() -> None:
    assert case_of(run(model={"window": 1024})).num_params == case_of(run()).num_params
    assert run(model={"window": 1024}).model.window.size == 1024  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (MIXTURE | {"moe_ffn": -1}, "model moe_ffn is -1"),
        (MIXTURE | {"experts": None}, "model experts"),
        (MIXTURE | {"dense_layers": 64}, "model dense_layers 64 of 32 layers"),
        ({"type": ""}, "model type"),
    ],
)
def test_sizes_that_no_mixture_has_are_refused(model: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotPricedError, match=f"missing fact: {reason}"):
        case_of(run(model=model))


def test_activations_of_some_layers_leave_the_chip() -> None:
    """Half of the layers take half of the way from all on the chip to all but two on the host, in bytes and seconds."""

    def of(offload: str | None) -> tuple[float, float]:
        row = run(parallel={"dp": 8, "tp": 2, "pp": 1, "offload": offload})
        found = predict([case_of(row)])[0]
        return found.memory["allocated"] / GIB, found.step

    (kept, fast), (half, between), (away, slow) = (
        of(words) for words in (None, "activations of 16 layers to host", "activations")
    )
    assert away < half < kept
    assert half - away == pytest.approx((kept - away) / 2, rel=0.15)
    assert fast < between < slow


def test_the_loss_of_megatron_bridge_is_in_place() -> None:
    """Two bytes a logit in the place of six, on the last stage, where nothing else is larger."""

    def allocated(row: Run) -> float:
        return predict([case_of(row)])[0].memory["allocated"]

    wide = {"vocab": 1_000_000, "layers": 2}
    parts = {"dp": 16, "tp": 1, "pp": 1, "micro_batch": 1}
    plain = run(model=wide, parallel=parts)
    told = {"source": "NVIDIA Megatron-Bridge performance summary"}
    bridge = run(model=wide, parallel=parts | {"framework": "Megatron-Bridge"}, **told)
    gone = allocated(plain) - allocated(bridge)
    assert gone == pytest.approx(4.0 * 8192 * 1_000_000, rel=0.1)


@pytest.mark.parametrize(
    ("framework", "again"), [("Megatron-Bridge", {"mla_up"}), ("Megatron-LM", set())]
)
def test_recipes_of_latent_attention_recompute_its_up_projections(
    framework: str, again: set[str]
) -> None:
    latent = {"kv_lora": 512, "q_lora": 1536, "qk_nope": 128, "qk_rope": 64, "v_head": 128}
    row = run(model={"mla": latent}, parallel={"framework": framework})
    assert recomputed_modules(row) == again
    assert chosen(case_of(row), "recompute") == bool(again)


def test_weights_of_maxtext_in_bf16_have_states_in_bf16() -> None:
    """Weight, gradient and two moments of two bytes each, in the place of fp32 weights, gradients and moments."""
    tpu = {
        "chip_key": "tpu-v6e",
        "num_chips": 256,
        "chips_per_node": 4,
        "intra": None,
        "inter": None,
    }
    jax = {"framework": "MaxText", "dp": 256, "tp": 1, "pp": 1, "global_batch": 256, "zero": 3}
    wide, narrow = (
        case_of(run(hardware=tpu, parallel=jax, notes=notes)).task
        for notes in ("", '"weight_dtype": "bfloat16"')
    )
    assert (state_bytes(wide), state_bytes(narrow)) == (StateBytes(0, 4, 12), StateBytes(2, 2, 4))
    assert wide.trainer.memory.logit_bytes == 2.0


@pytest.mark.parametrize(
    ("framework", "kernel"), [("Megatron-Core v0.6.0, FlashAttention 2", "flash-2"), ("Megatron-Core", "cudnn")]
)  # fmt: skip
def test_a_kernel_that_stands_beside_the_program(framework: str, kernel: str) -> None:
    assert case_of(run(parallel={"framework": framework})).software.attention == kernel


def test_ligers_loss_keeps_one_chunk_of_logits_and_its_layers_no_fp32() -> None:
    """128,256 words are 32 times 4,096 channels: one chunk of 32, of six bytes a logit, where eager torch keeps 14."""
    plain, liger = (
        case_of(
            run(parallel={"framework": name, "dp": 16, "tp": 1, "pp": 1, "zero": 3})
        ).task.trainer
        for name in ("DeepSpeed ZeRO-3 + HF", "DeepSpeed ZeRO-3 + HF + Liger")
    )
    assert (plain.memory.logit_bytes, liger.memory.logit_bytes) == (14.0, 6.0 / 32)
    assert plain.memory.kept and not liger.memory.kept


@pytest.mark.parametrize(
    ("notes", "kernel"), [("FA3 on H200, FA4 on B200", "best"), ("", "flash-2")]
)
def test_later_flash_attentions_are_the_best_kernels(notes: str, kernel: str) -> None:
    parallel = {"framework": "DeepSpeed ZeRO-3 + HF", "dp": 16, "tp": 1, "pp": 1, "zero": 3}
    assert case_of(run(parallel=parallel, notes=notes)).task.trainer.kernel == kernel


def test_experts_that_deepspeed_divides_are_not_computed_on_every_rank() -> None:
    parallel = {"framework": "DeepSpeed ZeRO-2 + HF", "dp": 16, "tp": 1, "pp": 1, "zero": 2}
    whole, split = (run(model=MIXTURE, parallel=parallel | {"ep": ep}) for ep in (1, 8))
    assert predict([case_of(split)])[0].step < 1.5 * predict([case_of(whole)])[0].step
