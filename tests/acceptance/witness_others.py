"""What Galvatron, MaxText, MindSpore and MindFormers derive from an export."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import plan
from witness import Facts, batches, degrees, fake_group, group, meshes, shards, stages, weights

from planner.export.shape import shape_of
from planner.export.targets import export
from planner.export.view import View


def galvatron(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """A number for every layer, as its own code expands the lists, and the groups that it makes of them."""
    from test_galvatron import expanded, layer_groups, parser

    view = View(plan(name))
    count = view.plan.model.num_layers
    data = json.loads(export(plan(name), "galvatron")[0].text)
    found = expanded(parser(), data, view.world, count)
    (tp,) = set(found["tp_sizes_enc"])
    dp = view.world // found["pp_deg"] // tp
    batch, turns, rank = found["global_train_batch_size"], found["chunks"], view.world - 1
    with fake_group(view.world, rank):
        ranks = layer_groups(found, rank)
    ends = [sum(found["pp_division"][: n + 1]) for n in range(found["pp_deg"])]
    cut = [
        list(range(end - size, end)) for end, size in zip(ends, found["pp_division"], strict=True)
    ]
    return {
        "degrees": ([dp, tp, found["pp_deg"], 1, 1, 1], degrees(view)),
        "batches": ([batch // dp // turns, turns, batch], batches(view)[:3]),
        "stages": (cut, stages(view)),
        "ranks": (ranks, {axis: [group(view, rank, axis)] for axis in ranks}),
        "states": (
            set(found["dp_types_enc"]) | set(found["checkpoint_flags_enc"]),
            {int(view.level == 3), int(view.degrees.recompute == "full")},
        ),
    }


def maxtext(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """What its parser, its mesh and its model say, in a process with as many devices as the plan has chips.

    Two things are otherwise there, and added to what the plan says: norms are whole on all data ranks, and with stages
    each has the embedding and the head.
    """
    from test_maxtext import read, text_of

    made = plan(name)
    view = View(made)
    done = read(text_of(made), view.world, folder, "built")
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
    axes = {
        "tp": ("tensor", "tensor_sequence"),
        "cp": ("context",),
        "pp": ("stage",),
        "dp": ("data", "fsdp", "expert"),
    }
    ids = np.array(found["devices"]).reshape(found["shape"])
    last = [
        slice(None) if axis in others else -1
        for others in axes.values() for axis in found["mesh_axes"]
    ]  # fmt: skip
    each = len(found["mesh_axes"])
    ranks = {
        axis: sorted(ids[tuple(last[n * each : (n + 1) * each])].ravel().tolist())
        for n, axis in enumerate(axes)
    }
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
        "ranks": (ranks, {axis: group(view, view.world - 1, axis) for axis in axes}),
        "parameters": _maxtext_weights(view, found["weights"]),
    }


def _maxtext_weights(view: View, weights: dict[str, list[int]]) -> tuple[list[float], list[float]]:
    """Numbers of a device's weights, by stage those that the plan has there, and the plan's with norms whole."""
    norms = {name for name in weights if "scale" in name}
    first = {name for name in weights if "token_embedder" in name}
    last = {name for name in weights if "logits_dense" in name or "decoder_norm" in name}
    pp, over = view.degrees.pp, view.degrees.shard_group if view.level == 3 else 1
    found, said = [], []
    for stage in range(pp):
        gone = (first if stage > 0 else set()) | (last if stage < pp - 1 else set())
        here = {name: local for name, (_, local) in weights.items() if name not in gone}
        found.append(float(sum(here.values())))
        whole = sum(size for name, size in here.items() if name in norms)
        said.append(shards(view, stage) + whole * (1 - 1 / over))
    assert all(weights[name][1] * (1 if name in last else pp) == weights[name][0] for name in norms)
    return found, said


def mindspore(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Its classes take the settings; its own cutter of checkpoints gives the plan's parts to the ranks of a stage."""
    from mindspore import nn
    from mindspore.parallel._tensor import (
        _count_tensor_shape,
        _get_tensor_slice_index,
        _get_tensor_strategy,
    )

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
    counts, parts = [], {}
    for stage in range(d.pp):
        rows = json.loads(files[f"parameters_stage_{stage}.json"])["parallel_layout_item"]
        keys = ("dev_matrix", "tensor_map", "tensor_shape")
        sizes = [_count_tensor_shape(*(row[key] for key in keys), 0) for row in rows.values()]
        counts.append(sum(math.prod(map(int, size)) for size in sizes))
        for name, row in rows.items():
            matrix, maps = row["dev_matrix"], row["tensor_map"]
            split = _get_tensor_strategy(matrix, maps)
            everybody = range(view.world // d.pp)
            parts[name] = [
                int(_get_tensor_slice_index(matrix, split, maps, rank)) for rank in everybody
            ]
    return {
        "degrees": (
            [net._pipeline_stages, net._dataset_strategy_config[0][0], net._enable_parallel_optimizer],
            [d.pp, d.dp, view.level > 0],
        ),
        "stages": (cut, stages(view)),
        "ranks": (parts, {name: _parts(view, name) for name in parts}),
        "parameters": (counts, [weights(view, stage) for stage in range(d.pp)]),
    }  # fmt: skip


def _parts(view: View, name: str) -> list[int]:
    """Which part of a weight each rank of a stage has, by the order of the plan's axes."""
    d = view.degrees
    ranks = range(view.world // d.pp)
    if ".ffn.w" in name:
        return [rank // d.etp % d.ep * d.etp + rank % d.etp for rank in ranks]
    whole = "norm" in name or "router" in name
    return [0 if whole else rank % d.tp for rank in ranks]


def mindformers(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Its three stages of checks, its own division of layers, and its own model's strategies, without memory."""
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
    held = [weights(view, stage) for stage in range(d.pp)]
    shape = shape_of(view)
    held[0] -= (
        shape.vocab * shape.hidden / d.tp * (1 - 1 / d.cp)
    )  # its table is cut over cp as well
    found["parameters"] = (_mindformers_weights(view, config, monkeypatch), held)
    monkeypatch.setattr(utils, "is_legacy_model", lambda: True)
    ms.set_auto_parallel_context(pipeline_config=dict(config.parallel.pipeline_config))
    setting = utils.LayerSetting(model.num_layers, model.offset, p, model.pp_interleave_num)
    places = list(zip(map(int, setting.interleave_ids), map(int, setting.pp_ids), strict=True))
    cut = [
        [n for n, place in enumerate(places) if place == (turn, stage)]
        for turn in range(d.vpp)
        for stage in range(d.pp)
    ]
    one_axis, any_axes = meshes(view, view.world - 1)
    groups = {tuple(ranks) for ranks in _compiled(view, folder).values()}
    odd = {ranks for ranks in groups if ranks not in any_axes}
    return found | {"stages": (cut, stages(view)), "ranks": (groups & one_axis | odd, one_axis)}


def _compiled(view: View, folder: Path) -> dict[str, list[int]]:
    """Groups of the last rank that the compiler makes of its own model, in a process of its own."""
    spec = {"devices": view.world, "rank": view.world - 1, "file": str(folder / "plan.yaml")}
    program = Path(__file__).with_name("mindformers_simulated.py")
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(spec)],
        capture_output=True, text=True, check=False, timeout=600, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[int]] = json.loads(done.stdout.partition("FOUND ")[2])
    return found


def _mindformers_weights(view: View, config: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of a rank of every stage: shapes of weights, cut as the primitive that reads each of them is."""
    import mindspore as ms
    from mindformers.models.llama import LlamaConfig, LlamaForCausalLM
    from mindformers.modules.transformer import op_parallel_config

    monkeypatch.setattr(op_parallel_config.D, "get_group_size", lambda *_: view.world)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_auto_parallel_context(pipeline_stages=view.degrees.pp)
    sizes = {key: value for key, value in config.model.model_config.items() if key != "type"}
    net = LlamaForCausalLM(
        LlamaConfig(**sizes, moe_config=config.moe_config, parallel_config=config.parallel_config)
    )
    counts = [0] * view.degrees.pp
    for _, cell in net.cells_and_names():
        for weight in cell._params.values():
            place = weight.name.split(".")
            part = net.model.layers[int(place[2])] if "layers" in place else cell
            reads = {"gather": 0, "matmul": 1, "norm": 1}
            (cut,) = (
                cell._primitives[n].in_strategy[at]
                for n, at in reads.items()
                if n in cell._primitives
            )
            counts[part.pipeline_stage] += math.prod(weight.shape) // math.prod(cut)
    return counts
