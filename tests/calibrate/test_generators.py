"""AMP's trials with an uneven model, TransGAN's generator: priced, fitted into memory, and ranked."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibrate.divisions import division
from planner.calibrate.evaluate import evaluate_runs
from planner.calibrate.generators import generator, layer_places
from planner.calibrate.runs import Run, read_runs
from planner.candidates import single
from planner.cost.block import block_cost
from planner.cost.setting import setting
from planner.cost.strategies import BlockKey, structure
from planner.frontends.cluster_file import read_cluster
from planner.graph.generator import ImageGenerator, build_generator
from planner.recipe import Recipe
from planner.trainers.generations import generation
from planner.trainers.trainer import Task

RUNS = Path(__file__).parents[2] / "../shared/facts/runs/validation.jsonl"
UNEVEN = (12, 0, 0, 0, 0, 12)


def made(depth=UNEVEN):
    return ImageGenerator(name="TransGAN", width=1024, depth=depth)


def test_grids_grow_as_their_layers_get_narrow():
    model = build_generator(made((1, 1, 1, 1, 1, 1)))
    sizes = [
        (block.sizes["seq"], block.sizes["embed"], block.sizes["keys"]) for block in model.blocks
    ]
    assert sizes == [
        (81, 1024, 81), (324, 1024, 324), (1296, 1024, 1296),
        (5184, 256, 324), (20736, 64, 324), (82944, 16, 324),
    ]  # fmt: skip


def test_parameters_are_those_of_its_products():
    """A latent vector to the coarsest grid, twelve squares of the width a layer, colours of the finest grid."""
    model = build_generator(made())
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


def saved(tp):
    """Bytes that a layer of the finest grid keeps of one image on each of ``tp`` ranks."""
    cluster = read_cluster(f"v100-sxm-16gb:{tp}")
    recipe = Recipe(global_batch=1, seq=81, precision="fp16", fused_attention=False)
    trainer = generation("amp")
    task = Task(build_generator(made()), cluster, recipe, trainer, cluster.chip.memory_bytes)
    s = setting(task, single(dp=1, tp=tp, pp=1, micro_batch=1))
    return float(block_cost(s, task.model.blocks[1], sp=False).saved["none"][0])


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_no_rank_keeps_fewer_scores_than_one_alone(tp):
    """Two copies of 4 maps over windows of 324; in widths, whole on a rank: the input, what is noised, the middle and
    what is normed; cut over tp: queries, keys and values, their result, four times four of the feed-forward."""
    pixels, width = (9 * 32) ** 2, 16
    scores = 2 * 4 * 18**2 * pixels
    rest = (4 + (3 + 1 + 16) / tp) * width * pixels
    assert saved(tp) == pytest.approx(2 * (scores + rest))


def test_attention_of_all_maps_needs_no_more_collectives():
    """Each rank attends with its part of every map: what tensor parallelism sums is what it sums in any layer."""
    form = structure(
        BlockKey(build_generator(made()).blocks[0]), (("tp", ("heads", "kv_heads", "ffn"), ""),)
    )
    assert [(move.kind, move.operator, move.phase) for move in form.moves] == [
        ("all-reduce", "attn.q", "backward"),
        ("all-reduce", "add1", "forward"),
        ("all-reduce", "mlp.up", "backward"),
        ("all-reduce", "add2", "forward"),
    ]


@pytest.mark.skipif(not RUNS.is_file(), reason="measured runs are not here")
def test_trials_of_amp_are_predicted():
    rows = evaluate_runs(
        [run for run in read_runs(RUNS) if run.id.startswith("amp-het-model")]
    ).rows
    assert len(rows) == 65
    assert all(row.skipped is None for row in rows)
    assert sum(row.predicted_fits == row.measured_fits for row in rows) >= 59
    by_id = {row.id[-2:]: row for row in rows}
    fastest = min(
        (r for r in rows if r.step_error is not None), key=lambda r: r.measured_step_seconds
    )
    assert by_id["00"] is fastest
    first = min(
        (r for r in rows if r.predicted_fits and r.step_error is not None),
        key=lambda r: r.predicted_step_seconds,
    )
    assert first.measured_step_seconds < 1.05 * fastest.measured_step_seconds
