"""AMP's trials with an uneven model, TransGAN's generator: priced, fitted into memory, and ranked."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibrate.divisions import division
from planner.calibrate.evaluate import evaluate_runs
from planner.calibrate.generators import generator, layer_places
from planner.calibrate.runs import Run, read_runs
from planner.graph.generator import ImageGenerator, build_generator

RUNS = Path(__file__).parents[2] / "../shared/facts/runs/validation.jsonl"
UNEVEN = (12, 0, 0, 0, 0, 12)


def made(depth=UNEVEN):
    return ImageGenerator(name="TransGAN", width=1024, depth=depth)


def test_grids_grow_as_their_layers_get_narrow():
    model = build_generator(made((1, 1, 1, 1, 1, 1)), fused=False)
    sizes = [
        (block.sizes["seq"], block.sizes["embed"], block.sizes["keys"]) for block in model.blocks
    ]
    assert sizes == [
        (81, 1024, 81), (324, 1024, 324), (1296, 1024, 1296),
        (5184, 256, 324), (20736, 64, 324), (82944, 16, 324),
    ]  # fmt: skip


def test_parameters_are_those_of_its_products():
    """A latent vector to the coarsest grid, twelve squares of the width a layer, colours of the finest grid."""
    model = build_generator(made(), fused=False)
    layers = 12 * 12 * 1024**2 + 12 * 12 * 16**2
    assert model.num_params == 512 * 81 * 1024 + layers + 16 * 3
    assert model.layers == (0,) * 12 + (1,) * 12


def test_places_of_layers_follow_the_modules_between_grids():
    assert layer_places(made()) == (*range(3, 15), *range(41, 53))
    assert layer_places(made((1,) * 6)) == (3, 8, 11, 18, 26, 34)


def test_stages_hold_the_layers_between_their_boundaries():
    row = {"name": "TransGAN generator (depth 12,0,0,0,0,12)", "type": "other", "hidden": 1024}
    notes = "stage boundaries (layer indices incl. embedding etc.) [0, 12, 44, 49, 56]"
    run = Run(id="x", notes=notes, model=row, hardware={}, parallel={"pp": 4}, measured={})
    assert division(run, generator(run)) == (9, 6, 5, 4)
    other = run.model.model_copy(update={"name": "GAN"})
    assert generator(run.model_copy(update={"model": other})) is None


@pytest.mark.skipif(not RUNS.is_file(), reason="measured runs are not here")
def test_trials_of_amp_are_predicted():
    rows = evaluate_runs(
        [run for run in read_runs(RUNS) if run.id.startswith("amp-het-model")]
    ).rows
    assert len(rows) == 65
    assert all(row.skipped is None for row in rows)
    assert sum(row.predicted_fits == row.measured_fits for row in rows) >= 52
    by_id = {row.id[-2:]: row for row in rows}
    fastest = min(
        (r for r in rows if r.step_error is not None), key=lambda r: r.measured_step_seconds
    )
    assert by_id["00"] is fastest
    fitting = [r.predicted_step_seconds for r in rows if r.predicted_fits]
    assert sum(step < fastest.predicted_step_seconds for step in fitting) <= 1
