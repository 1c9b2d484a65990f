"""Layers that are computed again several at a time: Megatron's uniform recompute, from launch files through check."""

import pytest

from planner.api import Question, check
from planner.errors import PlannerError
from planner.export.targets import export
from tests.export.plans import stated

UNITS = """PLAN_CHIPS=32
torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 16384 --num-attention-heads 32 \\
  --seq-length 4096 --vocab-size 32000 --max-position-embeddings 4096 --bf16 --use-distributed-optimizer \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel \\
  --micro-batch-size 1 --global-batch-size 64 {recompute}
"""
STREAM = 2 * 4096 * 4096 // 2
"""Bytes of the stream on a rank: two each of s b h, cut over tp 2 by sequence parallelism."""
KEPT = 16 * STREAM + 4 * 4096 * 32 // 2
"""Bytes that a GPT layer keeps: 32 s b h / t without dropout, and a number for every token and head of attention."""


def of_units(folder, recompute):
    (folder / "run.sh").write_text(UNITS.format(recompute=recompute))
    found = check(folder / "run.sh", Question(model="", cluster="h100-sxm:32"), search=False)
    assert found.plan is not None
    return found


def bytes_of(stage):
    return {term.name.removeprefix("memory."): term.value for term in stage.memory}


@pytest.mark.parametrize("unit", [1, 2, 3, 4, 8, 16])
def test_a_unit_keeps_its_input_and_all_of_its_layers_while_it_runs_backwards(unit, tmp_path):
    """Eight layers a stage. What runs again is each layer once, whatever the unit.

    The head keeps what its norm and its product read, a stream each, until the loss has run backwards: where a layer
    needs more than the loss, which has no logits then, the last stage is like the others.
    """
    whole = "--recompute-granularity full --recompute-method uniform --recompute-num-layers {}"
    single, none = (of_units(tmp_path, words) for words in (whole.format(1), ""))
    found = of_units(tmp_path, whole.format(unit))
    assert not [note for note in found.notes if "unit" in note]
    assert found.plan.degrees.recompute_unit == min(unit, 8)
    for stage in found.plan.stages[1:]:
        kept = bytes_of(stage)
        at_loss = "logits" in kept
        head = 2 * STREAM if at_loss else 0.0
        assert kept["activations"] == stage.in_flight * -(-8 // unit) * STREAM + head
        assert at_loss == (stage.head and unit == 1)
        if not at_loss:
            layer = bytes_of(single.plan.stages[1])["working"]
            assert kept["working"] - layer == (min(unit, 8) - 1) * KEPT
    assert bytes_of(none.plan.stages[1])["activations"] == none.plan.stages[1].in_flight * 8 * KEPT
    assert found.plan.step == pytest.approx(single.plan.step, rel=1e-12)
    assert found.plan.stages[1].backward == pytest.approx(single.plan.stages[1].backward, rel=1e-12)
    ran = found.plan.stages[1].backward - none.plan.stages[1].backward
    assert ran == pytest.approx(none.plan.stages[1].forward, rel=0.02)


def test_units_of_stages_that_are_not_even():
    """Each chunk begins a unit of its own; layers of two kinds are priced each as its own."""
    layout = "tp=2,pp=4,zero=1,recompute=full,stage-layers=5+8+9+10"
    plan = stated("llama-3-8b", "h100-sxm:32", "megatron", f"{layout},recompute-unit=4")
    alone = stated("llama-3-8b", "h100-sxm:32", "megatron", layout)
    for stage, before, units, layers in zip(
        plan.stages, alone.stages, (2, 2, 3, 3), (5, 8, 9, 10), strict=True
    ):
        spared = bytes_of(before)["activations"] - bytes_of(stage)["activations"]
        assert spared == pytest.approx(stage.in_flight * (layers - units) * STREAM)


@pytest.mark.parametrize(
    ("trainer", "cluster", "to", "name"),
    [("megatron", "h100-sxm:16", "megatron", "megatron.sh"), ("mindspeed", "a910b:16", "mindspeed", "mindspeed.sh")],
)  # fmt: skip
@pytest.mark.parametrize("more", ["", ",stage-layers=15+17"])
def test_units_are_written_and_read_back(trainer, cluster, to, name, more, tmp_path):
    plan = stated(
        "llama-3-8b", cluster, trainer, f"tp=4,pp=2,zero=1,recompute=full,recompute-unit=3{more}"
    )
    for file in export(plan, to):
        (tmp_path / file.name).write_text(file.text)
    assert "--recompute-num-layers 3" in (tmp_path / name).read_text()
    found = check(tmp_path / name, Question(model="", cluster=cluster), search=False)
    assert found.plan is not None
    assert found.plan.degrees == plan.degrees
    assert (found.plan.step, found.plan.memory) == pytest.approx((plan.step, plan.memory), rel=1e-6)


@pytest.mark.parametrize("to", ["deepspeed", "torchtitan", "dtensor"])
def test_who_computes_layers_again_one_by_one_refuses_units(to):
    plan = stated(
        "llama-3-8b", "h100-sxm:16", "megatron", "tp=1,zero=1,recompute=full,recompute-unit=4"
    )
    with pytest.raises(PlannerError) as error:
        export(plan, to)
    assert any("recompute of 4 layers at a time" in str(fault) for fault in error.value.faults)


@pytest.mark.parametrize(
    ("trainer", "layout", "why"),
    [
        ("megatron", "recompute=none,recompute-unit=4", "all computed again as a whole"),
        ("megatron", "pp=2,stage-layers=16+16,full-layers=2+2,recompute-unit=4", "all computed again as a whole"),
        ("megatron", "recompute=full,recompute-unit=0", "one layer or more"),
        ("torchtitan", "recompute=full,recompute-unit=4", "cannot recompute layers in units of 4"),
    ],
)  # fmt: skip
def test_units_that_cannot_be(trainer, layout, why):
    with pytest.raises(PlannerError, match=why):
        stated("llama-3-8b", "h100-sxm:16", trainer, layout)
