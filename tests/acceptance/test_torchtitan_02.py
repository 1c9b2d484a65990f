"""torchtitan 0.2.2 takes the exported job files. Two releases cannot share a process, so it runs in its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plans import plan
from test_files import holding

from planner.export.targets import export
from planner.export.view import View

FOLDER = os.environ.get("TORCHTITAN_02", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="TORCHTITAN_02 names no folder with torchtitan 0.2.2"
)
PARSE = """
import json, sys, types

class Absent(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

sys.path.insert(0, sys.argv[1])
sys.modules["torchtitan.models.moe.kernels"] = Absent("kernels")
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims

found = {}
for path, world in zip(sys.argv[2::2], map(int, sys.argv[3::2])):
    config = ConfigManager().parse_args(["--job.config_file", path])
    p, t = config.parallelism, config.training
    dims = ParallelDims(
        dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree,
        cp=p.context_parallel_degree,
        tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree, ep=p.expert_parallel_degree,
        etp=p.expert_tensor_parallel_degree, world_size=world,
    )
    found[path] = {
        "mesh": [dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp, dims.ep],
        "batches": [t.local_batch_size, p.pipeline_parallel_microbatch_size, t.global_batch_size, t.seq_len],
        "reshard": p.fsdp_reshard_after_forward, "mode": config.activation_checkpoint.mode,
        "stages": p.module_fqns_per_model_part, "model": [config.model.name, config.model.flavor],
    }
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("jobs")
    words = []
    for name in holding("torchtitan-0.2"):
        path = folder / f"{name}.toml"
        path.write_text(export(plan(name), "torchtitan-0.2")[0].text)
        words += [str(path), str(View(plan(name)).world)]
    done = subprocess.run(
        [sys.executable, "-c", PARSE, FOLDER, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    return {Path(path).stem: row for path, row in json.loads(line[5:]).items()}


@pytest.mark.parametrize("name", holding("torchtitan-0.2"))
def test_mesh_batches_and_stages(name: str, parsed: dict[str, dict]) -> None:
    view, row = View(plan(name)), parsed[name]
    d = view.degrees
    assert row["mesh"] == [view.replicas, d.dp // view.replicas, d.cp, d.tp, d.pp, d.ep]
    local, micro, batch, seq = row["batches"]
    pieces = local // micro if d.pp > 1 else 1
    assert batch // (local * d.dp) * pieces == d.num_micro_batches
    assert (batch, seq) == (view.plan.recipe.global_batch, view.plan.recipe.seq)
    assert row["mode"] == d.recompute
    assert (row["reshard"] == "always") == (view.level == 3)
    if d.pp > 1:
        layers = [sum(module.startswith("layers.") for module in part) for part in row["stages"]]
        assert layers == [len(visit) for visit in view.visits]
