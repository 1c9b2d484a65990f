"""Memory and time with frozen weights, optimizers of other bytes, and published numbers of both."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from planner.api import Question, plan, price
from planner.candidates import single
from planner.cost import kernels
from planner.cost.block import block_cost
from planner.cost.memory import TERMS
from planner.cost.optimizers import newton_flops
from planner.cost.prices import prices
from planner.cost.setting import setting
from planner.cost.states import state_bytes
from planner.cost.step import exact, memory_of_stages, stage_times
from planner.errors import PlannerError
from planner.frontends.cluster_file import read_cluster
from planner.frontends.recipe_file import Target
from planner.graph.adapters import GROUPS, PAIRED, PRODUCTS, with_adapters
from planner.graph.architecture import Attention, Mlp
from planner.question import understand
from planner.recipe import MOMENT_BYTES, QUANTISED_BITS, Lora, Recipe
from planner.units import GIB
from tests.cost.blocks import gpt, model_of, task_of

LLAMA_70B = 68_976_648_192


def tuned(task, **facts):
    lora = Lora(**facts)
    model = with_adapters(task.model, lora.rank, lora.targets)
    return replace(task, model=model, recipe=replace(task.recipe, lora=lora))


def small(trainer="megatron", chips=8):
    attention = Attention(heads=8, kv_heads=8, head_dim=16)
    model = model_of(attention, Mlp(width=512), 128, hidden=128, layers=4)
    return task_of(model, trainer, chips, global_batch=8)


def parts(task, row):
    p = prices(task, row)
    found = memory_of_stages(p, stage_times(p).blocks).parts[0, 0]
    return dict(zip(TERMS, found, strict=True))


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_states_by_hand(bits):
    """Frozen weights as they are stored, adapters 2 + 4 + 12 / n."""
    task = tuned(small(), rank=4, bits=bits)
    found = parts(task, single(dp=8, sharding=1))
    trained = task.model.num_trained
    frozen = small().model.num_params
    assert found["gradients"] == 4 * trained
    assert found["optimizer"] == pytest.approx(12 * trained / 8)
    assert found["weights"] == pytest.approx(
        2 * trained + frozen * QUANTISED_BITS[bits] / 8, rel=1e-9
    )


def test_frozen_weights_are_sharded_and_gathered_under_zero_3():
    task = tuned(small("deepspeed"), rank=4)
    three, two = (single(dp=8, sharding=level) for level in (3, 2))
    frozen = 2 * small().model.num_params
    assert parts(task, two)["weights"] - parts(task, three)["weights"] >= frozen * 7 / 8
    gather = prices(task, three).states.frozen_gather
    assert (gather[0] > 0).all()
    assert (prices(task, two).states.frozen_gather == 0).all()


@pytest.mark.parametrize("trainer", ["megatron", "deepspeed", "torchtitan"])
def test_adapters_never_take_more_memory_nor_time_than_all_weights(trainer):
    task = small(trainer)
    row = single(dp=8, sharding=max(task.trainer.shardings))
    few, every = (
        exact(prices(t, row)) for t in (tuned(task, rank=4, targets=("attention", "mlp")), task)
    )
    assert few.memory[0] < every.memory[0]
    wide = replace(
        task, trainer=replace(task.trainer, overhead=replace(task.trainer.overhead, operator=0.0))
    )
    large = replace(wide, model=gpt(512, 4096, 32))
    few, every = (exact(prices(t, row)) for t in (tuned(large, rank=4), large))
    assert few.step[0] < every.step[0]


def recipe(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def test_mixtral_with_adapters_does_not_fit_as_plain_copies_and_does_sharded(tmp_path):
    """Case A10: LlamaFactory #2379, 87.0 GiB of frozen weights a replica, 10.9 with ZeRO-3 over 8."""
    asked = Question(
        model="mixtral-8x7b",
        cluster="a800-sxm-80gb:8",
        trainer="deepspeed",
        global_batch=16,
        seq_len=1024,
        recipe_file=recipe(tmp_path, "lora: {rank: 8}"),
    )
    whole = price(asked, {"zero": 2, "mbs": 2, "recompute": "full"})
    assert not whole.fits
    assert whole.stages[0].memory[0].value == pytest.approx(87.0 * GIB, rel=0.01)
    shared = price(asked, {"zero": 3, "mbs": 2, "recompute": "full"}, usual=True)
    assert shared.fits
    assert shared.stages[0].memory[0].value == pytest.approx(10.9 * GIB, rel=0.02)


