"""Rows that ran on chips of several kinds, in the forms in which sources write them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner.calibrate.divisions import division
from planner.calibrate.evaluate import evaluate, evaluate_runs
from planner.calibrate.mixtures import parts_of
from planner.calibrate.row_task import case_of
from planner.calibrate.runs import Run, read_runs
from planner.cost.prices import after_seconds, block_seconds, prices

RUNS = Path(__file__).parents[2] / "../shared/facts/runs"
ROW = {
    "id": "mixed-1",
    "source": "somebody",
    "model": {
        "name": "GPT-2 24L", "type": "gpt", "layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "gated": False,
        "vocab": 52256, "seq": 1024, "tied_embeddings": True,
    },
    "hardware": {"chip": "", "chip_key": None, "chips_per_node": 4, "num_chips": 16},
    "parallel": {
        "dp": 4, "tp": 1, "pp": 4, "micro_batch": 1, "global_batch": 32, "schedule": "1f1b", "precision": "fp16",
        "framework": "DeepSpeed + Megatron-LM v1.1.5 (3D)",
    },
    "measured": {"step_time_s": 1.0, "oom": False},
}  # fmt: skip


def run_of(hardware=None, parallel=None, **row):
    text = json.loads(json.dumps(ROW)) | row
    text["hardware"] |= hardware or {}
    text["parallel"] |= parallel or {}
    return Run.model_validate(text)


def kinds(run):
    parts, told = parts_of(run)
    return [(part.chip_key, part.num_chips, part.inter) for part in parts], told


THREE_AND_ONE = [("v100-sxm-16gb", 12), ("t4", 4)]


@pytest.mark.parametrize(
    "hardware",
    [
        {"chip": "12x V100-16GB + 4x T4-16GB"},
        {"chip": "V100-16GB x12, T4-16GB x4", "chip_key": "v100-sxm-16gb"},
        {"chip": "V100-16GB (3 nodes) and T4-16GB (1 node)", "chip_key": "mixed"},
        {"chip": "3x4 V100-16GB + 1x4 T4"},
        {"chip": "3 x p3.8xlarge + 1 x g4dn.12xlarge"},
        {"chip": "mixed", "chip_key": {"v100-sxm-16gb": 12, "t4": 4}},
        {"chip_key": "v100-sxm-16gb:12+t4:4"},
        {"chip_key": ["v100:12", "t4:4"]},
        {"chip": "V100 / T4", "intra": "3 nodes of 4 V100 (NVLink); 1 node of 4 T4 (PCIe)"},
        {"pools": [{"chip_key": "v100-sxm-16gb", "num_chips": 12}, {"chip_key": "t4", "num_chips": 4}]},
    ],
    ids=str,
)  # fmt: skip
def test_counts_of_every_form(hardware):
    found, told = kinds(run_of(hardware))
    assert [(chip, count) for chip, count, _ in found] == THREE_AND_ONE
    assert told == ()


def test_networks_go_to_their_chips():
    found, _ = kinds(
        run_of(
            {
                "chip": "12x V100-16GB + 4x T4-16GB",
                "inter": "50 Gb/s (g4dn.12xlarge), 10 Gb/s (p3.8xlarge)",
            }
        )
    )
    assert [inter for _, _, inter in found] == ["10 Gb/s (p3.8xlarge)", "50 Gb/s (g4dn.12xlarge)"]


def test_a_source_may_name_its_cluster_only():
    source = "AMP (Li et al., NeurIPS 2022) cached real trials, het_cluster"
    found, told = kinds(run_of({"chip": "V100-16GB + T4-16GB"}, source=source))
    assert found == [
        ("v100-sxm-16gb", 12, "10 Gb/s per node"),
        ("t4", 4, "50 Gb/s per node"),
    ]
    assert told == ("cluster 3 p3.8xlarge + 1 g4dn.12xlarge",)


def test_numbers_that_nobody_states_are_assumed_or_missed():
    found, told = kinds(run_of({"chip": "V100-16GB + T4-16GB"}))
    assert [count for _, count, _ in found] == [8, 8]
    assert told == ("8 chips of each kind",)
    (row,) = evaluate_runs(
        [run_of({"chip": "V100 + T4", "num_chips": 12, "chips_per_node": 8})]
    ).rows
    assert row.skipped == "missing fact: number of chips of each kind"


@pytest.mark.parametrize(
    "chip", ["V100-16GB", "Ascend 910C die (Atlas 900 A3 SuperPoD, half of a two-die package)",
             "A100-class 80GB (paper says NVIDIA \"Ampere\" GPUs, peak 312 TF implied)"]
)  # fmt: skip
def test_one_kind_is_no_mixture(chip):
    assert parts_of(run_of({"chip": chip})) == ((), ())


def test_a_row_on_pools_is_priced_where_its_stages_stand():
    """Stages on the fast chips are as fast as on a cluster of these, those on the slow ones as on one of those."""
    fast = {"chip": "V100-16GB", "chip_key": "v100-sxm-16gb", "inter": "10 Gb/s per node"}
    slow = {"chip": "T4-16GB", "chip_key": "t4", "inter": "10 Gb/s per node"}
    both = {"chip": "12x V100-16GB + 4x T4-16GB", "inter": "10 Gb/s per node"}
    same = fast | {"chip": "12x V100-16GB + 4x V100-16GB"}
    degrees = [{"dp": 4, "pp": 4}, {"dp": 16, "pp": 1}, {"dp": 8, "pp": 2}, {"dp": 1, "pp": 16}]
    for number, parallel in enumerate(degrees):
        rows = [
            run_of(hardware, parallel, id=f"{name}-{number}")
            for name, hardware in (("fast", fast), ("slow", slow), ("both", both), ("same", same))
        ]
        quick, tardy, mixed, alike = evaluate_runs(rows).rows
        assert quick.predicted_step_seconds < mixed.predicted_step_seconds
        assert mixed.predicted_step_seconds <= tardy.predicted_step_seconds * (1 + 1e-9)
        assert alike.predicted_step_seconds == pytest.approx(quick.predicted_step_seconds)
        assert mixed.chip == "v100-sxm-16gb + t4"
        if parallel["pp"] == 1:
            assert mixed.predicted_step_seconds > 0.9 * tardy.predicted_step_seconds


def test_what_the_smaller_chip_cannot_hold_does_not_fit():
    both = {"chip": "8x A100-SXM4-80GB + 8x T4-16GB", "chips_per_node": 8}
    one = {"dp": 16, "pp": 1, "micro_batch": 2, "global_batch": 64}
    (row,) = evaluate_runs([run_of(both, one)]).rows
    assert row.predicted_fits is False
    first = {"dp": 8, "pp": 2, "micro_batch": 4, "global_batch": 64}
    (row,) = evaluate_runs([run_of(both, first)]).rows
    assert row.predicted_fits is not None


def test_boundaries_of_stages_are_layers():
    notes = "stage boundaries (layer indices incl. embedding etc.) [0, 9, 15, 21, 30]; and more"
    assert division(run_of(notes=notes)) == (7, 6, 6, 5)
    assert division(run_of(notes="stage boundaries [0, 6, 12, 18, 24]")) == (6, 6, 6, 6)
    assert division(run_of(notes="stage boundaries [0, 6, 24]")) == ()
    assert division(run_of()) == ()
    (none,) = evaluate_runs([run_of()]).rows
    assert none.skipped is not None  # no chip


def test_the_stage_with_most_layers_sets_the_pace():
    """Every micro-batch but the first waits for it: a step takes all stages once, and it m - 1 times."""
    notes = "stage boundaries (layer indices incl. embedding etc.) [0, 4, 8, 12, 30]"
    chip = {"chip": "T4-16GB", "chip_key": "t4"}
    even, uneven = evaluate_runs([run_of(chip, id="a"), run_of(chip, id="b", notes=notes)]).rows
    case = case_of(run_of(chip))
    p = prices(case.task, case.layout)
    passes, micro_batches = sum(block_seconds(p))[0], 8

    def seconds(*layers):
        ends = np.eye(4)[[0, 3]]
        stages = np.stack([ends[0], layers, ends[1]], axis=1) @ passes
        after = after_seconds(p, np.stack([ends[0], layers, ends[1]], axis=1), stages)
        pace = stages.sum() + (micro_batches - 1) * stages.max()
        return pace * (1 + p.task.trainer.overhead.jitter) + after.max()

    assert division(run_of(notes=notes)) == (2, 4, 4, 14)
    longer = uneven.predicted_step_seconds - even.predicted_step_seconds
    assert longer == pytest.approx(seconds(2, 4, 4, 14) - seconds(6, 6, 6, 6), rel=1e-6)


def test_pools_of_the_users_own(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(ROW), encoding="utf-8")
    (row,) = evaluate(path, "v100-sxm-16gb:3x4 + t4:1x4").rows
    assert row.chip == "v100-sxm-16gb + t4"
    (fast,) = evaluate(path, "v100-sxm-16gb:4x4").rows
    assert row.predicted_step_seconds > fast.predicted_step_seconds
    (other,) = evaluate(path, "v100-sxm-16gb:3x4 + t4:2x4").rows
    assert other.skipped == "other chips: 16, and the pools have 20"


def test_lists_of_chips_read_from_a_file(tmp_path):
    path = tmp_path / "runs.jsonl"
    row = json.loads(json.dumps(ROW))
    row["hardware"] |= {"chip": ["V100-16GB", "T4-16GB"], "chip_key": ["v100:12", "t4:4"]}
    path.write_text(json.dumps(row), encoding="utf-8")
    (run,) = read_runs(path)
    assert run.hardware.chip == "V100-16GB + T4-16GB"
    assert [part.num_chips for part in parts_of(run)[0]] == [12, 4]


def test_a_remark_within_parentheses_is_no_other_chip():
    chip = 'Ascend 910 64GB-class (README: "Ascend NPUs"; 910B generation)'
    assert parts_of(run_of({"chip": chip, "chip_key": "ascend-910b-64gb"})) == ((), ())
    both = {"chip": "V100-16GB, T4-16GB were compared", "chip_key": "t4"}
    assert parts_of(run_of(both)) == ((), ())


@pytest.mark.skipif(not RUNS.is_dir(), reason="measured runs are not here")
@pytest.mark.parametrize("side", ["calibration", "validation"])
def test_rows_of_one_kind_of_chip_stay_so(side):
    runs = read_runs(RUNS / f"{side}.jsonl")
    assert len(runs) > 200
    assert [run.id for run in runs if parts_of(run) != ((), ())] == []
