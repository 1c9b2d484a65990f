"""Profilers' traces: what a rank did, by intervals that can be worked out by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from planner.calibrate.measured import measured_run
from planner.calibrate.profiler import by_activity, load_trace
from planner.errors import PlannerError
from planner.plan.read import read_plan


def read_trace(path: Path) -> dict[str, float]:
    return by_activity(load_trace(path))


def kernel(name: str, start: float, length: float, stream: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, "tid": stream}


def written(folder: Path, events: list[dict[str, Any]], name: str = "trace.json") -> Path:
    path = folder / name
    text = json.dumps({"traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


EVENTS = [
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    kernel("sm90_gemm_bf16", 0, 100),
    kernel("flash_fwd", 50, 100),  # overlaps the product: computing lasts from 0 to 150
    kernel("ncclDevKernel_AllGather_RING_LL", 100, 100, 20),  # 50 hidden, 50 exposed
    kernel("elementwise", 300, 50),  # 100 idle before it
    kernel("hcom_reduceScatter_", 310, 20, 20),  # hidden
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1000},
]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_computing_sending_and_waiting(name: str, tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, EVENTS, name))
    expected = {"step": 350, "compute": 200, "exposed": 50, "hidden": 70, "idle": 100}
    expected |= {"attention": 100, "products": 50, "others": 50}
    assert found == pytest.approx({key: value * 1e-6 for key, value in expected.items()})
    assert found["compute"] + found["exposed"] + found["idle"] == pytest.approx(found["step"])


def test_several_steps_are_averaged_over_their_window(tmp_path: Path) -> None:
    steps = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{n}",
            "ts": 400 * n,
            "dur": 400,
        }
        for n in range(2)
    ]
    late = kernel("after_the_steps", 900, 50)
    twice = [{**e, "ts": e["ts"] + 400} for e in EVENTS if "dur" in e and e["cat"] == "kernel"]
    found = read_trace(written(tmp_path, [*steps, *EVENTS, *twice, late]))
    assert found["step"] == pytest.approx(400e-6)
    assert found["compute"] == pytest.approx(200e-6)
    assert found["idle"] == pytest.approx(150e-6)


def test_a_trace_is_a_measured_run(tmp_path: Path) -> None:
    plan = read_plan(Path(__file__).parents[1] / "report" / "real.json")
    run = measured_run(written(tmp_path, EVENTS), plan)
    assert run.step == pytest.approx(350e-6)
    assert run.memory is None
    assert run.parts["hidden"] == pytest.approx(70e-6)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "F02"),
        (b"{}", "F02"),
        (b'{"traceEvents": 5}', "F02"),
        (b'{"traceEvents": [{"ts": "now", "cat": "kernel"}, 7]}', "F02"),
        (b'{"traceEvents": []}', "F02"),
    ],
)
def test_what_is_no_trace(content: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(PlannerError) as caught:
        read_trace(path)
    assert [fault.code for fault in caught.value.faults] == [code]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="F01"):
        read_trace(tmp_path / "gone.json")
    (tmp_path / "bad.json.gz").write_bytes(b"not gzip")
    with pytest.raises(PlannerError, match=r"F0[12]"):
        read_trace(tmp_path / "bad.json.gz")
