"""DeepSpeed 0.19.8 takes the exported JSON and derives the plan's batches, ZeRO stage and offload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from plans import plan
from test_files import holding

from planner.export.targets import export
from planner.export.view import View
from planner.frontends.launch.json_files import DEEPSPEED_TOP

pytestmark = pytest.mark.filterwarnings("ignore")


class World:
    """What the configuration asks of a process group; a real one would compile kernels first."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_rank(self) -> int:
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
    found = configured(data, d.dp)
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
        assert data["zero_optimization"].keys() <= names


def test_a_wrong_configuration_is_refused(configured: Any) -> None:
    data = exported("fsdp")
    with pytest.raises(AssertionError):
        configured(data | {"train_batch_size": data["train_batch_size"] + 1}, 16)
    with pytest.raises(Exception, match="stage"):
        configured(data | {"zero_optimization": {"stage": 4}}, 16)
