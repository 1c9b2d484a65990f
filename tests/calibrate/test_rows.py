"""Rows of measured runs become tasks: what they state is pinned, what they leave open is told."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from planner.calibrate.evaluate import predict
from planner.calibrate.networks import inter_rate, intra_rate
from planner.calibrate.readings import fits, memory_gib, step_seconds
from planner.calibrate.row_task import case_of
from planner.calibrate.runs import Run, read_runs
from planner.calibrate.shapes import NotPricedError
from planner.calibrate.software import software_of
from planner.cost.prices import cut_of, prices
from planner.cost.saved import saved_tensors
from planner.cost.setting import setting
from planner.cost.strategies import BlockKey, roles_of, structure
from planner.errors import PlannerError
from planner.graph.architecture import Attention

ROW: dict[str, Any] = {
    "id": "one",
    "group": "g",
    "quality": "A",
    "complete": True,
    "model": {
        "name": "Llama-3 8B", "type": "llama", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8,
        "head_dim": 128, "ffn": 14336, "gated": True, "vocab": 128256, "seq": 8192,
    },
    "hardware": {
        "chip_key": "h100-sxm-80gb", "num_chips": 16, "chips_per_node": 8,
        "intra": "NVLink4 900GB/s bidir per GPU (NVSwitch)", "inter": "4x 200Gb/s RDMA per node",
    },
    "parallel": {
        "dp": 4, "tp": 2, "pp": 2, "micro_batch": 1.0, "global_batch": 128, "precision": "bf16",
        "framework": "NeMo/Megatron-Core",
    },
    "measured": {"step_time_s": 5.0, "tflops_per_chip": 400.0},
}  # fmt: skip


def run(**parts: dict[str, Any]) -> Run:
    row = copy.deepcopy(ROW)
    for key, values in parts.items():
        row[key] = row[key] | values if isinstance(values, dict) else values
    return Run.model_validate(row)


def test_what_is_stated_is_pinned() -> None:
    case = case_of(run())
    assert [int(getattr(case.layout, key)[0]) for key in ("dp", "tp", "pp")] == [4, 2, 2]
    assert case.software.trainer.name == "megatron"
    assert case.task.recipe.global_batch == 128
    assert case.num_params == pytest.approx(8.03e9, rel=0.01)
    assert not case.broken


def test_what_is_open_is_told() -> None:
    assumed = case_of(run()).assumed
    assert set(assumed) == {"cp 1", "vpp 1", "sp on", "zero 1", "recompute none"}


def test_network_is_the_rows_own() -> None:
    levels = case_of(run()).task.cluster.levels
    assert levels[0].bandwidth == 450e9
    assert levels[-1].bandwidth == 4 * 25e9 / 8


@pytest.mark.parametrize(
    ("text", "per", "rate"),
    [
        ("8x HDR InfiniBand 200Gb/s per node (Selene)", 8, 25e9),
        ("RoCE 1600 Gb/s per node (8x200)", 8, 25e9),
        ("25 Gb/s per node", 8, 25e9 / 64),
        ("10 Gb/s (p3.8xlarge)", 4, 10e9 / 32),
        ("IB 400Gb/s per GPU across racks (not printed); NVL72 inside", 4, 50e9),
        ("4x 100Gb/s RoCE per node (400 Gb/s per node)", 8, 6.25e9),
        ("AWS p5.48xlarge, EFA 3200 Gb/s per node", 8, 50e9),
        ("InfiniBand 8x50 GB/s per node", 8, 50e9),
        ("4x Omni-Path links per node (100 Gb/s each; \"OPA\", Jean Zay)", 8, 6.25e9),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s, Management: 100Gb/s", 8, 50e9),
        ("4x ConnectX-8 IB XDR 800 Gb/s", 4, 100e9),
        ("4x HDR InfiniBand per node = 800 Gb/s per node (from config inter_node_bandwidth=800)", 8, 12.5e9),
        ("not printed", 8, None),
        ("single node", 8, None),
        ("DCN between slices", 4, None),
        (None, 8, None),
    ],
)  # fmt: skip
def test_rates_between_nodes(text: str | None, per: int, rate: float | None) -> None:
    found = inter_rate(text, per)
    assert found == (None if rate is None else pytest.approx(rate))


def test_rates_inside_nodes() -> None:
    assert intra_rate("NVLINK Gen5 1800 GB/s + NVSWITCH Gen5") == 900e9
    assert intra_rate("PCIe, g4dn.12xlarge (AMP models 50 Gb/s intra)") == 6.25e9
    assert intra_rate("ICI torus") is None


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"model": {"type": "bert"}}, "unsupported model: bert"),
        ({"model": {"vocab": None}}, "missing fact: model vocab"),
        ({"hardware": {"chip_key": "abacus"}}, "unsupported chip: abacus"),
        ({"hardware": {"num_chips": None}}, "missing fact: number of chips"),
        (
            {"parallel": {"precision": "int4"}},
            "unsupported precision: int4",
        ),
        ({"parallel": {"dp": None, "tp": None, "pp": None}}, "how the model was divided"),
        ({"parallel": {"dp": 3}}, "is not 16 chips"),
        ({"parallel": {"global_batch": None}}, "global batch of a pipeline"),
        ({"parallel": {"micro_batch": 0.5}}, "no number of sequences"),
        ({"parallel": {"global_batch": 2}}, "does not reach 4 data ranks"),
        ({"parallel": {"vpp": 18}}, "32 layers do not fill pp 2 × vpp 18 chunks"),
    ],
)
def test_rows_that_cannot_be_priced(parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotPricedError, match=reason):
        case_of(run(**parts))


@pytest.mark.parametrize(
    ("framework", "trainer", "fused"),
    [
        ("NeMo 2.0 / Megatron-Core", "megatron", True),
        ("Megatron-DeepSpeed", "megatron", False),
        ("Megatron-LM (sail-sg fork), FlashAttention", "megatron", True),
        ("Megatron-LM (sail-sg fork)", "megatron", False),
        ("llm-foundry/Composer PyTorch FSDP", "fsdp", True),
        ("DeepSpeed 0.19 ZeRO-3 + HF + Liger", "fsdp", True),
        ("torchtitan (FSDP2)", "torchtitan", True),
        ("MaxText (JAX)", "torchtitan", True),
        ("MindSpore MindFormers", "mindspore", True),
        ("MindSpeed-LLM (Megatron-Core)", "megatron", True),
        ("Alpa (JAX) zero_2", "fsdp", False),
        ("DeepSpeed + Megatron-LM v1.1.5 (3D)", "megatron", False),
        ("NeMo AutoModel (FSDP2)", "torchtitan", True),
        ("PyTorch FSDP", "torchtitan", True),
    ],
)
def test_software(framework: str, trainer: str, fused: bool) -> None:
    found = software_of(run(parallel={"framework": framework}))
    assert (found.trainer.name, found.fused) == (trainer, fused)


def test_the_row_knows_its_attention_best() -> None:
    kernel = {"framework": "AA-Scaling (Aleph Alpha, Megatron-style)", "kernel": "torch"}
    assert software_of(run(parallel=kernel)).attention == "unfused"
    kernel["kernel"] = "flash_attentionv1.0.8"
    assert software_of(run(parallel=kernel)).attention == "flash-1"


def test_sharded_data_parallelism_alone_is_the_trainer_that_has_nothing_else() -> None:
    alone = run(parallel={"framework": "PyTorch FSDP", "tp": 1, "pp": 1})
    assert software_of(alone).trainer.name == "fsdp"


@pytest.mark.parametrize(
    ("chip", "chips", "model", "kernel"),
    [
        ("a100-sxm-40gb", 256, "mpt-7b", "triton"),
        ("h100-sxm-80gb", 64, "mpt-7b", "triton"),
        ("h100-sxm-80gb", 128, "mpt-7b", "flash-2"),
        ("h100-sxm-80gb", 128, "mpt-13b", "triton"),
    ],
)
def test_foundry_attends_by_what_its_scripts_name(
    chip: str, chips: int, model: str, kernel: str
) -> None:
    row = run(
        model={"name": model},
        hardware={"chip_key": chip, "num_chips": chips},
        parallel={"framework": "llm-foundry/Composer PyTorch FSDP", "tp": 1, "pp": 1},
    )
    assert software_of(row).attention == kernel


@pytest.mark.parametrize(
    ("framework", "split"),
    [("NeMo 2.0 / Megatron-Core", 2), ("Megatron-LM 0.6.0", 2), ("Megatron-Bridge", 1)],
)
def test_experts_are_split_by_tp_where_nothing_else_is_stated(framework: str, split: int) -> None:
    moe = {"type": "moe", "layers": 4, "experts": 8, "top_k": 2, "moe_ffn": 512}
    layout = {"framework": framework, "tp": 2, "pp": 1, "dp": 8, "ep": 2, "global_batch": 16}
    assert int(case_of(run(model=moe, parallel=layout)).layout.etp[0]) == split


def test_weights_without_a_master_copy_are_told_by_the_row() -> None:
    assert case_of(run()).task.recipe.master_weights
    assert not case_of(run(parallel={"master_weights": False})).task.recipe.master_weights


def test_classic_gpt_and_bloom() -> None:
    old = {"framework": "Megatron-DeepSpeed", "precision": "fp16"}
    shape = {"type": "gpt", "gated": False, "tied_embeddings": True, "kv_heads": 32}
    arch = case_of(run(model=shape, parallel=old)).task.model
    assert not case_of(run(model=shape, parallel=old)).task.recipe.fused_attention
    bloom = case_of(run(model=shape | {"name": "BLOOM"}, parallel=old)).task.model
    assert bloom.num_params < arch.num_params, "ALiBi has no table of positions"


@pytest.mark.parametrize(
    ("key", "value"), [("fsdp", "FULL_SHARD"), ("fsdp_group", "node"), ("etp", 0)]
)
def test_fields_that_few_rows_have_are_checked_as_well(
    tmp_path: Path, key: str, value: object
) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(ROW | {"parallel": ROW["parallel"] | {key: value}}))
    with pytest.raises(PlannerError, match=rf"parallel\.{key}") as caught:
        read_runs(path)
    assert caught.value.faults[0].code == "F02"


def test_windows_and_dense_layers_alternate_or_lead() -> None:
    from planner.calibrate.shapes import architecture

    moe = {"type": "moe", "layers": 4, "experts": 8, "top_k": 2, "moe_ffn": 512, "dense_layers": 1}
    sparse = run(model=moe)
    assert architecture(sparse, software_of(sparse)).layers == (0, 1, 1, 1)
    half = run(model=moe | {"dense_layers": 2, "window": {"size": 128, "every": 2}})
    arch = architecture(half, software_of(half))
    assert arch.layers == (0, 1, 0, 1)
    windows = [
        kind.attention.window for kind in arch.kinds if isinstance(kind.attention, Attention)
    ]
    assert windows == [128, None]


def test_jax_runs_its_batch_in_one_pass() -> None:
    jax = {
        "framework": "MaxText (JAX)",
        "zero": 3,
        "pp": 1,
        "dp": 8,
        "micro_batch": 1,
        "global_batch": 16,
    }
    case = case_of(run(parallel=jax))
    assert int(case.layout.micro_batch[0]) == 2


def test_interleaving_that_the_batch_cannot_fill() -> None:
    case = case_of(run(parallel={"vpp": 4, "global_batch": 12}))
    assert int(case.layout.vpp[0]) == 1
    assert any(text.startswith("vpp 1, as 3 micro-batches") for text in case.assumed)


def test_times_come_before_printed_rates() -> None:
    assert step_seconds(run()) == (5.0, "step_time_s")
    rate = {"step_time_s": None, "tokens_per_s_per_chip": 8192.0}
    assert step_seconds(run(measured=rate)) == (8.0, "tokens_per_s_per_chip")
    assert step_seconds(run(measured={"step_time_s": None, "samples_per_s": 64})) == (
        2.0,
        "samples_per_s",
    )
    assert step_seconds(run(measured={"step_time_s": None})) == (None, "")


def test_memory_readings() -> None:
    assert memory_gib(run(measured={"mem_gib_per_chip": 60})) == (60.0, "allocated")
    decimal = run(measured={"mem_gib_per_chip": 60}, notes="the field holds decimal GB; likely")
    assert memory_gib(decimal)[0] == pytest.approx(55.88, abs=0.01)
    formula = run(measured={"oom": True}, notes="VETTING (drop (memory as a measurement), x)")
    assert fits(formula) is None
    assert fits(run(measured={"oom": True})) is False


def test_lines_that_are_no_runs(tmp_path: Path) -> None:
    wrong = copy.deepcopy(ROW) | {"id": "two"}
    wrong["model"]["layers"] = "many"
    lines = [
        json.dumps(ROW),
        "",
        "{",
        json.dumps(wrong),
        json.dumps(ROW),
        json.dumps({"id": "x"}),
        "3",
    ]
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(PlannerError) as caught:
        read_runs(path)
    places = [fault.where.rpartition(":")[2] for fault in caught.value.faults]
    assert places == ["3", "4", "5", "6", "7"]
    texts = [fault.what for fault in caught.value.faults]
    assert "not JSON" in texts[0]
    assert texts[1].startswith("model.layers is 'many'; it should be a whole number")
    assert "given twice (first on line 1)" in texts[2]
    assert texts[4] == "the row is '3'; it should be a mapping."
    assert {fault.code for fault in caught.value.faults} == {"F02"}


@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        ("model", "layers", 10_001, "model.layers is '10001'; it should be at most 10000"),
        ("model", "mtp_layers", 10**9, "model.mtp_layers is '1000000000'; it should be at most"),
        ("model", "window", [4096], "model.window is"),
        ("model", "mla", {"kv_lora": 512}, "model.mla.qk_nope"),
        ("parallel", "vpp", 10**9, "parallel.vpp is '1000000000'; it should be at most"),
    ],
)
def test_values_that_no_run_has(part: str, key: str, value: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(ROW | {part: ROW[part] | {key: value}}))
    with pytest.raises(PlannerError) as caught:
        read_runs(path)
    assert caught.value.faults[0].where.endswith(":1")
    assert said in caught.value.faults[0].what


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="cannot read"):
        read_runs(tmp_path / "none.jsonl")
    broken = tmp_path / "runs.jsonl.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(PlannerError, match="cannot read"):
        read_runs(broken)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(PlannerError, match="no runs"):
        read_runs(empty)


def _kept(framework: str, notes: str) -> tuple[set[str], Any]:
    """What a row that recomputes selectively keeps of its first layer, and how it is priced."""
    case = case_of(run(parallel={"framework": framework, "recompute": "selective"}, notes=notes))
    tags = case.task.trainer.recomputed("selective", fused=True)
    block = case.task.model.blocks[0]
    form = structure(BlockKey(block), roles_of(case.task.trainer, sp=False))
    return set(saved_tensors(setting(case.task, case.layout), form, tags)), case


def test_a_policy_of_jax_keeps_what_its_name_says() -> None:
    assert _kept("MaxText", "Remat policy: save_qkv_proj (the rest again)")[0] == {"x", "q", "kv"}
    kept, _ = _kept("MaxText", "remat_policy=minimal per_device_batch_size=1")
    assert kept == {"x", "q", "kv", "attn_out", "mlp_up"}
    assert _kept("MaxText", "remat minimal_flash")[0] == kept | {"o", "softmax_rows"}
    kept, case = _kept("MaxText", 'config {"remat_policy": "custom"}; offloads some to the host')
    assert kept == {"x", "q", "kv", "attn_out"}
    assert case.layout.in_host("activations").all()


def test_torchtitan_of_2024_did_not_compile_its_loss() -> None:
    framework = {"framework": "torchtitan (FSDP2)", "tp": 1, "pp": 1, "dp": 16}
    old, new = (
        case_of(
            run(
                parallel=framework, notes="torch.compile", url=f"benchmarks/llama3_h100_{date}_t.md"
            )
        )
        for date in ("202412", "202506")
    )
    assert old.task.trainer.memory.logit_bytes == 14
    assert new.task.trainer.memory.logit_bytes == 6


def test_alpa_trains_mixtures_with_adafactor() -> None:
    experts = {"type": "moe", "experts": 8, "top_k": 2, "moe_ffn": 4096}
    parallel = {"framework": "Alpa (JAX) auto_sharding", "dp": 16, "tp": 1, "pp": 1, "ep": 8}
    assert case_of(run(model=experts, parallel=parallel)).task.recipe.optimizer == "adafactor"
    assert case_of(run(parallel=parallel)).task.recipe.optimizer == "adamw"


def test_a_rate_outweighs_a_batch_that_it_contradicts() -> None:
    agrees = {"step_time_s": 5.0, "tokens_per_s_per_chip": 128 * 8192 / 16 / 5.1}
    assert step_seconds(run(measured=agrees)) == (5.0, "step_time_s")
    doubled = {"step_time_s": 5.0, "tokens_per_s_per_chip": 128 * 8192 / 16 / 10.0}
    assert step_seconds(run(measured=doubled)) == (pytest.approx(10.0), "tokens_per_s_per_chip")


def test_what_a_row_says_of_stages_modules_and_windows() -> None:
    redistributed = {"pp": 4, "tp": 1, "pp_partition": "layers on the last stage: 2"}
    case = case_of(run(parallel=redistributed))
    held = cut_of(prices(case.task, case.layout)).sum(axis=1)[:, 1]
    assert held.tolist() == [10, 10, 10, 2]
    shared = {"pp": 4, "tp": 1, "schedule": "1f1b + vocabulary parallel (1 barrier)"}
    case = case_of(run(parallel=shared))
    held = cut_of(prices(case.task, case.layout)).sum(axis=1)
    assert held[:, [0, -1]].tolist() == [[0.25, 0.25]] * 4
    named = run(parallel={"recompute": "selective"}, notes="recompute_modules: layernorm, moe_act.")
    assert case_of(named).task.trainer.recomputed("selective", fused=True) == {"norm", "activation"}
    gemma = run(model={"name": "Gemma3 12B", "layers": 12}, parallel={"pp": 1, "dp": 8})
    assert case_of(gemma).task.model.layers == (0, 0, 0, 0, 0, 1) * 2


def test_fp4_is_priced_where_the_chip_has_it() -> None:
    volta = {"chip_key": "v100-sxm-16gb"}
    assert (
        case_of(run(parallel={"precision": None}, hardware=volta)).task.recipe.precision == "fp16"
    )
    ampere = case_of(run(parallel={"precision": "fp8"}, hardware={"chip_key": "a100-sxm-80gb"}))
    assert ampere.task.recipe.precision == "bf16"
    assert "precision 'fp8' priced as bf16" in ampere.assumed
    narrow = {"precision": "nvfp4"}
    assert case_of(run(parallel=narrow)).task.recipe.precision == "fp8"
    rack = {"chip_key": "gb200", "intra": None, "inter": None}
    assert case_of(run(parallel=narrow, hardware=rack)).task.recipe.precision == "fp4"


def test_some_layers_run_again_as_a_whole() -> None:
    """Block recompute of n layers lies between none and all, in proportion; of all of them it is full recompute."""

    def priced(recompute: str, notes: str = "") -> tuple[float, float]:
        found = predict(
            [case_of(run(parallel={"recompute": recompute, "pp": 1, "dp": 8}, notes=notes))]
        )[0]
        return found.step, found.memory["allocated"]

    told = "recompute block, first {} layers"
    none, whole = priced("none"), priced("full")
    half, every = priced("full", told.format(16)), priced("full", told.format(32))
    assert every[0] == pytest.approx(whole[0])
    assert every[1] == pytest.approx(whole[1])
    assert half[0] == pytest.approx((none[0] + whole[0]) / 2, rel=1e-3)
    assert whole[1] < half[1] < none[1]
    args = "recompute args: granularity=full method=block num_layers=16"
    assert priced("full", args) == pytest.approx(half)


def test_null_words_are_what_a_source_does_not_say() -> None:
    silent = run(model={"name": None}, hardware={"chip": None}, source=None, notes=None)
    assert (silent.model.name, silent.hardware.chip, silent.source) == ("", "", "")
    assert case_of(silent).software.name == case_of(run()).software.name


@pytest.mark.parametrize(
    ("parts", "waits"),
    [
        ({}, False),
        ({"parallel": {"framework": "Megatron-LM (sail-sg fork)"}}, True),
        ({"source": "MegaScale, table 3", "parallel": {"overlap": "tp-ovl"}}, True),
        ({"source": "MegaScale, table 3", "parallel": {"overlap": "pp-ovl"}}, False),
    ],
)
def test_interleaved_stages_wait_where_the_run_does_not_overlap_sends(
    parts: dict[str, Any], waits: bool
) -> None:
    found = case_of(run(**parts)).task.trainer.overhead.exchange
    assert (found is not None) == waits


def test_what_a_row_says_of_overlap_and_context_parallelism_is_how_it_is_priced():
    said = {"overlap": "none (TP overlap and P2P overlap disabled)", "cp_comm": "a2a"}
    plain = case_of(run(parallel={"framework": "Megatron-LM"})).task.trainer
    found = case_of(run(parallel={"framework": "Megatron-LM", **said})).task.trainer
    assert (plain.overlap.tp_gradients, plain.overlap.tp_again) == (0.25, 0.0)
    assert (found.overlap.tp_gradients, found.overlap.tp_again, found.overlap.cp) == (1.0, 1.0, 1.0)
    assert found.apart == {("cp", "attn.core"): ("heads",)}
    assert found.memory.kept == {"core": 2.0}
