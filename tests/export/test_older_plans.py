"""Plans of versions that did not say which dims tensors have, nor in which order operators take them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from plans import plan

from cli.main import main
from planner.errors import PlannerError
from planner.export.dtensor import settings
from planner.export.targets import export
from planner.export.view import View
from planner.plan.schema import Plan
from planner.runtime.program import program
from planner.runtime.shrink import shrink


def older(name: str) -> Plan:
    made = plan(name)
    blocks = tuple(
        block.model_copy(
            update={
                "tensors": {},
                "arrives": {},
                "operators": tuple(
                    op.model_copy(update={"operands": ()}) for op in block.operators
                ),
            }
        )
        for block in made.blocks
    )
    return made.model_copy(update={"blocks": blocks})


def test_they_are_not_run() -> None:
    with pytest.raises(PlannerError, match="in which order operators take tensors") as caught:
        program(settings(View(older("data"))))
    assert caught.value.faults[0].code == "W06"


def test_what_needs_dims_is_refused_and_all_else_is_written() -> None:
    with pytest.raises(PlannerError, match="does not say which dims tensors have"):
        export(older("ascend"), "mindspore")
    assert export(older("data"), "megatron") == export(plan("data"), "megatron")


def test_tied_tables_are_not_run_where_stages_stand_in_a_v() -> None:
    wide = program(settings(View(plan("wide"))))
    assert shrink(wide).tied
    with pytest.raises(PlannerError, match="Tied embeddings under zbv are not run with states"):
        shrink(replace(wide, schedule="zbv", level=1))


def test_small_plans_keep_every_kind_of_layer_and_their_own_numbers() -> None:
    """Degrees above one become two, sizes small; what is small already is run as it is."""
    large = program(settings(View(plan("latent"))))
    small = shrink(large)
    assert (large.axes["ep"], small.axes["ep"]) == (32, 2)
    assert small.ranks == 8
    assert (large.axes["edp"] > 1) == (small.axes["edp"] > 1)
    assert {"experts" in layer.sizes for layer in small.layers} == {False, True}
    assert small.head.sizes["vocab"] == 64
    assert shrink(small) == small


def test_only_plans_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text("torchrun pretrain_gpt.py --tensor-model-parallel-size 2\n")
    assert main(["check", str(tmp_path / "run.sh"), "--run"]) == 2
    told = capsys.readouterr().err
    assert "is no plan, and --run runs plans" in told
    assert "shardwright plan" in told
