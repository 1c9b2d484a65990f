"""What Galvatron, MaxText, MindSpore and MindFormers derive from an export."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from plans import plan
from witness import Facts, batches, degrees, stages, weights

from planner.export.targets import export
from planner.export.view import View


def galvatron(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """A number for every layer, as its own code expands the lists."""
    from test_galvatron import expanded, parser

    view = View(plan(name))
    count = view.plan.model.num_layers
    data = json.loads(export(plan(name), "galvatron")[0].text)
    found = expanded(parser(), data, view.world, count)
    (tp,) = set(found["tp_sizes_enc"])
    dp = view.world // found["pp_deg"] // tp
    batch, turns = found["global_train_batch_size"], found["chunks"]
    ends = [sum(found["pp_division"][: n + 1]) for n in range(found["pp_deg"])]
    cut = [
        list(range(end - size, end)) for end, size in zip(ends, found["pp_division"], strict=True)
    ]
    return {
        "degrees": ([dp, tp, found["pp_deg"], 1, 1, 1], degrees(view)),
        "batches": ([batch // dp // turns, turns, batch], batches(view)[:3]),
        "stages": (cut, stages(view)),
        "states": (
            set(found["dp_types_enc"]) | set(found["checkpoint_flags_enc"]),
            {int(view.level == 3), int(view.degrees.recompute == "full")},
        ),
    }


def maxtext(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Mesh, batches and stages of its parser, in a process with as many devices as the plan has chips."""
    from test_maxtext import read, text_of

    made = plan(name)
    view = View(made)
    done = read(text_of(made), view.world, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.partition("FOUND ")[2])
    mesh = dict(zip(found["mesh_axes"], found["ici_parallelism"], strict=True))
    dp = mesh["data"] * mesh["fsdp"] * mesh["expert"]
    tp = mesh["tensor"] * mesh["tensor_sequence"]
    pp = mesh["stage"]
    turns = found["num_pipeline_microbatches"] if pp > 1 else found["gradient_accumulation_steps"]
    batch = found["global_batch_size_to_train_on"]
    chunk = found["num_layers_per_pipeline_stage"] if pp > 1 else found["num_decoder_layers"]
    chunks = found["num_decoder_layers"] // chunk
    return {
        "degrees": ([dp, tp, pp, mesh["context"], mesh["expert"], chunks // pp], degrees(view)),
        "batches": (
            [batch // dp // turns, turns, batch, found["max_target_length"]],
            batches(view),
        ),
        "stages": (
            [list(range(n * chunk, (n + 1) * chunk)) for n in range(chunks)],
            stages(view),
        ),
    }


def mindspore(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Its classes take the settings; its own cutter of checkpoints gives a rank the plan's parameters."""
    from mindspore import nn
    from mindspore.parallel._tensor import _count_tensor_shape

    view = View(plan(name))
    d = view.degrees
    files = {file.name: file.text for file in export(plan(name), "mindspore")}
    scope: dict[str, Any] = {}
    exec(compile(files["auto_parallel.py"], "auto_parallel.py", "exec"), scope)
    net = scope["configured"](nn.Dense(4, 4))
    places = {int(layer.rpartition(".")[2]): stage for layer, stage in scope["STAGES"].items()}
    turns = scope["SEGMENTS"] or dict.fromkeys(scope["STAGES"], 0)
    where = {int(layer.rpartition(".")[2]): turn for layer, turn in turns.items()}
    cut = [
        [n for n in sorted(places) if (where[n], places[n]) == (turn, stage)]
        for turn in range(d.vpp)
        for stage in range(d.pp)
    ]
    counts = []
    for stage in range(d.pp):
        rows = json.loads(files[f"parameters_stage_{stage}.json"])["parallel_layout_item"].values()
        keys = ("dev_matrix", "tensor_map", "tensor_shape")
        sizes = [_count_tensor_shape(*(row[key] for key in keys), 0) for row in rows]
        counts.append(sum(math.prod(map(int, size)) for size in sizes))
    return {
        "degrees": (
            [net._pipeline_stages, net._dataset_strategy_config[0][0], net._enable_parallel_optimizer],
            [d.pp, d.dp, view.level > 0],
        ),
        "stages": (cut, stages(view)),
        "parameters": (counts, [weights(view, stage) for stage in range(d.pp)]),
    }  # fmt: skip


def mindformers(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Its three stages of checks, and its own division of layers."""
    import mindspore as ms
    from mindformers.parallel_core.training_graph.transformer import utils
    from test_mindformers import checked

    view = View(plan(name))
    d = view.degrees
    config = checked(export(plan(name), "mindformers")[0].text, folder, view.world, monkeypatch)
    p, model, runner = config.parallel_config, config.model.model_config, config.runner_config
    turns = p.micro_batch_num * (runner.gradient_accumulation_steps or 1)
    found: Facts = {
        "degrees": (
            [p.data_parallel, p.model_parallel, p.pipeline_stage, p.context_parallel, p.expert_parallel,
             model.pp_interleave_num],
            degrees(view),
        ),
        "batches": (
            [runner.batch_size, turns, runner.batch_size * turns * p.data_parallel, model.seq_length],
            batches(view),
        ),
    }  # fmt: skip
    monkeypatch.setattr(utils, "is_legacy_model", lambda: True)
    ms.set_auto_parallel_context(pipeline_config=dict(config.parallel.pipeline_config))
    setting = utils.LayerSetting(model.num_layers, model.offset, p, model.pp_interleave_num)
    places = list(zip(map(int, setting.interleave_ids), map(int, setting.pp_ids), strict=True))
    cut = [
        [n for n, place in enumerate(places) if place == (turn, stage)]
        for turn in range(d.vpp)
        for stage in range(d.pp)
    ]
    return found | {"stages": (cut, stages(view))}
