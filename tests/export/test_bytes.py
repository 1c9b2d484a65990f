"""Bytes of a plan's collectives are those of the tensors that they move, in the layouts that the plan states."""

from __future__ import annotations

from collections import Counter

import pytest
from plans import LAYOUTS, plan, stated

from planner.export.dtensor import settings
from planner.export.view import View
from planner.runtime.program import Program, program
from planner.runtime.sizes import numbers, states, stream

WIDTHS = {"bf16": 2.0, "statistics": 4.0}


def made(name: str) -> Program:
    return program(settings(View(plan(name))))


@pytest.mark.parametrize("name", LAYOUTS)
def test_collectives_between_operators_move_whole_tensors(name: str) -> None:
    found = made(name)
    widths: dict[str, Counter[float]] = {"loss": Counter(), "else": Counter()}
    for part in found.parts:
        for op in part.ops:
            for move in (m for m in op.moves if found.axes.get(m.axis, 1) > 1):
                kind = "loss" if move.tensor == "loss" else "else"
                widths[kind][move.bytes / numbers(move, op, part, found)] += 1
    assert widths["loss"].keys() <= {WIDTHS["statistics"]}
    assert widths["else"].keys() <= {WIDTHS["bf16"]}
    wide = any(found.axes[axis] > 1 for axis in ("tp", "cp", "ep"))
    assert bool(widths["else"]) == wide


@pytest.mark.parametrize("name", LAYOUTS)
def test_states_move_the_weights_of_a_rank(name: str) -> None:
    """Trainers with a padded vocabulary move a little more; gradients are reduced in fp32 or in bf16."""
    found = made(name)
    for part in found.parts:
        for move in part.states:
            width = move.bytes / states(move, part, found)
            whole = {"weight": (2.0,), "gradient": (2.0, 4.0)}[move.phase]
            assert any(each <= width <= 1.02 * each for each in whole), (part.name, move, width)


@pytest.mark.parametrize("name", [name for name, row in LAYOUTS.items() if "pp=" in row[5]])
def test_stages_send_the_stream(name: str) -> None:
    """Each stage its chunks' results forwards and gradients of their inputs backwards, both as large as the stream."""
    found, pipeline = made(name), plan(name)
    for stage in pipeline.stages:
        sent = [(c.phase, c.kind) for c in stage.sends]
        passed = [pair for pair in found.passed(stage.index) if pair[1] == "send"]
        assert Counter(sent) == Counter(passed)
        assert {c.bytes for c in stage.sends} == {2.0 * stream(found)}
    boundaries = len(found.visits) - 1 - (1 if found.folded else 0)
    assert sum(len(stage.sends) for stage in pipeline.stages) == 2 * boundaries


def test_a_table_at_both_ends_is_summed_between_them() -> None:
    tied = stated("llama-3.2-1b", "h100-sxm:8", "megatron", "pp=2,tp=2,dp=2,zero=1")
    (head,) = [block for block in tied.blocks if block.layers == "head"]
    (between,) = [c for c in head.gradient_collectives if c.axis == "pp"]
    assert between.tensor == "embedding.table"
    assert between.bytes == 4.0 * 128256 * 2048 / 2
    together = stated("llama-3.2-1b", "h100-sxm:8", "megatron", "tp=2,dp=4,zero=1")
    assert not [c for b in together.blocks for c in b.gradient_collectives if c.axis == "pp"]
