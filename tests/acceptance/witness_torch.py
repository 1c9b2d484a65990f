"""What programs on torch derive from an export: torchtitan, Accelerate, DeepSpeed, transformers and our own runtime."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import plan
from witness import Facts, batches, degrees, fake_group, group, shards, stages

from planner.export.shape import shape_of
from planner.export.targets import export
from planner.export.view import View


def torchtitan(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Its parser, its mesh on a fake group, its own cut of its own model, and what it shards of every part."""
    from test_torchtitan import accepted
    from torchtitan.distributed import ParallelDims, parallel_dims
    from torchtitan.distributed.utils import set_spmd_backend

    view = View(plan(name))
    d, config = view.degrees, accepted(name, folder, monkeypatch)
    monkeypatch.setattr(parallel_dims, "device_type", "cpu")
    config.compile.enable = False
    config.parallelism.spmd_backend = "default"  # the others want weights, which nothing here has
    set_spmd_backend(config.parallelism.spmd_backend)
    config.model_spec.model.update_from_config(config=config)
    config._validate_cuda_graphs()
    training, p = config.training, config.parallelism
    cut: dict[int, list[int]] = {}
    counts, found = [], {}
    for stage in range(d.pp):
        rank = stage * (view.world // d.pp)
        with fake_group(view.world, rank):
            dims = ParallelDims.from_config(p, view.world)
            dims.build_mesh()
            with torch.device("meta"):
                model = config.model_spec.model.build()
            models = _cut(model, dims, p) if d.pp > 1 else {0: model}
            for place, part in models.items():
                cut[place] = [int(n) for n, _ in part.layers.named_children()]
            if (
                not view.experts
            ):  # its mesh of experts wants kernels or a backend that this torch has not
                counts.append(sum(_local(part, dims, config, folder) for part in models.values()))
            if stage == d.pp - 1:
                names = {"tp": "tp", "cp": "cp", "dp": "batch", "pp": "pp"}
                one = {axis: dims.get_optional_mesh(mesh) for axis, mesh in names.items()}
                found = {a: m.mesh.tolist() if m is not None else [rank] for a, m in one.items()}
    local = training.local_batch_size
    micro = p.pipeline_parallel_microbatch_size if d.pp > 1 else local
    turns = training.global_batch_size // (local * dims.dp_replicate * dims.dp_shard)
    known: Facts = (
        {"parameters": (counts, [shards(view, n) for n in range(d.pp)])} if counts else {}
    )
    return known | {
        "degrees": (
            [dims.dp_replicate * dims.dp_shard, dims.tp, dims.pp, dims.cp, dims.ep, len(cut) // d.pp],
            degrees(view),
        ),
        "batches": (
            [micro, turns * (local // micro), training.global_batch_size, training.seq_len],
            batches(view),
        ),
        "stages": ([cut[n] for n in range(len(cut))], stages(view)),
        "ranks": (found, {a: group(view, rank, a) for a in ("tp", "cp", "dp", "pp")}),
    }  # fmt: skip


def _cut(model: Any, dims: Any, p: Any) -> dict[int, Any]:
    from torchtitan.distributed.pipeline_parallel import _pipeline_module_split

    parts, models = _pipeline_module_split(
        model, dims.get_mesh("pp"), p.pipeline_parallel_schedule, torch.device("meta"), p.module_fqns_per_model_part
    )  # fmt: skip
    return {part.stage_index: one for part, one in zip(parts, models, strict=True)}


def _local(model: Any, dims: Any, config: Any, folder: Path) -> int:
    """Numbers that this rank holds of a model that torchtitan has parallelised."""
    made = config.model_spec.parallelize_fn(
        model, parallel_dims=dims, training=config.training, parallelism=config.parallelism,
        compile_config=config.compile, ac_config=config.activation_checkpoint, dump_folder=str(folder),
    )  # fmt: skip
    return sum(held(p) for p in made.parameters())


def held(parameter: Any) -> int:
    """Numbers that this rank holds of a parameter."""
    from torch.distributed.tensor import DTensor

    return (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()


def job(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """The older release's parser, in a process of its own."""
    from test_torchtitan_02 import FOLDER, PARSE

    view, path = View(plan(name)), folder / "plan.toml"
    path.write_text(export(plan(name), "torchtitan-0.2")[0].text)
    words = [sys.executable, "-c", PARSE, FOLDER, str(path), str(view.world)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(done.stdout.partition("FOUND")[2]).values()
    replicas, shard, cp, tp, pp, ep = row["mesh"]
    local, micro, batch, seq = row["batches"]
    micro = micro if pp > 1 else local
    parts = row["stages"] or [[f"layers.{n}" for n in range(view.plan.model.num_layers)]]
    cut = [[int(m[7:]) for m in part if m.startswith("layers.")] for part in parts]
    turns = batch // (local * replicas * shard) * (local // micro)
    return {
        "degrees": ([replicas * shard, tp, pp, cp, ep, len(cut) // pp], degrees(view)),
        "batches": ([micro, turns, batch, seq], batches(view)),
        "stages": (cut, stages(view)),
    }


def accelerate(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """The launcher's variables, Accelerate's own mesh of them, and what FSDP2 shards over it of transformers' model."""
    from accelerate.parallelism_config import ParallelismConfig
    from test_accelerate import environment
    from torch.distributed.fsdp import fully_shard

    view = View(plan(name))
    d = view.degrees
    for variable, value in environment(export(plan(name), "accelerate")[0].text, folder).items():
        monkeypatch.setenv(variable, value)
    sizes = ParallelismConfig()
    rank = view.world - 1
    with fake_group(view.world, rank):
        mesh = sizes.build_device_mesh("cpu")
        model = hub_model(view)
        for part in [*model.model.layers, model]:
            fully_shard(part, mesh=mesh[tuple(sizes.fsdp_dim_names)], reshard_after_forward=True)
        count = sum(map(held, model.parameters()))
        rings = mesh["cp"].mesh.tolist() if sizes.cp_enabled else [rank]
        data = mesh["dp"].mesh.flatten().tolist()
    return {
        "degrees": (
            [sizes.dp_replicate_size * sizes.dp_shard_size, sizes.tp_size, 1, sizes.cp_size, 1, 1],
            degrees(view),
        ),
        "ranks": ({"cp": rings, "dp": data}, {a: group(view, rank, a) for a in ("cp", "dp")}),
        "parameters": ([count], [shards(view, 0)]),
        "shards": (
            math.prod(s for n, s in sizes._sizes.items() if n in ("dp_shard", "cp")),
            d.shard_group,
        ),
    }


def hub_model(view: View) -> Any:
    """The plan's model as transformers builds it, without memory."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

    shape = shape_of(view)
    sizes = {
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "vocab_size": shape.vocab,
        "intermediate_size": shape.ffn or shape.expert_ffn, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "tie_word_embeddings": shape.tied,
    }  # fmt: skip
    experts = {"num_experts": shape.experts, "num_experts_per_tok": shape.top_k}
    experts |= {"moe_intermediate_size": shape.expert_ffn}
    config = Qwen3MoeConfig(**sizes, **experts) if shape.experts else LlamaConfig(**sizes)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def transformers(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Accelerate's variables for the data ranks; every rule of the tp_plan meets modules of the model, and no other."""
    files = {file.name: file.text for file in export(plan(name), "transformers")}
    from test_accelerate import environment

    view = View(plan(name))
    d, rules = view.degrees, json.loads(files["tp_plan.json"])["tp_plan"]
    found = environment(files["accelerate.yaml"], folder)
    axes = ("DP_REPLICATE", "DP_SHARD", "CP")
    key = "PARALLELISM_CONFIG_{}_SIZE"
    replicas, shard, cp = (int(found.get(key.format(axis), 1)) for axis in axes)
    model = hub_model(view)
    model.tp_plan = rules  # its setter refuses styles that it does not know
    names = [name for name, _ in model.named_modules()]
    met = {
        rule: [n for n in names if re.fullmatch(re.escape(rule).replace(r"\*", r"\d+"), n)]
        for rule in rules
    }
    ends = {"lm_head", "model.embed_tokens"}
    wanted = {rule: 1 if rule in ends else view.plan.model.num_layers for rule in rules}
    cut = (
        {op.name for op in view.operators() if "tp" in op.split and op.weights}
        if d.tp > 1
        else set()
    )
    return {
        "degrees": ([replicas * shard, cp], [d.dp if view.level else 1, d.cp]),
        "rules": ({r: len(m) for r, m in met.items()}, wanted),
        "operators": (bool(rules), bool(cut)),
    }  # fmt: skip


def deepspeed(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Its configuration's own arithmetic, and the degrees of AutoTP and Ulysses that it keeps."""
    from deepspeed.runtime import config
    from test_deepspeed import World

    view, data = View(plan(name)), json.loads(export(plan(name), "deepspeed")[0].text)
    d = view.degrees
    monkeypatch.setattr(config, "dist", World(d.dp * d.cp))
    found = config.DeepSpeedConfig(data)
    micro, turns = found.train_micro_batch_size_per_gpu, found.gradient_accumulation_steps
    tp = max(found.tensor_parallel_config.autotp_size, 1)
    cp = d.dp * d.cp // int(found.world_size)
    return {
        "degrees": ([found.train_batch_size // (micro * turns), tp, 1, cp, 1, 1], degrees(view)),
        "batches": ([micro, turns, found.train_batch_size], batches(view)[:3]),
        "states": (found.zero_config.stage, view.level),
    }


def dtensor(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """The plan scaled down and run on gloo ranks: loss, every gradient, and the collectives that it predicts."""
    from planner.export.dtensor import settings
    from planner.runtime.predicted import predicted
    from planner.runtime.program import program
    from planner.runtime.run import run
    from planner.runtime.shrink import shrink

    small = shrink(program(settings(View(plan(name)))))
    (ran,) = run([small])
    return {"loss and gradients": (ran.equal, True), "collectives": (ran.issued, predicted(small))}
