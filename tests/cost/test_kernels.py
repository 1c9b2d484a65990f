"""Kernels: limits that a roofline has, and nothing that gets faster by having more to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.candidates import single
from planner.cost import kernels
from planner.cost.operator_cost import operator_cost
from planner.cost.setting import setting
from planner.frontends.cluster_file import read_chip
from planner.question import Question, understand
from tests.cost.blocks import chip_of
from tests.search.problems import chips, examples, log_floats

many = examples(200)
lengths = st.integers(1, 20000)


@given(chips(), st.integers(1, 64), lengths, lengths, lengths, log_floats(1, 1e12), st.data())
@many
def test_a_larger_product_is_never_faster(chip, groups, m, n, k, size, data):
    sizes = [groups, m, n, k, size]
    place = data.draw(st.integers(0, 4))
    larger = list(sizes)
    larger[place] *= data.draw(st.floats(1, 10))
    for precision in ("bf16", "fp8"):
        seconds = kernels.matmul(chip, precision, *sizes)
        assert kernels.matmul(chip, precision, *larger) >= seconds * (1 - 1e-12)
        assert seconds >= chip.matmul_latency


@given(chips(), lengths, lengths, lengths, log_floats(1, 1e12))
@many
def test_a_product_lies_between_its_roofline_and_the_sum_of_its_parts(chip, m, n, k, size):
    rows = -(-m // kernels.TILE) * kernels.TILE
    rate = chip.peak["bf16"] * chip.matmul_efficiency["bf16"]
    compute = 2.0 * rows * n * (k + kernels.SHORT_SUM) / rate
    stream = size / (chip.memory_bandwidth * chip.memory_efficiency)
    seconds = float(kernels.matmul(chip, "bf16", 1, m, n, k, size)) - chip.matmul_latency
    slack = 1e-9 * (compute + stream + chip.matmul_latency)
    assert max(compute, stream) - slack <= seconds <= compute + stream + slack


def test_a_large_product_runs_at_the_rate_of_the_chip():
    chip = chip_of()
    seconds = kernels.matmul(chip, "bf16", 1, 2**16, 2**16, 2**16, 1e9)
    assert 2 * 2.0**48 / seconds == pytest.approx(0.7e15, rel=0.01)


def test_a_product_with_much_to_read_runs_at_the_rate_of_memory():
    seconds = kernels.matmul(chip_of(), "bf16", 1, 1, 1, 1, 1e12)
    assert 1e12 / seconds == pytest.approx(0.8 * 2e12, rel=0.01)


def test_an_empty_product_takes_its_latency():
    assert kernels.matmul(chip_of(), "bf16", 0, 64, 64, 64, 0) == pytest.approx(1e-6)


@pytest.mark.parametrize(("m", "same"), [(1, 64), (63, 64), (65, 128), (129, 192)])
def test_rows_come_in_tiles(m, same):
    chip = chip_of()
    assert kernels.matmul(chip, "bf16", 1, m, 4096, 4096, 1e3) == kernels.matmul(
        chip, "bf16", 1, same, 4096, 4096, 1e3
    )


def test_fp8_pays_for_its_casts():
    chip = chip_of()
    one = kernels.matmul(chip, "bf16", 1, 4096, 4096, 4096, 1e8)
    cast = kernels.matmul(chip, "fp8", 1, 4096, 4096, 4096, 1e8) - one
    assert cast == pytest.approx(kernels.CAST_BYTES * 4096 * 4096 / (0.8 * 2e12))


@given(chips(), st.integers(1, 4096), st.floats(1, 10))
@many
def test_more_rows_for_every_expert_are_never_faster(chip, rows, factor):
    def seconds(m):
        return kernels.matmul(chip, "bf16", 8, m, 512, 1024, 1e6, idle_rows=kernels.FEW_ROWS)

    assert seconds(rows * factor) >= seconds(rows) * (1 - 1e-12)


def test_experts_with_few_rows_run_at_the_measured_share_of_peak():
    """H100: 0.17 of peak at 64 rows, 0.49 at 256, 0.61 at 512, 0.64 to 0.8 beyond."""
    chip = read_chip("h100-sxm")
    for rows, low, high in (
        (64, 0.12, 0.22),
        (256, 0.38, 0.55),
        (512, 0.5, 0.66),
        (4096, 0.6, 0.8),
    ):
        size = 2 * 8 * (rows * (4096 + 7168) + 4096 * 7168)
        seconds = kernels.matmul(
            chip, "bf16", 8, rows, 4096, 7168, size, idle_rows=kernels.FEW_ROWS
        )
        share = 2 * 8 * rows * 4096 * 7168 / seconds / chip.peak["bf16"]
        assert low < share < high


@given(chips(), log_floats(1, 1e15), st.integers(1, 200000), st.integers(1, 512), st.floats(1, 9))
@many
def test_attention_slows_with_work_and_gains_with_length_and_head_size(chip, flops, keys, head, f):
    def seconds(work=flops, length=keys, size=head):
        return float(kernels.attention(chip, "bf16", work, length, size))

    assert seconds(work=flops * f) >= seconds() * (1 - 1e-12)
    assert seconds(length=keys * f) <= seconds() * (1 + 1e-12)
    assert seconds(size=head * f) <= seconds() * (1 + 1e-12)
    assert seconds() >= chip.matmul_latency


def test_long_attention_at_head_size_128_runs_at_the_rate_of_the_profile():
    seconds = kernels.attention(chip_of(), "bf16", 1e15, 10**7, 128) - 1e-6
    assert 1e15 / seconds == pytest.approx(0.5e15, rel=1e-4)
    assert kernels.attention(chip_of(), "fp8", 1e15, 10**7, 128) == seconds + 1e-6


def test_an_older_kernel_is_slower_where_a_newer_one_exists():
    for generation, families in kernels.ATTENTION_KERNELS.items():
        for family, rate in families.items():
            chip = replace(chip_of(), family=family)
            old = kernels.attention(chip, "bf16", 1e12, 4096, 128, generation) - 1e-6
            best = kernels.attention(chip, "bf16", 1e12, 4096, 128) - 1e-6
            assert best / old == pytest.approx(rate)
            assert 0 < rate < 1


@given(chips(), log_floats(1, 1e13), st.floats(1, 100))
@many
def test_a_pass_over_memory_is_a_launch_and_bytes(chip, size, factor):
    seconds = kernels.memory_pass(chip, size)
    assert seconds == pytest.approx(
        chip.launch + size / (chip.memory_bandwidth * chip.memory_efficiency)
    )
    assert kernels.memory_pass(chip, size * factor) >= seconds


@given(chips(), st.integers(2, 9))
@many
def test_arrays_are_priced_as_one_by_one(chip, count):
    generator = np.random.default_rng(count)
    m, n, k = (generator.integers(1, 9000, count) for _ in range(3))
    size = generator.random(count) * 1e9
    together = kernels.matmul(chip, "bf16", 2, m, n, k, size)
    flashes = kernels.attention(chip, "bf16", size, m, k)
    for i in range(count):
        one = kernels.matmul(chip, "bf16", 2, m[i], n[i], k[i], size[i])
        assert together[i] == pytest.approx(one, rel=1e-12)
        flash = kernels.attention(chip, "bf16", size[i], m[i], k[i])
        assert flashes[i] == pytest.approx(flash, rel=1e-12)


def test_the_head_runs_in_wide_rows_where_the_recipe_quantises_the_others() -> None:
    asked = Question(model="llama-3-8b", cluster="h100-sxm:8", trainer="megatron", global_batch=8)
    rows = single(dp=8, shard_group=8)

    def seconds(precision: str, block: str) -> float:
        task = understand(replace(asked, precision=precision)).task
        where = getattr(task.model, block) if block == "head" else task.model.blocks[0]
        product = next(op for op in where.operators if op.kind == "matmul")
        return float(operator_cost(setting(task, rows), where, product, {}).forward.max())

    assert seconds("fp8", "head") == seconds("bf16", "head")
    assert seconds("fp8", "layer") < seconds("bf16", "layer")
