"""Evaluations: every row has a prediction or a reason; errors, outcomes and ranks by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cli.main import main
from planner.calibrate.evaluate import Evaluation, RowResult, evaluate, evaluate_runs
from planner.calibrate.metrics import outcomes, rank_correlation, spread, sweeps, worst
from planner.calibrate.runs import Run, read_runs
from planner.calibrate.summary import summarise

RUNS = Path(__file__).parents[2] / "benchmarks" / "runs"
FACTS = ("params_b", "layers", "hidden", "seq", "chips", "precision")
LAYOUT = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "sharding", "recompute", "sp")


@pytest.fixture(scope="module")
def calibration() -> Evaluation:
    return evaluate(RUNS / "calibration.jsonl")


def row(name: str, group: str, predicted: float, measured: float, tp: int = 1) -> RowResult:
    return RowResult(
        id=name, group=group, quality="A", judged=True, chip="c", trainer="t", software="s",
        predicted_step_seconds=predicted, measured_step_seconds=measured,
        step_error=predicted / measured - 1.0,
        features=dict.fromkeys((*FACTS, *LAYOUT, "micro_batches"), 1) | {"tp": tp},
    )  # fmt: skip


def test_every_row_has_a_prediction_or_a_reason(calibration: Evaluation) -> None:
    assert len(calibration.rows) == 201
    assert len(calibration.priced) >= 150
    for found in calibration.rows:
        assert (found.skipped is None) == (found.predicted_step_seconds is not None)
        assert found.skipped is None or found.skipped.startswith(("missing fact", "unsupported"))
        if found.skipped is None:
            assert found.predicted_step_seconds and found.predicted_memory_gib
            assert found.predicted_total_gib >= found.predicted_memory_gib  # type: ignore[operator]


def test_batched_prices_are_single_prices(calibration: Evaluation) -> None:
    from planner.calibrate.evaluate import predict
    from planner.calibrate.row_task import case_of

    runs = {run.id: run for run in read_runs(RUNS / "calibration.jsonl")}
    for found in calibration.priced[::9]:
        alone = predict([case_of(runs[found.id])])[0]
        assert alone.step == pytest.approx(found.predicted_step_seconds, rel=1e-9)


def test_errors_are_averaged_within_groups_first() -> None:
    rows = [row("a", "g", 1.1, 1.0), row("b", "g", 0.7, 1.0), row("c", "h", 1.4, 1.0)]
    found = spread(rows, "step")
    assert found is not None
    assert found.mean == pytest.approx((0.2 + 0.4) / 2)
    assert found.bias == pytest.approx((-0.1 + 0.4) / 2)
    assert (found.rows, found.groups, found.close) == (3, 2, 0.0)
    assert spread(rows, "memory") is None


def test_outcomes() -> None:
    base = row("a", "g", 1.0, 1.0)
    labels = [(True, True), (True, False), (False, False), (False, False), (None, True)]
    found = outcomes([replace(base, predicted_fits=p, measured_fits=m) for p, m in labels])
    assert (found.fit_fit, found.fit_oom, found.oom_fit, found.oom_oom) == (1, 1, 0, 2)
    assert found.right == 0.75
    assert found.right_of_ooms == pytest.approx(2 / 3)


def test_ranks_and_regret() -> None:
    times = [(1.0, 2.0, 1), (2.0, 1.0, 2), (3.0, 3.0, 4), (4.0, 5.0, 8)]
    rows = [row(str(tp), "g", predicted, measured, tp) for predicted, measured, tp in times]
    (found,) = sweeps(rows)
    assert found.regret == pytest.approx(1.0)
    assert found.rank_correlation == pytest.approx(0.8)
    assert not sweeps(rows[:3])


def test_layouts_that_are_priced_alike_are_chosen_alike() -> None:
    times = [(1.0, 2.0, 1), (1.0, 1.0, 2), (3.0, 3.0, 4), (4.0, 5.0, 8)]
    for order in (times, times[::-1]):
        (found,) = sweeps([row(str(tp), "g", p, measured, tp) for p, measured, tp in order])
        assert found.regret == pytest.approx(0.5)


def test_rank_correlation_is_spearmans() -> None:
    draw = np.random.default_rng(7)
    for _ in range(20):
        one, other = draw.integers(0, 9, 12).astype(float), draw.integers(0, 9, 12).astype(float)
        assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)


def test_worst_counts_ratios_both_ways() -> None:
    rows = [row("high", "g", 1.5, 1.0), row("low", "g", 0.5, 1.0), row("fine", "g", 1.0, 1.0)]
    assert [found.id for found in worst(rows, 2)] == ["low", "high"]


def test_totals_leave_out_what_is_not_judged() -> None:
    rows = (row("a", "g", 1.1, 1.0), replace(row("b", "g", 9.0, 1.0), judged=False))
    summary = summarise(Evaluation(rows), ["chip"])
    assert (summary.priced, summary.judged) == (2, 1)
    assert summary.gate == pytest.approx(0.1)
    assert summary.parts["chip"]["c"].step is not None


def few(tmp_path: Path) -> Path:
    lines = (RUNS / "calibration.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join(line for line in lines if '"id":"foundry-' in line))
    return path


def test_held_out_runs_are_none_that_a_number_was_fitted_or_judged_on() -> None:
    files = ("calibration.jsonl", "validation.jsonl.gz", "held_out.jsonl.gz")
    *known, held = ({_what(run) for run in read_runs(RUNS / name)} for name in files)
    assert len(held) >= 150
    assert not held & set.union(*known)
    found = evaluate(RUNS / "held_out.jsonl.gz")
    assert len(found.judged) == len(found.rows), "each is priced, of quality A or B"


def _what(run: Run) -> tuple[object, ...]:
    """Shape, chips, batch and measurement of a run, whatever it is called."""
    m, h, got = run.model, run.hardware, run.measured
    speed = got.step_time_s, got.tokens_per_s_per_chip, got.samples_per_s
    batch = run.parallel.global_batch
    return (m.layers, m.hidden, m.seq, h.chip_key, h.num_chips, batch, speed, got.mem_gib_per_chip)


def test_command_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(few(tmp_path)), "-f", "json", "--by", "group,chip"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["summary"]["by"]) == {"group", "chip"}
    wanted = {
        "id", "group", "predicted_step_seconds", "measured_step_seconds", "step_error", "skipped",
        "predicted_memory_gib", "measured_memory_gib", "memory_error", "predicted_fits", "measured_fits",
    }  # fmt: skip
    assert len(data["rows"]) >= 10
    assert all(wanted <= found.keys() for found in data["rows"])


def test_command_csv_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(few(tmp_path))
    assert main(["evaluate", path, "-f", "csv"]) == 0
    assert capsys.readouterr().out.startswith("id,group,chip,trainer,")
    assert main(["evaluate", path, "--top-errors", "2"]) == 0
    page = capsys.readouterr().out
    assert "Furthest off" in page
    assert max(map(len, page.splitlines())) <= 100


def test_command_is_a_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(few(tmp_path))
    assert main(["evaluate", path, "--max-error", "0.01"]) == 5
    assert "above 0.01 %" in capsys.readouterr().err
    assert main(["evaluate", path, "--max-error", "100"]) == 0


def test_command_refuses_with_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text('{"id": 3}\n')
    assert main(["evaluate", str(path)]) == 2
    assert f"{path}:1" in capsys.readouterr().err
    assert main(["evaluate", str(path), "--by", "chop"]) == 2


def test_zero_bubble_runs_are_priced_by_their_own_schedules() -> None:
    runs = read_runs(RUNS / "validation.jsonl.gz")
    chosen = [run for run in runs if (run.parallel.schedule or "").startswith("zb-")]
    found = evaluate_runs(chosen).priced
    assert len(found) == 36
    assert not [row.id for row in found if "priced as" in " ".join(row.assumed)]
    assert np.median([abs(row.step_error or 0.0) for row in found]) < 0.05
    assert np.median([abs(row.memory_error or 0.0) for row in found]) < 0.05
