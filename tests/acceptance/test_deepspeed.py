"""DeepSpeed 0.19.8 takes the exported JSON and derives the plan's batches, ZeRO stage and offload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from plans import plan
from test_files import holding

from planner.api import Question, price
from planner.errors import PlannerError
from planner.export.dtensor import settings
from planner.export.targets import export
from planner.export.view import View
from planner.frontends.launch.deepspeed import (
    CHECKPOINTS,
    DEEPSPEED_TOP,
    PRESETS,
    SPEC,
    TENSOR,
    WAYS,
    ZERO,
)
from planner.runtime.program import program
from planner.runtime.sizes import held

pytestmark = pytest.mark.filterwarnings("ignore")


class World:
    """What the configuration asks of a process group; a real one would compile kernels first."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_rank(self, group: Any = None) -> int:
        return 0

    def get_world_size(self, group: Any = None) -> int:
        return self.size

    def is_initialized(self) -> bool:
        return True


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from deepspeed.runtime import config

    def make(data: dict[str, Any], size: int) -> Any:
        monkeypatch.setattr(config, "dist", World(size))
        return config.DeepSpeedConfig(data)

    yield make


def exported(name: str) -> dict[str, Any]:
    return json.loads(export(plan(name), "deepspeed")[0].text)


@pytest.mark.parametrize("name", holding("deepspeed"))
def test_batches_and_states(name: str, configured: Any) -> None:
    view = View(plan(name))
    d, data = view.degrees, exported(name)
    found = configured(data, d.dp * d.cp)
    assert found.train_batch_size == view.plan.recipe.global_batch
    assert found.train_micro_batch_size_per_gpu == d.micro_batch
    assert found.gradient_accumulation_steps == d.num_micro_batches
    zero = found.zero_config
    assert zero.stage == view.level
    host = {"optimizer": (True, False), "states": (True, True)}.get(d.offload, (False, False))
    assert (zero.offload_optimizer is not None, zero.offload_param is not None) == host
    assert found.bfloat16_config.enabled == (view.plan.recipe.precision == "bf16")


def test_every_key_is_known() -> None:
    """Keys that it does not know pass silently, so they are compared with those that it has."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    for name in holding("deepspeed"):
        data = exported(name)
        assert data.keys() - {"_about"} <= DEEPSPEED_TOP
        fields = DeepSpeedZeroConfig.model_fields.items()
        names = {str(field.alias or name) for name, field in fields}
        assert data["zero_optimization"].keys() <= names <= ZERO
        assert data.get("activation_checkpointing", {}).keys() <= CHECKPOINTS


def test_keys_that_check_knows_are_those_that_it_has() -> None:
    from deepspeed.module_inject.autotp_config import AutoTPPresets, PartitionType, TPLayerSpec
    from deepspeed.runtime.activation_checkpointing import config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig

    assert TPTrainingConfig.model_fields.keys() == TENSOR
    assert {way.value for way in PartitionType} == set(WAYS)
    assert set(TPLayerSpec.__dataclass_fields__) == SPEC
    assert all(AutoTPPresets.get_preset(name) for name in PRESETS)
    words = {
        v for k, v in vars(config).items() if k.startswith("ACT_CHKPT_") and isinstance(v, str)
    }
    assert words >= CHECKPOINTS


def test_autotp_splits_what_the_plan_splits(configured: Any) -> None:
    """Its own classes take the specs, and every module of a Llama gets the way in which the plan cuts its operator."""
    from deepspeed.module_inject.autotp_config import AutoTPConfig
    from transformers import LlamaConfig, LlamaForCausalLM

    data = exported("autotp")
    found = configured(data, 8).tensor_parallel_config
    assert (found.autotp_size, found.vocab_parallel_lm_head) == (2, True)
    config = AutoTPConfig.from_dict(data["tensor_parallel"]["partition_config"])
    small = LlamaConfig(
        num_hidden_layers=1, hidden_size=64, intermediate_size=64, vocab_size=64,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    names = [name for name, _ in LlamaForCausalLM(small).named_parameters() if "proj" in name]
    ways = {name.split(".")[-2]: config.find_matching_spec(name) for name in names}
    column = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
    assert {name for name, spec in ways.items() if spec.partition_type.value == "column"} == column
    assert {n for n, spec in ways.items() if spec.partition_type.value == "row"} == {
        "o_proj",
        "down_proj",
    }
    assert config.find_matching_spec("model.embed_tokens.weight") is None
    question = Question(
        model="llama-3-8b", cluster="h100-sxm:8", trainer="mindspore", global_batch=64, seq_len=4096
    )
    with pytest.raises(PlannerError, match="vocab of the embedding: AutoTP cuts nothing"):
        export(price(question, {"tp": 2, "zero": 1, "sp": "off"}), "deepspeed")


@pytest.mark.parametrize(
    ("name", "kind"), [("autotp", "Embedding"), ("autotp-tied", "VocabParallelEmbedding")]
)
def test_autotp_holds_what_the_plan_holds(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own replacement of a Llama's modules, on a fake group: a rank has the plan's parameters."""
    import deepspeed_cpu
    import torch.distributed as dist
    from torch._subclasses import FakeTensorMode
    from witness_torch import hub_model

    view = View(plan(name))
    specs, tp = exported(name)["tensor_parallel"]["partition_config"], view.degrees.tp
    with deepspeed_cpu.alone(tp, 0, monkeypatch):
        deepspeed_cpu.ranks(tp, 1)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = deepspeed_cpu.replaced(hub_model(view), specs, tp, dist.group.WORLD)
    assert type(model.model.embed_tokens).__name__ == kind
    made = program(settings(view))
    ours = {(w if w in made.tables else (n, w)): held(w, part, made)
            for n, part in enumerate(made.parts) for w in part.weights}  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == sum(ours.values())


def test_ulysses_gives_a_batch_to_ranks_that_share_a_sequence(configured: Any) -> None:
    d, data = plan("ulysses").degrees, exported("ulysses")
    assert data["sequence_parallel_size"] == d.cp == 4
    assert (
        configured(data, d.dp * d.cp).train_batch_size == d.dp * d.micro_batch * d.num_micro_batches
    )


def test_a_wrong_configuration_is_refused(configured: Any) -> None:
    data = exported("fsdp")
    with pytest.raises(AssertionError):
        configured(data | {"train_batch_size": data["train_batch_size"] + 1}, 16)
    with pytest.raises(Exception, match="stage"):
        configured(data | {"zero_optimization": {"stage": 4}}, 16)
