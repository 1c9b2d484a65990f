"""Galvatron 2.4.0 expands the exported JSON to a number for every layer: degrees, stages, states, checkpointing.

Two files of its source package are loaded by themselves: the package would build a C++ search engine first.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from plans import plan
from test_files import holding

from planner.export.targets import export
from planner.export.view import View

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def galvatron() -> Any:
    return parser()


@cache
def parser() -> Any:
    """The file that expands strategies, loaded by itself."""
    spec = importlib.util.find_spec("galvatron")
    assert spec is not None
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    for name in ("galvatron", "galvatron.utils"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
    sys.modules["galvatron"].__spec__ = spec  # another import of this file asks for it again
    utils = load("galvatron.utils.config_utils", folder / "utils" / "config_utils.py")
    sys.modules["galvatron.utils"].__dict__.update(utils.__dict__)
    return load("galvatron_parallel", folder / "core" / "runtime" / "hybrid_parallel_config.py")


def layer_groups(found: dict[str, Any], rank: int) -> dict[str, list[list[int]]]:
    """The distinct groups of a rank over all layers, by axis, as its own code makes them on torch's groups."""
    folder = Path(parser().__file__).parent
    for name in ("galvatron.core", "galvatron.core.runtime"):
        sys.modules.setdefault(name, types.ModuleType(name)).__path__ = []  # type: ignore[attr-defined]
    redistribute = types.ModuleType("galvatron.core.runtime.redistribute")
    redistribute.__dict__.update(
        gather_from_group=None, split_to_group=None
    )  # want flash attention; move data
    sys.modules[redistribute.__name__] = redistribute
    made = load("galvatron.core.runtime.comm_groups", folder / "comm_groups.py")
    tp, count = list(found["tp_sizes_enc"]), len(found["tp_sizes_enc"])
    pp, by_tp, _, by_dp, *_ = made.gen_comm_groups(
        tp, [1] * count, found["pp_deg"], list(found["tp_consecutive_flags"])
    )
    layers = {"tp": by_tp, "dp": by_dp, "pp": [pp]}
    return {
        axis: [list(ranks) for ranks in sorted({tuple(each.ranks) for each in groups})]
        for axis, groups in layers.items()
    }


def load(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expanded(galvatron: Any, data: dict[str, Any], world: int, layers: int) -> dict[str, Any]:
    """What it makes of a strategy for a model of so many layers."""
    import torch

    before = torch.distributed.get_world_size
    torch.distributed.get_world_size = lambda *a: world
    args = types.SimpleNamespace(
        local_rank=1, galvatron_config_path=data, pipeline_type="", default_dp_type="", embed_sdp=0, chunks=1,
        global_train_batch_size=1, pp_deg=1, vocab_tp=1, vocab_sp=0, distributed_checkpoint=False,
    )  # fmt: skip
    info = galvatron.ModelInfo()
    info.set_layernums([layers])
    try:
        found = galvatron.get_hybrid_parallel_configs_api(None, args, lambda *a: info)
        galvatron.check_hp_config(found, [layers])
    finally:
        torch.distributed.get_world_size = before
    return found | {"chunks": args.chunks, "pipeline_type": args.pipeline_type}


@pytest.mark.parametrize("name", holding("galvatron"))
def test_layers(name: str, galvatron: Any) -> None:
    view = View(plan(name))
    d, count = view.degrees, view.plan.model.num_layers
    data = json.loads(export(plan(name), "galvatron")[0].text)
    found = expanded(galvatron, data, view.world, count)
    assert found["pp_deg"] == d.pp
    assert list(found["tp_sizes_enc"]) == [d.tp] * count
    assert list(found["pp_division"]) == list(view.stage_sizes)
    assert list(found["checkpoint_flags_enc"]) == [int(d.recompute == "full")] * count
    assert list(found["dp_types_enc"]) == [int(view.level == 3)] * count
    assert found["global_train_batch_size"] == view.plan.recipe.global_batch
    assert found["chunks"] == d.num_micro_batches


def test_wrong_lists_are_refused(galvatron: Any) -> None:
    name = holding("galvatron")[0]
    view = View(plan(name))
    data = json.loads(export(plan(name), "galvatron")[0].text)
    short = data | {"tp_sizes_enc": "1,1"}
    with pytest.raises((AssertionError, IndexError, ValueError)):
        expanded(galvatron, short, view.world, view.plan.model.num_layers)
