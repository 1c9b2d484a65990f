"""The schedule engine alone: measured times of stages in, the measured step or the published bubble out.

Kernels have no part in this: what is left between a predicted step and these is theirs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.calibrate.evaluate import predict_case
from planner.calibrate.readings import memory_gib
from planner.calibrate.row_task import case_of
from planner.calibrate.runs import Run
from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.cost.prices import block_seconds, prices
from planner.cost.step import makespans, stage_times, step_seconds
from planner.units import GIB

RUNS = Path(__file__).resolve().parents[3] / "shared" / "facts" / "runs"
MICRO_BATCHES = 128

pytestmark = pytest.mark.skipif(not RUNS.exists(), reason="the measured runs are not here")


def rows(word):
    lines = [
        line
        for side in ("calibration", "validation")
        for line in (RUNS / f"{side}.jsonl").read_text(encoding="utf-8").splitlines()
        if f'"id": "{word}' in line
    ]
    return [json.loads(line) for line in lines]


def measured_stages(row, more=0.0):
    """Makespan of 1F1B of the stages that a row measured; ``more`` seconds a stage and micro-batch on top."""
    forward, backward = (
        np.array(row["measured"][name])[None, :, None] * 1e-6
        for name in ("stage_fwd_us", "stage_bwd_us")
    )
    found = makespan(Schedule.ONE_F_ONE_B, MICRO_BATCHES, forward + more, backward)
    return float(found[0]), float((forward + backward).max() + more)


def test_steps_of_unequal_stages_come_out_from_their_measured_times():
    """An embedding and a head of 32 to 256 thousand words on eight stages, evenly cut or by FLOPs."""
    runs = rows("vocabpar-baseline") + rows("vocabpar-redis")
    assert len(runs) == 16
    for row in runs:
        found, _ = measured_stages(row)
        assert found == pytest.approx(row["measured"]["step_time_s"], rel=0.016), row["id"]


def test_a_head_shared_by_all_stages_costs_its_share_and_one_round_more():
    """Stages are measured without their part of both ends: the cost model says what that takes."""
    runs = rows("vocabpar-vocab-2")
    assert len(runs) == 8
    errors = []
    for row in runs:
        case = case_of(Run.model_validate(row))
        assert case.task.cut.shared_ends
        priced = block_seconds(prices(case.task, case.layout))
        ends = sum(part[0, [0, -1]].sum() for part in priced)
        found, busiest = measured_stages(row, more=ends / 8)
        errors.append((found + busiest) / row["measured"]["step_time_s"] - 1)
    assert np.abs(errors).max() < 0.04


def test_published_bubbles_come_out_from_the_profiled_stages():
    """1F1B to the last digit printed; interleaved schedules hold a send or two more."""
    runs = [
        row for row in rows("zerobubble") if row["measured"].get("source_theoretical_bubble_rate")
    ]
    assert len(runs) == 18
    for row in runs:
        profile, plan = row["measured"]["profiled_ms_per_stage"], row["parallel"]
        chunks = plan["vpp"]
        one = np.ones((1, plan["pp"], chunks)) / chunks
        parts = [profile[name] for name in ("T_F", "T_B_input", "T_W")]
        m = plan["global_batch"] // plan["micro_batch"]
        schedule = Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B
        whole = makespan(schedule, m, parts[0] * one, sum(parts[1:]) * one, profile["T_comm"])
        bubble = 1 - m * sum(parts) / float(whole[0])
        expected = row["measured"]["source_theoretical_bubble_rate"]
        assert bubble == pytest.approx(expected, abs=6e-5 if chunks == 1 else 4e-3), row["id"]


def test_memory_of_pipelines_alone_comes_out():
    """Split heads and zero-bubble schedules within 5 %, but for one with too few micro-batches: 1.5B with two.

    What is printed in whole GB may be half of one off.
    """
    runs = rows("vocabpar") + rows("zerobubble")
    assert len(runs) == 24 + 72
    errors = []
    for row in runs:
        run = Run.model_validate(row)
        measured, kind = memory_gib(run)
        found = predict_case(case_of(run)).memory[kind] / GIB
        printed = 0.0 if row["id"].startswith("vocabpar") else 0.5e9 / GIB
        if row["id"] != "zerobubble-1.5b-m2-zb-2p":
            assert abs(found - measured) <= 0.05 * measured + printed, row["id"]
        errors.append(found / measured - 1)
    assert np.median(np.abs(errors)) < 0.018
    assert max(errors[:24]) - min(errors[:24]) < 0.036


def from_the_profile(row):
    """Step with measured passes and sends: how they differ from stage to stage is the cost model's."""
    profile = row["measured"]["profiled_ms_per_stage"]
    case = case_of(Run.model_validate(row))
    p = prices(case.task, case.layout)
    times = stage_times(p)

    def measured(part, name):
        return part * (profile[name] * 1e-3 / part.sum(axis=-1).mean())

    weight = measured(times.weight, "T_W")
    backward = measured(times.backward - times.weight, "T_B_input") + weight
    forward = measured(times.forward, "T_F")
    times = replace(times, forward=forward, backward=backward, weight=weight)
    send = profile["T_comm"] * 1e-3
    exchange = p.sends.exchange + p.sends.exposed[0] - send  # the profile's sends wait for the host
    exposed = np.full_like(p.sends.exposed, send)
    p = replace(p, sends=replace(p.sends, exposed=exposed, exchange=exchange))
    return float(step_seconds(p, times, makespans(p, times))[0])


def test_steps_of_every_schedule_come_out_from_the_profiled_passes():
    """1F1B, interleaved and both zero-bubble schedules of 1.5B, 6.2B and 14.6B on 24 to 128 micro-batches."""
    runs = [row for row in rows("zerobubble") if "profiled_ms_per_stage" in row["measured"]]
    assert len(runs) == 36
    schedules = {row["parallel"]["schedule"] for row in runs}
    assert schedules == {"1f1b", "interleaved", "zb-1p", "zb-2p"}
    for row in runs:
        measured = row["measured"]["step_time_s"]
        assert from_the_profile(row) == pytest.approx(measured, rel=0.05), row["id"]
