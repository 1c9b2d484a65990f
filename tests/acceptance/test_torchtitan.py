"""torchtitan 0.3.0 takes the exported configuration module and derives the plan's mesh, stages and batches."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import pkgutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plans import LAYOUTS, plan
from test_like import ASSIGNED

from planner.export.targets import export
from planner.export.view import View

NAMES = [name for name, row in LAYOUTS.items() if row[2] == "torchtitan"] + ["fsdp", "fsdp-2"]
pytestmark = pytest.mark.filterwarnings("ignore")


class _Absent(types.ModuleType):
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


sys.modules.setdefault("torchtitan.distributed.minimal_async_ep.kernels", _Absent("kernels"))
"""Its kernels import triton, and nothing here runs them."""


def accepted(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> Any:
    """The configuration that torchtitan's own parser makes of the exported module."""
    files = {file.name: file.text for file in export(plan(name), "torchtitan")}
    return parsed(files["shardwright_plan.py"], folder, monkeypatch, *flags)


def parsed(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> Any:
    """The configuration that torchtitan's own parser makes of a module."""
    from torchtitan.config import ConfigManager

    logging.disable(logging.INFO)
    (folder / "shardwright_plan.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "shardwright_plan", raising=False)
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            return ConfigManager().parse_args(
                ["--module", "shardwright_plan", "--config", "plan", *flags]
            )
        except SystemExit:
            raise ValueError(told.getvalue()) from None


@pytest.mark.parametrize("name", NAMES)
def test_mesh_and_batches(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtitan.distributed import ParallelDims

    view = View(plan(name))
    d = view.degrees
    config = accepted(name, tmp_path, monkeypatch)
    dims = ParallelDims.from_config(config.parallelism, view.world)
    assert (dims.dp_replicate, dims.dp_shard) == (view.replicas, d.dp // view.replicas)
    assert (dims.tp, dims.pp, dims.cp, dims.ep) == (d.tp, d.pp, d.cp, d.ep)
    assert dims.dp_shard * dims.cp == d.shard_group
    training, p = config.training, config.parallelism
    local = training.local_batch_size
    assert training.global_batch_size % (local * d.dp) == 0
    turns = training.global_batch_size // (local * d.dp)
    pieces = local // p.pipeline_parallel_microbatch_size if d.pp > 1 else 1
    assert turns * pieces == d.num_micro_batches
    assert training.seq_len == view.plan.recipe.seq
    assert (p.fsdp_reshard_after_forward == "always") == (view.level == 3)
    kind = type(config.activation_checkpoint).__qualname__.split(".")[0]
    assert kind == {"none": "NoneType", "full": "FullAC", "selective": "SelectiveAC"}[d.recompute]


@pytest.mark.parametrize("name", ["titan-stages", "titan-chunks", "titan-v"])
def test_stages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own model is cut at the exported names: every layer once, on the stage of the plan."""
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

    view = View(plan(name))
    config = accepted(name, tmp_path, monkeypatch)
    parts = config.parallelism.module_fqns_per_model_part
    assert len(parts) == view.degrees.pp * view.degrees.vpp
    with_layers = [[int(n[7:]) for n in part if n.startswith("layers.")] for part in parts]
    assert with_layers == [list(visit) for visit in view.visits]
    assert parts[0][0] == "tok_embeddings"
    assert parts[-1][-2:] == ["norm", "lm_head"]
    kind = get_schedule_class(config.parallelism.pipeline_parallel_schedule)
    assert issubclass(kind, PipelineScheduleMulti) == (view.degrees.vpp > 1)


def test_module_names_are_those_of_its_model() -> None:
    import torch
    from torchtitan.models.llama3.config_registry import llama3_8b

    with torch.device("meta"):
        model = llama3_8b().model_spec.model.build()
    names = {name for name, _ in model.named_children()}
    assert {"tok_embeddings", "layers", "norm", "lm_head"} <= names
    assert len(model.layers) == 32
    assert sum(p.numel() for p in model.parameters()) == plan("titan").model.num_params


def test_what_every_configuration_computes_again_by_itself() -> None:
    """Which of its functions compute whole layers again, or nothing: the default of a launch script that names one."""
    from planner.frontends.launch.torchtitan import NOTHING, WHOLE

    found = {name: kind for name, kind in _policies() if kind}
    assert len(found) > 30
    for kind, names in {"FullAC": WHOLE, "NoneType": NOTHING}.items():
        assert {name for name, other in found.items() if other == kind} == names & found.keys()


def _policies() -> Iterator[tuple[str, str]]:
    """Configurations by name, with the class that recomputes; none for those whose packages are not there."""
    from torchtitan import models

    for package in pkgutil.iter_modules(models.__path__):
        try:
            registry = importlib.import_module(f"torchtitan.models.{package.name}.config_registry")
        except ImportError:
            continue
        for name, make in vars(registry).items():
            annotated = str(getattr(make, "__annotations__", {}).get("return"))
            if not name.startswith("_") and "Trainer.Config" in annotated:
                try:
                    kind = type(make().activation_checkpoint).__qualname__.split(".")[0]
                except (ImportError, ValueError):  # kernels and devices that are not here
                    kind = ""
                yield name, kind


def test_a_wrong_plan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtitan.distributed import ParallelDims

    config = accepted("titan", tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="foo"):
        accepted("titan", tmp_path, monkeypatch, "--parallelism.foo", "3")
    with pytest.raises(AssertionError):
        ParallelDims.from_config(config.parallelism, 2 * View(plan("titan")).world)


@pytest.mark.parametrize("name", ["titan", "titan-stages", "titan-hybrid", "titan-host"])
def test_a_module_of_one_s_own_with_the_plan_s_values(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtitan.distributed import ParallelDims

    from planner.export.like import export_like

    view = View(plan(name))
    d = view.degrees
    text = export_like(plan(name), "torchtitan", "ours.py", ASSIGNED).text
    config = parsed(text, tmp_path, monkeypatch)
    dims = ParallelDims.from_config(config.parallelism, view.world)
    assert (dims.dp_replicate, dims.tp, dims.pp, dims.cp) == (view.replicas, d.tp, d.pp, d.cp)
    local = d.micro_batch * (d.num_micro_batches if d.pp > 1 else 1)
    assert (config.training.local_batch_size, config.training.steps) == (local, 9)
    assert bool(config.parallelism.module_fqns_per_model_part) == (d.pp > 1)
