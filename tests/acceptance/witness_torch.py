"""What programs on torch derive from an export: torchtitan, Accelerate, DeepSpeed, transformers and our own runtime."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import plan
from witness import Facts, batches, degrees, fake_group, group, shards, stages, weights

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
    config.parallelism.spmd_backend = "partial_dtensor" if view.experts else "default"
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
            counts.append(sum(_local(part, dims, config, folder) for part in models.values()))
            if stage == d.pp - 1:
                names = {"tp": "tp", "cp": "cp", "dp": "batch", "pp": "pp"}
                one = {axis: dims.get_optional_mesh(mesh) for axis, mesh in names.items()}
                found = {a: m.mesh.tolist() if m is not None else [rank] for a, m in one.items()}
    local = training.local_batch_size
    micro = p.pipeline_parallel_microbatch_size if d.pp > 1 else local
    turns = training.global_batch_size // (local * dims.dp_replicate * dims.dp_shard)
    return {
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
        "parameters": (counts, [shards(view, n) for n in range(d.pp)]),
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
    """The older release's parser, mesh, and model as it cuts and shards it, in a process of its own."""
    from test_torchtitan_02 import asked

    view, path = View(plan(name)), folder / "plan.toml"
    path.write_text(export(plan(name), "torchtitan-0.2")[0].text)
    (row,) = asked("built", {path: view.world}).values()
    replicas, shard, cp, tp, pp, ep = row["mesh"]
    local, micro, batch, seq = row["batches"]
    micro, cut = micro if pp > 1 else local, row["layers"]
    turns = batch // (local * replicas * shard) * (local // micro)
    return {
        "degrees": ([replicas * shard, tp, pp, cp, ep, len(cut) // pp], degrees(view)),
        "batches": ([micro, turns, batch, seq], batches(view)),
        "stages": (cut, stages(view)),
        "ranks": (row["ranks"], {a: group(view, row["rank"], a) for a in ("tp", "cp", "dp", "pp")}),
        "parameters": (row["parameters"], [shards(view, n) for n in range(pp)]),
    }


def accelerate(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """The launcher's variables, Accelerate's own mesh of them, and what FSDP2 shards over it of transformers' model."""
    view = View(plan(name))
    text = export(plan(name), "accelerate")[0].text
    sizes, ranks, count = _launched(view, text, monkeypatch, folder)
    return {
        "degrees": (
            [sizes.dp_replicate_size * sizes.dp_shard_size, sizes.tp_size, 1, sizes.cp_size, 1, 1],
            degrees(view),
        ),
        "ranks": (ranks, {axis: group(view, view.world - 1, axis) for axis in ranks}),
        "parameters": ([count], [shards(view, 0)]),
        "shards": (
            math.prod(s for n, s in sizes._sizes.items() if n in ("dp_shard", "cp")),
            view.degrees.shard_group,
        ),
    }


def _launched(
    view: View, text: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> tuple[Any, dict[str, list[int]], int]:
    """Sizes of Accelerate's mesh of a file, groups of the last rank, and numbers that FSDP2 leaves on it."""
    from accelerate.parallelism_config import ParallelismConfig
    from test_accelerate import environment
    from torch.distributed.fsdp import fully_shard

    for variable, value in environment(text, folder).items():
        monkeypatch.setenv(variable, value)
    sizes, rank = ParallelismConfig(), view.world - 1
    with fake_group(view.world, rank):
        mesh = sizes.build_device_mesh("cpu")
        with torch.device("meta"):
            model = hub_model(view)
        for part in [*model.model.layers, model]:
            fully_shard(part, mesh=mesh[tuple(sizes.fsdp_dim_names)], reshard_after_forward=True)
        count = sum(map(held, model.parameters()))
        rings = mesh["cp"].mesh.tolist() if sizes.cp_enabled else [rank]
        return sizes, {"cp": rings, "dp": mesh["dp"].mesh.flatten().tolist()}, count


def hub_model(view: View, **how: Any) -> Any:
    """The plan's model as transformers builds it."""
    from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3MoeConfig

    shape = shape_of(view)
    sizes = {
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "vocab_size": shape.vocab,
        "intermediate_size": shape.ffn or shape.expert_ffn, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "tie_word_embeddings": shape.tied,
    }  # fmt: skip
    experts = {"num_experts": shape.experts, "num_experts_per_tok": shape.top_k}
    if not shape.experts:
        config = LlamaConfig(**sizes)
    elif shape.qk_norm:
        config = Qwen3MoeConfig(**sizes, **experts, moe_intermediate_size=shape.expert_ffn)
    else:
        config = MixtralConfig(**sizes, **experts)
    return AutoModelForCausalLM.from_config(config, **how)


def transformers(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """What its tp_plan cuts of the model, every rule meeting modules; or what Accelerate shards beside it."""
    files = {file.name: file.text for file in export(plan(name), "transformers")}
    view = View(plan(name))
    d, rules = view.degrees, json.loads(files["tp_plan.json"])["tp_plan"]
    with torch.device("meta"):
        model = hub_model(view)
    model.tp_plan = rules  # its setter refuses styles that it does not know
    names = [name for name, _ in model.named_modules()]
    met = {
        rule: [n for n in names if re.fullmatch(re.escape(rule).replace(r"\*", r"\d+"), n)]
        for rule in rules
    }
    ends = {"lm_head", "model.embed_tokens"}
    wanted = {rule: 1 if rule in ends else view.plan.model.num_layers for rule in rules}
    cut = {op.name for op in view.operators() if "tp" in op.split and op.weights and d.tp > 1}
    if view.level:
        sizes, ranks, count = _launched(view, files["accelerate.yaml"], monkeypatch, folder)
        found = [sizes.dp_replicate_size * sizes.dp_shard_size, sizes.cp_size]
        said = [shards(view, 0)]
    else:
        found, said = [view.world // d.tp, 1], [weights(view, 0) - _padding(view)]
        monkeypatch.setenv("LOCAL_RANK", "0")
        ranks, count = _tensor_parallel(view, model, rules)
    return {
        "degrees": (found, [d.dp, d.cp]),
        "rules": ({r: len(m) for r, m in met.items()}, wanted),
        "operators": (bool(rules), bool(cut)),
        "ranks": (ranks, {axis: group(view, view.world - 1, axis) for axis in ranks}),
        "parameters": ([count], said),
    }


def _padding(view: View) -> float:
    """Numbers of a rank in rows with which Megatron, whose plan it is, fills the vocabulary up."""
    shape, tp = shape_of(view), view.degrees.tp
    ends = [block for place in ("embedding", "head") if (block := view.block(place)) is not None]
    tables = [
        op.shape["vocab"] for b in ends for op in b.operators if op.weights and "vocab" in op.shape
    ]
    return sum(rows - shape.vocab / tp for rows in tables) * shape.hidden


def _tensor_parallel(
    view: View, model: Any, rules: dict[str, str]
) -> tuple[dict[str, list[int]], int]:
    """The ranks that share a tensor, and the numbers that each style of its own leaves on the last of them."""
    from transformers.integrations.tensor_parallel import (
        ALL_PARALLEL_STYLES,
        _get_parameter_tp_plan,
        initialize_tensor_parallelism,
    )

    rank, count = view.world - 1, 0
    with fake_group(view.world, rank):
        mesh = torch.distributed.init_device_mesh("cpu", (view.degrees.tp,))
        *_, mesh, size = initialize_tensor_parallelism(rules, device_mesh=mesh)
        for name, parameter in model.named_parameters():
            style = _get_parameter_tp_plan(name, rules)
            shape = parameter.shape
            if style is not None:
                layer = ALL_PARALLEL_STYLES[style]
                layer.device_mesh, layer.rank, layer.empty_param = (
                    mesh,
                    mesh.get_local_rank(),
                    parameter,
                )
                shape = layer.get_expected_sharded_shape(shape)
            count += math.prod(shape)
        assert size == view.degrees.tp
        return {"tp": mesh.mesh.tolist()}, count


def deepspeed(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Facts:
    """Its configuration's own arithmetic, its groups for AutoTP and Ulysses, and what ZeRO cuts for the last rank."""
    import deepspeed_cpu
    from deepspeed.runtime import config
    from test_deepspeed import World

    view, data = View(plan(name)), json.loads(export(plan(name), "deepspeed")[0].text)
    d, rank = view.degrees, view.world - 1
    axes = [axis for axis in ("tp", "cp") if getattr(d, axis) > 1]
    with deepspeed_cpu.alone(view.world, rank, monkeypatch):
        ranks = deepspeed_cpu.ranks(d.tp, d.cp)
        counts = deepspeed_cpu.held(view, data, lambda: hub_model(view, dtype=torch.bfloat16))
    over = len(ranks.pop("states"))
    monkeypatch.setattr(config, "dist", World(d.dp * d.cp))
    found = config.DeepSpeedConfig(data)
    micro, turns = found.train_micro_batch_size_per_gpu, found.gradient_accumulation_steps
    tp = max(found.tensor_parallel_config.autotp_size, 1)
    cp = d.dp * d.cp // int(found.world_size)
    return {
        "degrees": ([found.train_batch_size // (micro * turns), tp, 1, cp, 1, 1], degrees(view)),
        "batches": ([micro, turns, found.train_batch_size], batches(view)[:3]),
        "states": (found.zero_config.stage, view.level),
        "shards": (over, d.shard_group),
        "ranks": (ranks, {axis: group(view, rank, axis) for axis in ("dp", *axes)}),
        "parameters": (list(counts), [weights(view, 0) if view.level < 3 else shards(view, 0), shards(view, 0)]),
    }  # fmt: skip


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
