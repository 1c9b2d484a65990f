"""Measured times of operators: kernels of a trace by what launched them, annotations, and a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.calibrate.measured import measured_run
from planner.calibrate.operator_times import UNKNOWN, operator_times
from planner.calibrate.profiler import load_trace
from planner.errors import PlannerError
from planner.plan.schema import Plan
from planner.plan.tree import as_data, plan_tree
from planner.pricing import price
from planner.question import Question
from planner.report.tables import plain
from planner.report.tree import render_measured, render_tree

WIDE, VOCAB, SEQ = 768, 50304, 128
LAYER = [(3 * WIDE, WIDE), (WIDE, WIDE), (4 * WIDE, WIDE), (WIDE, 4 * WIDE)]
"""Sides of the output and the input of the products of a layer, as ``torch.nn`` computes them: q, k and v are one."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two layers of GPT-2 on one chip, one sequence a step."""
    question = Question(
        model="gpt2", cluster="h100-sxm:1", global_batch=1, seq_len=SEQ, overrides={"layers": "2"}
    )
    return price(question, {})


def products() -> list[tuple[str, list[list[int]]]]:
    """What torch launches for one step: names and sizes as its profiler wrote them of such a model."""
    found: list[tuple[str, list[list[int]]]] = []
    for out, inner in [*LAYER, *LAYER]:
        found.append(("aten::addmm", [[out], [SEQ, inner], [inner, out], [], []]))
    found.append(("aten::mm", [[SEQ, WIDE], [WIDE, VOCAB]]))
    for out, inner in [(VOCAB, WIDE), *reversed(LAYER), *reversed(LAYER)]:
        found.append(("aten::mm", [[SEQ, out], [out, inner]]))
        found.append(("aten::mm", [[out, SEQ], [SEQ, inner]]))
    return found


def written(folder: Path, more: list[dict[str, Any]]) -> Path:
    """A trace of one step in which every product takes a microsecond for a million multiplications."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for number, (name, shapes) in enumerate(products()):
        one, two = [shape for shape in shapes if len(shape) == 2][-2:]
        length = one[0] * one[1] * two[1] / 1e6
        args = {"External id": number, "Input Dims": shapes}
        launch = {"ph": "X", "cat": "cpu_op", "name": name, "ts": at, "dur": 1, "tid": 1}
        events.append({**launch, "args": args})
        kernel = {"ph": "X", "cat": "kernel", "name": "nvjet", "ts": at, "dur": length, "tid": 7}
        events.append({**kernel, "args": {"External id": number, "stream": 7}})
        at += length
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events + more}))
    return path


def of_products(*sides: tuple[int, int]) -> float:
    """Seconds of the three products of so large weights in two layers."""
    return 2 * 3 * SEQ * sum(out * inner for out, inner in sides) * 1e-12


def test_products_are_known_by_their_sizes(plan: Plan, tmp_path: Path) -> None:
    times = operator_times(load_trace(written(tmp_path, [])), plan)
    assert UNKNOWN not in times
    expected = {
        "dense.attn.q": of_products((WIDE, WIDE)),
        "dense.attn.kv": of_products((2 * WIDE, WIDE)),
        "dense.attn.out": of_products((WIDE, WIDE)),
        "dense.mlp.up": of_products((4 * WIDE, WIDE)),
        "dense.mlp.down": of_products((4 * WIDE, WIDE)),
        "head.project": of_products((VOCAB, WIDE)) / 2,
    }
    assert times == pytest.approx(expected)


def test_annotations_and_attention_and_what_nothing_has(plan: Plan, tmp_path: Path) -> None:
    def event(cat: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
        found = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "tid": 7}
        return {**found, "args": args}

    more = [
        event("gpu_user_annotation", "norm1", 1e6, 50),
        event("kernel", "layer_norm", 1e6 + 10, 20),
        event("kernel", "nccl_all_gather", 1e6 + 30, 10),
        event("kernel", "flash_fwd", 2e6, 30),
        event("kernel", "elementwise", 3e6, 40),
        {**event("cpu_op", "aten::mm", 0, 1), "args": {"External id": -1, "Input Dims": [[3, 5], [5, 7]]}},
        event("kernel", "gemm", 4e6, 7, **{"External id": -1}),
    ]  # fmt: skip
    times = operator_times(load_trace(written(tmp_path, more)), plan)
    assert times["dense.norm1"] == pytest.approx(20e-6)
    assert times["dense.attn.core"] == pytest.approx(30e-6)
    assert times[UNKNOWN] == pytest.approx(7e-6)


def test_a_table_of_times(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("operator,seconds\nmlp.up,0.002\ndense.attn.core, 1e-3\n")
    run = measured_run(path, plan)
    assert run.times == {"dense.mlp.up": 0.002, "dense.attn.core": 0.001}
    for text, what in {
        "mlp.up,1\n": "no columns",
        "operator,seconds\nmlp.upp,1\n": "Nearest: mlp.up",
        "operator,seconds\nmlp.up,fast\n": "no time in seconds",
    }.items():
        path.write_text(text)
        with pytest.raises(PlannerError, match=r"F02") as caught:
            measured_run(path, plan)
        assert what in str(caught.value)


def test_measured_stands_beside_predicted_and_roofline(plan: Plan, tmp_path: Path) -> None:
    run = measured_run(written(tmp_path, []), plan)
    tree = plain(render_tree(plan, 140, measured=run.times)).splitlines()
    assert all(word in tree[0] for word in ("predicted", "measured", "roofline"))
    [line] = [line for line in tree if "mlp.up" in line]
    assert "1.81 ms" in line
    page = plain(render_measured(plan, run.step, None, run.parts, run.operators)).splitlines()
    [row] = [line for line in page if "dense.mlp.up" in line]
    assert "1.81 ms" in row
    assert row.rstrip().endswith("%")
    assert any("together" in line for line in page)
    data = json.dumps(as_data(plan_tree(plan), run.times))
    assert data.count('"measured"') == 1 + len(run.operators)