def test_mixtral_in_four_bits_is_whole_on_every_chip_under_zero_2(tmp_path):
    """Case A60: axolotl #1554, 23.9 GB (4-bit) on cards of 24 GB."""
    asked = Question(
        model="mixtral-8x7b",
        cluster="rtx-3090:4",
        trainer="deepspeed",
        global_batch=4,
        seq_len=512,
        recipe_file=recipe(tmp_path, "lora: {rank: 8, bits: 4}"),
    )
    assert not price(asked, {"zero": 2, "mbs": 1, "recompute": "full"}).fits
    assert price(asked, {"zero": 3, "mbs": 1, "recompute": "full"}).fits


def test_70b_in_four_bits_on_two_cards(tmp_path):
    """Case A59: axolotl #1522, 16.1 GiB a GPU and their scales; with weights in host memory it fits."""
    asked = Question(
        model="llama-2-70b",
        cluster="rtx-3090:2",
        trainer="deepspeed",
        global_batch=2,
        seq_len=512,
        recipe_file=recipe(tmp_path, "lora: {rank: 8, targets: [attention, mlp], bits: 4}"),
    )
    found = price(asked, {"zero": 3, "mbs": 1, "recompute": "full"})
    weights = found.stages[0].memory[0]
    assert weights.value == pytest.approx(LLAMA_70B * 4.127 / 8 / 2, rel=0.02)
    assert (
        price(asked, {"zero": 3, "mbs": 1, "recompute": "full", "offload": "states"}).memory
        < found.memory - 15 * GIB
    )


def test_a_long_sequence_of_4_bit_lora_fails_on_its_logits(tmp_path):
    """Case A15: LlamaFactory #5545, 24.8 GiB of fp32 logits and their gradient on one H100."""
    asked = Question(
        model="llama-3.1-8b",
        cluster="h100-sxm:1",
        trainer="deepspeed",
        global_batch=1,
        seq_len=51974,
        recipe_file=recipe(tmp_path, "lora: {rank: 8, bits: 4}"),
    )
    found = price(asked, {"zero": 2, "mbs": 1, "recompute": "full"})
    logits = next(t.value for t in found.stages[0].memory if t.name == "memory.logits")
    assert not found.fits
    assert logits > 2 * 24.8 * GIB


def test_65b_in_four_bits_on_one_48_gb_card(tmp_path):
    """QLoRA (arXiv 2305.14314): a 65B model on one 48 GB GPU; moments are paged there, and few here."""
    asked = Question(
        model="llama-65b",
        cluster="rtx-a6000:1",
        trainer="deepspeed",
        global_batch=1,
        seq_len=512,
        recipe_file=recipe(tmp_path, "lora: {rank: 16, targets: [attention, mlp], bits: 4}"),
    )
    found = price(asked, {"zero": 2, "mbs": 1, "recompute": "full"})
    assert found.fits
    assert 33e9 < found.memory < 48e9


def test_llama_2_70b_with_adapters_plans_on_eight_chips(tmp_path):
    """All weights need 16 chips or host memory (case A17); adapters fit on eight."""
    asked = Question(model="llama-2-70b", cluster="h100-sxm:8", global_batch=8, seq_len=4096)
    assert plan(asked).degrees.offload != "none"
    lora = plan(replace(asked, recipe_file=recipe(tmp_path, "lora: {rank: 16}")))
    assert lora.fits
    assert lora.degrees.offload == "none"
    assert lora.recipe.lora.startswith("rank 16 on attention")
    assert any(a.key == "lora" for a in lora.assumptions)


