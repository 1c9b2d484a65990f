"""What older or other software does with the same operators: whole reductions, passes of their own, hidden sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.calibrate.as_run import as_run, generation_name
from planner.calibrate.row_task import case_of
from planner.candidates import single
from planner.cost import kernels
from planner.cost.block import block_cost
from planner.cost.collectives import collective
from planner.cost.prices import accumulation_seconds, block_seconds, prices, state_seconds
from planner.cost.setting import axis_members, setting
from planner.cost.states import BUCKET, state_cost
from planner.frontends.cluster_file import read_cluster
from planner.graph.architecture import Attention, Mlp
from planner.trainers.generations import generation
from planner.trainers.trainer import Task
from tests.calibrate.test_rows import run
from tests.cost.blocks import model_of, task_of


def task(**trainer: object) -> Task:
    model = model_of(Attention(heads=32, kv_heads=32, head_dim=128), Mlp(width=16384), 4096)
    found = task_of(model, "megatron", 16)
    return replace(found, trainer=replace(found.trainer, **trainer))  # type: ignore[arg-type]


def overlap(share: float) -> Task:
    found = task()
    return task(overlap=replace(found.trainer.overlap, tp=1.0, tp_gradients=share))


def test_whole_gradients_are_all_reduced_in_the_bytes_they_are_cast_to() -> None:
    question, rows = (
        task(reduces_whole=True, reduced_bytes=4.0, bucket_per_rank=0.0),
        single(dp=16, sharding=1),
    )
    where = axis_members(question, rows)
    reduced, gathered = (
        float(collective(kind, BUCKET, where["dp"], question.cluster)[0]) / BUCKET
        for kind in ("all-reduce", "all-gather")
    )
    once = state_cost(question, rows, where).once[0, 0]
    assert once == pytest.approx(4.0 * reduced + 2.0 * gathered)


def test_gradients_are_added_in_a_pass_where_micro_batches_follow_one_another() -> None:
    question, fusing = (
        task(overhead=replace(task().trainer.overhead, accumulation=passed))
        for passed in (6.0, 0.0)
    )
    many, one = single(dp=16, micro_batch=1), single(dp=16, micro_batch=4)
    p = prices(question, many)
    chip, held = question.cluster.chip, p.table.dense[p.key][0]
    assert accumulation_seconds(p)[0] == pytest.approx(
        6.0 * held / (chip.memory_bandwidth * chip.memory_efficiency)
    )
    assert accumulation_seconds(prices(question, one)).max() == 0.0
    fused = block_seconds(prices(fusing, many))
    assert np.allclose(block_seconds(p)[1] - fused[1], accumulation_seconds(p))
    assert np.allclose(block_seconds(p)[0], fused[0])


def test_weights_may_be_gathered_once_more_for_recompute() -> None:
    """Only where they are sharded and all runs again: once a micro-batch and block, behind nothing."""
    exposed = replace(task().trainer.overlap, weights=1.0)
    once, twice = (task(overlap=exposed, regathers=again) for again in (False, True))
    for sharding, recompute, gathers in ((3, 2, 1.0), (3, 1, 0.0), (3, 0, 0.0), (2, 2, 0.0)):
        rows = single(dp=16, sharding=sharding, recompute=recompute)
        (forward, backward), (same, more) = (block_seconds(prices(q, rows)) for q in (once, twice))
        gather = state_seconds(prices(once, rows))[0]
        assert np.allclose(more - backward, gathers * gather, rtol=1e-9, atol=1e-15)
        assert np.array_equal(forward, same)
        assert (gather.max() > 0.0) == (sharding == 3)


def test_passes_over_scores_are_counted_apart_from_other_passes() -> None:
    """Six where torch runs a masked softmax in fp32, one and its mask where one kernel does: 10 bytes a score each."""
    model = model_of(Attention(heads=8, kv_heads=8, head_dim=64), Mlp(width=1024), 512, fused=False)
    question = task_of(model, "megatron", 8)

    def seconds(passes: float | None) -> tuple[np.ndarray, np.ndarray]:
        held = replace(question.trainer.overhead, operator=0.0, memory_passes=2.0)
        overhead = replace(held, score_passes=passes)
        q = replace(question, trainer=replace(question.trainer, overhead=overhead))
        return block_seconds(prices(q, single(dp=8)))

    chip, recipe = question.cluster.chip, question.recipe
    scores = 8 * recipe.seq**2 / (chip.memory_bandwidth * chip.memory_efficiency)
    (forward, backward), (more, most) = seconds(1.0), seconds(6.0)
    assert (more - forward)[0, 1] == pytest.approx(5.0 * 4.0 * scores)
    assert (most - backward)[0, 1] == pytest.approx(5.0 * 6.0 * scores)
    assert np.array_equal(seconds(None)[0], seconds(2.0)[0])


@pytest.mark.parametrize(
    ("framework", "kernel", "name"),
    [
        ("AA-Scaling", "torch", "aleph-eager"),
        ("AA-Scaling", "fused", "aleph-plain-norm"),
        ("AA-Scaling", "flash_attention2 + RMS kernel", "aleph"),
        ("Alpa (JAX) zero_3", None, "alpa-dp"),
        ("Alpa (JAX) heuristic", None, "alpa-heuristic"),
    ],
)
def test_software_is_told_apart_by_what_rows_name(
    framework: str, kernel: str | None, name: str
) -> None:
    case = case_of(run(parallel={"framework": framework, "kernel": kernel, "zero": None}))
    assert generation_name(case.software, case.traits) == name
    assert as_run(case.software, case.traits).regathers == (name == "alpa-dp")


@pytest.mark.parametrize("tp", [2, 8, 16])
def test_sums_of_input_gradients_hide_behind_the_weight_gradients_and_no_longer(tp: int) -> None:
    rows = single(dp=16 // tp, tp=tp)
    shown, partly = (
        block_cost(setting(q, rows), q.model.blocks[0], sp=False)
        for q in (overlap(1.0), overlap(0.25))
    )
    seconds = shown.traffic["tp"].exposed_backward[0]
    left = partly.traffic["tp"].exposed_backward[0]
    room = partly.weight[0]
    assert max(0.25 * seconds, seconds - room) <= left + 1e-12
    assert left < seconds
    assert left + partly.traffic["tp"].hidden_backward[0] == pytest.approx(seconds)
    assert partly.traffic["tp"].exposed_forward == pytest.approx(
        shown.traffic["tp"].exposed_forward
    )
    if tp == 16:
        assert left > 0.25 * seconds


def test_attention_with_sinks_was_slow_before_its_kernel_was_fused() -> None:
    chip = read_cluster("h100-sxm:8").chip
    early, best = (
        kernels.attention(chip, "bf16", 1e15, 4096, 128, kernel)
        for kernel in ("early-sinks", "best")
    )
    assert best / early == pytest.approx(0.115, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "source", "kernel"),
    [
        (
            "GPT-OSS 120B",
            "Megatron-Bridge performance summary, NeMo container 26.04",
            "early-sinks",
        ),
        ("GPT-OSS 120B", "Megatron-Bridge performance summary, NeMo container 26.08", "best"),
        ("GPT-OSS 120B", "one's own", "best"),
        ("Llama-3 8B", "Megatron-Bridge performance summary, NeMo container 26.04", "best"),
    ],
)
def test_the_kernel_follows_from_model_and_container(name: str, source: str, kernel: str) -> None:
    case = case_of(run(model={"name": name}, source=source))
    assert as_run(case.software, case.traits).kernel == kernel


@pytest.mark.parametrize(
    ("source", "generation"),
    [
        ("BigScience BLOOM-176B prequel", "megatron-deepspeed"),
        ("AMP (Li et al., NeurIPS 2022)", "amp"),
        ("vTrain (MICRO 2024) measured ground truth", "megatron-deepspeed-2023"),
    ],
)
def test_deepspeed_s_fork_is_told_by_its_year(source: str, generation: str) -> None:
    case = case_of(run(parallel={"framework": "Megatron-DeepSpeed"}, source=source))
    assert as_run(case.software, case.traits).name.split()[0] == generation


def test_the_timers_of_amp_wait_for_collectives_and_no_kernel_fuses_its_softmax() -> None:
    parallel = {"framework": "Megatron-DeepSpeed"}
    amp, bloom = (
        as_run(case.software, case.traits).overhead
        for case in (case_of(run(parallel=parallel, source=s)) for s in ("AMP", "BLOOM"))
    )
    assert (amp.waits_for, bloom.waits_for) == ("collectives", "nothing")
    assert amp.score_passes == pytest.approx((13 + 19) / (9 + 11))
    assert bloom.score_passes is None


@pytest.mark.parametrize(
    ("parallel", "kernel"),
    [
        ({"framework": "llm-foundry"}, "triton"),
        ({"framework": "AA-Scaling", "kernel": "flash_attentionv1.0.8"}, "flash-1"),
        ({"framework": "AA-Scaling", "kernel": "flash_attention2"}, "flash-2"),
    ],
)
def test_kernels_of_one_algorithm_are_told_apart(parallel: dict[str, str], kernel: str) -> None:
    case = case_of(run(parallel=parallel, hardware={"chip_key": "a100-sxm-80gb"}))
    assert as_run(case.software, case.traits).kernel == kernel
    rates = [
        kernels.ATTENTION_KERNELS[k].get("ampere", 1.0) for k in ("flash-1", "triton", "flash-2")
    ]
    assert rates == sorted(set(rates))


@pytest.mark.parametrize(
    ("source", "chips", "notes", "waits"),
    [
        ("BigScience BLOOM-176B prequel topology sweeps", 384, "", True),
        ("BigScience BLOOM-176B prequel topology sweeps", 80, "", False),
        ("one's own", 384, "", False),
        ("one's own", 8, "run with CUDA_LAUNCH_BLOCKING=1", True),
    ],
)
def test_the_host_waits_where_row_or_source_say_so(
    source: str, chips: int, notes: str, waits: bool
) -> None:
    row = run(
        source=source, notes=notes, hardware={"num_chips": chips}, parallel={"dp": chips // 4}
    )
    case = case_of(row)
    assert (as_run(case.software, case.traits).overhead.waits_for == "kernels") == waits


def test_deepspeed_s_bf16_optimizer_all_reduces_whole_fp32_gradients_and_sends_parts() -> None:
    rows = [
        run(parallel={"framework": "Megatron-DeepSpeed", "precision": precision}, source="BLOOM")
        for precision in ("bf16", "fp16")
    ]
    wide, narrow = (as_run(case.software, case.traits) for case in map(case_of, rows))
    assert (wide.reduced_bytes, wide.reduces_whole) == (4.0, True)
    assert (narrow.reduced_bytes, narrow.reduces_whole) == (None, False)
    assert wide.scatters_sends
    assert narrow.scatters_sends
    assert wide.overhead.accumulation > narrow.overhead.accumulation


@pytest.mark.parametrize(
    ("stated", "ep", "sends"),
    [
        ("none (TP overlap and P2P overlap disabled)", 1.0, 1.0),
        (None, generation("megatron-core").overlap.ep, 0.6),
    ],
)
def test_a_run_that_overlaps_nothing_shows_all_of_its_traffic(
    stated: str | None, ep: float, sends: float
) -> None:
    case = case_of(run(parallel={"framework": "Megatron-Core", "overlap": stated}))
    shares = as_run(case.software, case.traits).overlap
    assert (shares.ep, shares.sends) == (ep, sends)
    if stated:
        assert (shares.gradients, shares.weights) == (1.0, 1.0)
