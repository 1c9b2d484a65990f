"""torchtitan 0.2.2 reads job files, and builds what they say: a program for a process of its own.

Two releases cannot share a process. Parameters need no kernels, so that the file which imports triton is left out.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any


class Absent(types.ModuleType):
    """A module whose every name is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def job(path: str) -> Any:
    """What its parser makes of a file."""
    from torchtitan.config import ConfigManager

    return ConfigManager().parse_args(["--job.config_file", path])


def dims_of(config: Any, world: int) -> Any:
    """Its degrees, not yet a mesh."""
    from torchtitan.distributed import ParallelDims

    p = config.parallelism
    return ParallelDims(
        dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree,
        cp=p.context_parallel_degree, tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree,
        ep=p.expert_parallel_degree, etp=p.expert_tensor_parallel_degree, world_size=world,
    )  # fmt: skip


def parsed(path: str, world: int) -> dict[str, Any]:
    """Degrees, batches, stages and states as the file says them."""
    config = job(path)
    p, t, dims = config.parallelism, config.training, dims_of(config, world)
    return {
        "mesh": [dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp, dims.ep],
        "batches": [t.local_batch_size, p.pipeline_parallel_microbatch_size, t.global_batch_size, t.seq_len],
        "reshard": p.fsdp_reshard_after_forward,
        "mode": [config.activation_checkpoint.mode, config.activation_checkpoint.selective_ac_option],
        "stages": p.module_fqns_per_model_part, "model": [config.model.name, config.model.flavor],
    }  # fmt: skip


def built(path: str, world: int) -> dict[str, Any]:
    """Its model, cut and sharded by its own code for one rank of every stage; and the groups of the last of them."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed import parallel_dims
    from torchtitan.protocols.train_spec import get_train_spec

    parallel_dims.device_type = "cpu"
    config = job(path)
    config.compile.enable = False
    spec = get_train_spec(config.model.name)
    sizes = spec.model_args[config.model.flavor]
    sizes.update_from_config(config)
    pp = config.parallelism.pipeline_parallel_degree
    cut: dict[int, list[int]] = {}
    counts, ranks = [], {}
    for stage in range(pp):
        rank = stage * (world // pp)
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        dims = dims_of(config, world)
        dims.build_mesh()
        with torch.device("meta"):
            model = spec.model_cls(sizes)
        parts = _parts(model, dims, config) if pp > 1 else {0: model}
        for place, part in parts.items():
            cut[place] = [int(name) for name, _ in part.layers.named_children()]
        made = [spec.parallelize_fn(part, dims, config) for part in parts.values()]
        counts.append(sum(_held(p) for part in made for p in part.parameters()))
        names = {"tp": "tp", "cp": "cp", "dp": "batch", "pp": "pp"}
        meshes = {axis: dims.get_optional_mesh(name) for axis, name in names.items()}
        ranks = {a: m.mesh.tolist() if m is not None else [rank] for a, m in meshes.items()}
        dist.destroy_process_group()
    found = {"rank": rank, "ranks": ranks, "parameters": counts}
    return parsed(path, world) | found | {"layers": [cut[n] for n in range(len(cut))]}


def _parts(model: Any, dims: Any, config: Any) -> dict[int, Any]:
    import torch
    from torchtitan.distributed.pipeline_parallel import pipeline_module_split

    p = config.parallelism
    stages, models = pipeline_module_split(
        model, dims.get_mesh("pp"), p.pipeline_parallel_schedule, torch.device("meta"), p.module_fqns_per_model_part
    )  # fmt: skip
    return {stage.stage_index: one for stage, one in zip(stages, models, strict=True)}


def _held(parameter: Any) -> int:
    """Numbers that this rank holds of a parameter."""
    return int((parameter.to_local() if hasattr(parameter, "to_local") else parameter).numel())


if __name__ == "__main__":
    folder, what, *words = sys.argv[1:]
    sys.path.insert(0, folder)
    sys.modules["torchtitan.models.moe.kernels"] = Absent("kernels")
    ask = {"parsed": parsed, "built": built}[what]
    answers = {path: ask(path, int(n)) for path, n in zip(words[::2], words[1::2], strict=True)}
    sys.stdout.write("FOUND" + json.dumps(answers))
