"""Megatron-Bridge 0.6.2 takes the exported overrides, derives the plan's degrees, and its own validation passes."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
from megatron_cpu import load
from plans import plan

from planner.export.shape import shape_of
from planner.export.targets import export
from planner.export.view import View
from planner.plan.schema import Plan

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = ["dense", "data", "copies", "uneven", "inside", "instances", "megatron-host"]
"""Plans of Llama 3 8B, the model that is built here without asking the hub."""


class _Absent(types.ModuleType):
    """A package of NVIDIA's that only a GPU needs: whatever is asked of it is there and does nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Absent(name) if name[0].islower() else type(name, (), {})
        setattr(self, name, found)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        return None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names: ClassVar[set[str]] = {"transformer_engine"}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == known or name.startswith(f"{known}.") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def _import(*names: str) -> list[Any]:
    """Modules of Bridge; packages that they miss are stood in for, one by one as the import names them."""
    finder = _Finder()
    sys.meta_path.append(finder)
    for _ in range(30):
        try:
            recipes = types.ModuleType("megatron.bridge.recipes")
            core = importlib.import_module("megatron.core")
            assert core.__file__ is not None
            recipes.__path__ = [str(Path(core.__file__).parents[1] / "bridge" / "recipes")]
            sys.modules["megatron.bridge.recipes"] = (
                recipes  # its own __init__ imports every recipe there is
            )
            return [importlib.import_module(name) for name in names]
        except ModuleNotFoundError as error:
            assert error.name
            missing = (
                error.name if error.name.startswith("megatron.") else error.name.partition(".")[0]
            )
            assert missing not in {*finder.names, "megatron"}, error
            finder.names.add(missing)
            for name in [name for name in sys.modules if name.startswith("megatron.bridge")]:
                del sys.modules[name]
    raise AssertionError("Megatron-Bridge misses more packages than it should")


@cache
def loaded() -> list[Any]:
    """Its configuration, common recipes, overrides and package."""
    load()
    for name in ("megatron.core.extensions", "megatron.core.models.gpt"):
        importlib.import_module(name)
    return _import(
        "megatron.bridge.training.config",
        "megatron.bridge.recipes.common",
        "megatron.bridge.training.utils.omegaconf_utils",
        "megatron.bridge",
    )


def described(made: Plan) -> Any:
    """The model of a plan as transformers describes it, since nothing asks the hub here."""
    from transformers import LlamaConfig, Qwen3MoeConfig

    shape = shape_of(View(made))
    sizes = {
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "vocab_size": shape.vocab,
        "intermediate_size": shape.ffn or shape.expert_ffn, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "max_position_embeddings": made.recipe.seq,
    }  # fmt: skip
    if not shape.experts:
        return LlamaConfig(**sizes, architectures=["LlamaForCausalLM"])
    experts = {"num_experts": shape.experts, "num_experts_per_tok": shape.top_k}
    experts |= {"moe_intermediate_size": shape.expert_ffn, "head_dim": shape.head_dim}
    return Qwen3MoeConfig(**sizes, **experts, architectures=["Qwen3MoeForCausalLM"])


@pytest.fixture(scope="module")
def bridge() -> list[Any]:
    return loaded()


def configured(bridge: Sequence[Any], name: str, extra: Sequence[str] = ()) -> Any:
    import torch

    config, common, overriding, package = bridge
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    chip = types.SimpleNamespace(major=9, minor=0, name="NVIDIA H100 80GB HBM3")
    torch.cuda.get_device_properties = lambda *a, **k: chip
    data = json.loads(
        next(f.text for f in export(plan(name), "megatron-bridge") if f.name == "bridge.json")
    )
    os.environ.update(
        data["environment"], WORLD_SIZE=str(data["world_size"]), RANK="0", LOCAL_RANK="0"
    )
    recipe = common._pretrain_common()
    hub = described(plan(name))
    recipe.model = package.AutoBridge.from_hf_config(hub).to_megatron_provider(load_weights=False)
    recipe.model.apply_rope_fusion, recipe.model.transformer_impl = False, "local"
    recipe.model.moe_permute_fusion = False  # as the two above, only Transformer Engine has it
    recipe.tokenizer.tokenizer_type, recipe.tokenizer.vocab_size = "NullTokenizer", hub.vocab_size
    recipe.dataset.blend = None
    recipe.train.train_iters, recipe.scheduler.lr_warmup_iters = 100, 10
    recipe = overriding.process_config_with_overrides(
        recipe, cli_overrides=[*data["overrides"], *extra]
    )
    config.runtime_config_update(recipe)
    recipe.validate()
    return recipe


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))


@pytest.mark.parametrize("name", NAMES)
def test_degrees(name: str, bridge: list[Any]) -> None:
    found, view = configured(bridge, name), View(plan(name))
    d = view.degrees
    assert found.data_parallel_size == d.dp
    model = found.model
    assert (model.tensor_model_parallel_size, model.pipeline_model_parallel_size) == (d.tp, d.pp)
    assert (model.context_parallel_size, model.sequence_parallel) == (
        d.cp,
        d.sequence_parallel and d.tp > 1,
    )
    assert (model.virtual_pipeline_model_parallel_size or 1) == d.vpp
    assert found.ddp.use_distributed_optimizer == (view.level == 1 and d.dp * d.cp > 1)
    assert found.ddp.num_distributed_optimizer_instances == (view.replicas if view.level else 1)
    assert found.optimizer.optimizer_cpu_offload == (d.offload == "optimizer")
    assert (found.train.micro_batch_size, found.train.global_batch_size) == (
        d.micro_batch,
        view.plan.recipe.global_batch,
    )
    assert model.recompute_granularity == {"none": None, "full": "full"}[d.recompute]


def test_a_wrong_override_is_refused(bridge: list[Any]) -> None:
    with pytest.raises(Exception, match="foo"):
        configured(bridge, "data", ["model.foo=3"])
    with pytest.raises((AssertionError, ValueError)):
        configured(bridge, "data", ["model.tensor_model_parallel_size=3"])