def test_70b_with_8_bit_moments_and_no_fp32_weights(tmp_path):
    """Case A16: torchtune #987, about 51 GB a GPU on eight: 6 bytes a parameter, the moments paged."""
    asked = Question(
        model="llama-2-70b",
        cluster="a100-sxm-80gb:8",
        trainer="fsdp",
        global_batch=16,
        seq_len=2048,
        optimizer="adamw-8bit",
        recipe_file=recipe(tmp_path, "master_weights: false"),
    )
    found = price(asked, {"zero": 3, "mbs": 1, "recompute": "full"})
    states = sum(t.value for t in found.stages[0].memory[:3])
    assert states == pytest.approx(LLAMA_70B * (2 + 2 + 2) / 8, rel=0.01)
    assert found.fits
    usual = replace(asked, optimizer="adamw", recipe_file=None)
    stated = {"zero": 3, "mbs": 1, "recompute": "full", "offload": "none"}
    assert not price(usual, stated).fits


@pytest.mark.parametrize("optimizer", list(MOMENT_BYTES))
def test_bytes_without_fp32_weights(optimizer):
    task = small()
    bare = replace(task, recipe=replace(task.recipe, optimizer=optimizer, master_weights=False))
    assert state_bytes(bare).optimizer == MOMENT_BYTES[optimizer]
    assert state_bytes(bare).weights == 2


def test_adapters_beside_products_that_a_model_lacks_are_refused(tmp_path):
    asked = Question(
        model="llama-3-8b",
        cluster="h100-sxm:1",
        recipe_file=recipe(tmp_path, "lora: {targets: [experts]}"),
    )
    with pytest.raises(
        PlannerError, match=r"no experts to put adapters beside: nothing would train"
    ) as refused:
        plan(asked)
    singles = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj"
    assert refused.value.faults[0].fix == (f"targets of lora can be attention, mlp, {singles}.",)


def test_what_a_recipe_says_of_adapters():
    assert (
        Lora(rank=8, targets=("mlp",), bits=4).described
        == "rank 8 on mlp, other weights frozen in 4 bits"
    )
    assert Recipe(global_batch=1, seq=1, lora=Lora()).frozen_bytes == 2
    assert Recipe(global_batch=1, seq=1, lora=Lora(bits=4)).frozen_bytes == pytest.approx(
        0.516, rel=1e-3
    )


def test_muon_keeps_one_moment_for_matrices_and_two_for_tables():
    """fp32 weights 4 and momentum 4; embedding and head keep AdamW's 8 (Moonlight, arXiv 2502.16982)."""
    task = small()
    muon = replace(task, recipe=replace(task.recipe, optimizer="muon"))
    found = parts(muon, single(dp=8, sharding=1))
    tables = sum(
        b.elements(w.dims) for b in (task.model.embedding, task.model.head) for w in b.weights()
    )
    assert found["optimizer"] == pytest.approx((8 * task.model.num_params + 4 * tables) / 8)


def test_muon_takes_five_iterations_of_three_products():
    """Newton-Schulz on m × n: 4 m² n + 2 m³ FLOPs each, 30 m a parameter where m = n."""
    attention = Attention(heads=8, kv_heads=8, head_dim=16)
    square = model_of(attention, Mlp(width=128, gated=False), 128, hidden=128)
    dense, expert = newton_flops(square)
    rows = [w for w in square.blocks[0].weights() if len(w.dims) > 1]
    wanted = sum(
        5 * (4 * 128**2 * (n := square.blocks[0].elements(w.dims) / 128) + 2 * 128**3) * (n >= 128)
        for w in rows
    )
    whole = sum(square.blocks[0].elements(w.dims) for w in square.blocks[0].weights())
    assert dense == pytest.approx(wanted / whole)
    assert expert == 0
    task = small()
    row = single(dp=8, sharding=1)
    slow = replace(task, recipe=replace(task.recipe, optimizer="muon"))
    passes = (4 + 2 * 8 + 2) / (2e12 * 0.8)
    products = newton_flops(task.model)[0] / (1e15 * 0.7)
    assert prices(slow, row).states.update[0, 0] == pytest.approx((passes + products) / 8)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_numbers_of_a_plan_with_adapters_in_host_memory_can_be_asked_for(tmp_path, optimizer):
    asked = Question(
        model="llama-3-8b",
        cluster="h100-sxm:8",
        trainer="deepspeed",
        global_batch=8,
        seq_len=2048,
        optimizer=optimizer,
        recipe_file=recipe(tmp_path, "lora: {rank: 8, targets: [attention, mlp]}"),
    )
    for moved in ("none", "optimizer", "states"):
        found = price(asked, {"zero": 3, "mbs": 1, "recompute": "full", "offload": moved})
        assert ("host" in found.derivations) == (moved != "none")
        for name, how in found.derivations.items():
            given = {quantity.name: quantity.value for quantity in how.inputs}
            value = eval(how.formula, {"max": max, "__builtins__": {}}, given)
            assert value == pytest.approx(how.value, rel=1e-9, abs=1e-9), name


def test_frozen_products_launch_once_backwards_and_move_no_transposed_copy():
    """A frozen product has one product backwards, its sum none; its fp8 input is copied once, not turned as well."""
    task = tuned(small(), rank=4)
    slow = replace(
        task.trainer, overhead=replace(task.trainer.overhead, operator=1.0, engine=False)
    )
    s = setting(replace(task, trainer=slow), single(dp=8))
    block = task.model.blocks[0]
    cost = block_cost(s, block, sp=False)
    launched = sum(min(2.0, op.backward) for op in block.operators)
    assert launched < 2 * len(block.operators)
    assert cost.backward[0] == pytest.approx(launched)
    chip = read_cluster("h100-sxm:8").chip
    shape = (chip, "fp8", 1, 4096, 4096, 4096, 3 * 4096**2)
    turned, frozen = kernels.matmul(*shape), kernels.matmul(*shape, cast_bytes=3.375)
    assert turned - frozen == pytest.approx(kernels.stream_seconds(chip, 1.125 * 4096**2))


PEFT = {
    "llama-2-7b": [
        (8, ("q_proj", "v_proj"), 4_194_304),
        (16, ("q_proj", "k_proj", "v_proj", "o_proj"), 16_777_216),
        (16, ("attention", "mlp"), 39_976_960),
    ],
    "llama-3-8b": [
        (16, ("q_proj", "v_proj"), 6_815_744),
        (16, ("attention", "mlp"), 41_943_040),
        (16, ("k_proj", "gate_proj"), 32 * 16 * (4096 + 1024 + 4096 + 14336)),
    ],
}
"""Trainable parameters as PEFT prints them (the first in Alpaca-LoRA's README, 16 on all in Unsloth's notebooks); the
others are rank × (inputs + outputs) a weight."""


@pytest.mark.parametrize(
    ("model", "rank", "targets", "count"),
    [(model, *row) for model, rows in PEFT.items() for row in rows],
)
def test_trained_parameters_are_those_that_peft_counts(tmp_path, model, rank, targets, count):
    text = f"lora: {{rank: {rank}, targets: [{', '.join(targets)}]}}"
    asked = Question(model=model, cluster="h100-sxm:8", recipe_file=recipe(tmp_path, text))
    found = understand(replace(asked, seq_len=2048))
    assert found.task.model.num_trained == count
    assert f"{count:,} parameters train" in [a.text for a in found.assumptions]


@pytest.mark.parametrize("tp", [1, 2])
def test_an_adapter_of_one_of_a_pair_costs_less_than_both_and_fits_the_axes(tmp_path, tp):
    """Keys and values are one product: an adapter of the values alone is half of theirs, on every rank."""
    steps, held = [], []
    for targets in ("v_proj", "k_proj, v_proj"):
        text = f"lora: {{rank: 64, targets: [{targets}]}}"
        asked = Question(model="llama-3-8b", cluster="h100-sxm:2", global_batch=4, seq_len=2048)
        found = price(
            replace(asked, recipe_file=recipe(tmp_path, text)), {"tp": tp, "mbs": 1, "zero": 0}
        )
        steps.append(found.step)
        held.append(found.stages[0].memory[1].value)
    assert steps[0] < steps[1]
    assert held[1] == 2 * held[0]


def test_a_plain_mlp_has_no_gate_to_put_an_adapter_beside(tmp_path):
    asked = Question(
        model="gpt3-175b",
        cluster="h100-sxm:64",
        seq_len=2048,
        recipe_file=recipe(tmp_path, "lora: {targets: [gate_proj]}"),
    )
    with pytest.raises(PlannerError, match="no gate_proj to put adapters beside"):
        understand(asked)


def test_every_word_for_products_can_be_written_in_a_recipe():
    assert set(get_args(Target)) == {*GROUPS, *PRODUCTS}
    assert set(PAIRED) < set(PRODUCTS)
