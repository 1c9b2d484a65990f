"""DeepSpeed's own groups, AutoTP and ZeRO of a plan's model on a fake process group, without memory.

Its own backend would compile a kernel for shared memory first; nothing here moves a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from deepspeed.comm import comm
from deepspeed.comm.torch import TorchBackend
from deepspeed.module_inject import layers
from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.autotp_config import AutoTPConfig
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils import groups
from torch._subclasses import FakeTensorMode
from witness import fake_group

from planner.export.view import View


class Backend(TorchBackend):
    """Its wrapper of torch's groups, without the kernel."""

    def __init__(self) -> None:
        self.name, self.initialized, self.single_gpu_mode = "torch", True, False
        self.shm_comm_op = None
        self.all_gather_function = self.get_all_gather_function()

    def broadcast(self, *_: Any, **__: Any) -> None:
        """Nobody listens."""


@contextmanager
def alone(world: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One rank of a world that is not there, under torch and under DeepSpeed."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    for name in (
        "_TENSOR_MODEL_PARALLEL_GROUP",
        "_MODEL_PARALLEL_GROUP",
        "_DATA_PARALLEL_GROUP",
        "_WORLD_GROUP",
    ):
        monkeypatch.setattr(groups, name, None)
    monkeypatch.setattr(layers, "DEEPSPEED_AUTOTP_MODE", layers.AUTOTP_MODE.TRAINING)
    parallel_state_sp._release_sequence_parallel_groups()
    with fake_group(world, rank):
        monkeypatch.setattr(comm, "cdb", Backend())
        yield


def ranks(tp: int, cp: int) -> dict[str, list[int]]:
    """The groups that it makes for AutoTP or Ulysses, of this rank; ``states`` are those over which ZeRO cuts."""
    everybody = list(range(dist.get_world_size()))
    found = {"states": everybody, "dp": everybody}
    if tp > 1:
        groups._init_tp_mesh_device(tp)
        found["tp"] = dist.get_process_group_ranks(groups.get_tensor_model_parallel_group())
        found["dp"] = found["states"] = dist.get_process_group_ranks(groups._DATA_PARALLEL_GROUP)
    if cp > 1:
        parallel_state_sp.initialize_sequence_parallel(cp)
        found["cp"] = dist.get_process_group_ranks(parallel_state_sp.get_sequence_parallel_group())
        whole = parallel_state_sp.get_sequence_data_parallel_group()
        found["states"] = dist.get_process_group_ranks(whole)
        found["dp"] = [rank for rank in found["states"] if rank % cp == dist.get_rank() % cp]
    return found


def replaced(model: Any, specs: dict[str, Any], tp: int, group: Any) -> Any:
    """A model whose modules AutoTP has replaced by this rank's parts."""
    auto = AutoTP(
        module=model, all_reduce_linears=(), prefix="", state_dict=None, orig_layer_impl=None,
        linear_layer_setting=(torch.nn.Linear, torch.nn.Embedding), model_config=model.config,
        partition_config=AutoTPConfig.from_dict(specs), vocab_parallel_lm_head=True, training_mode=True,
    )  # fmt: skip
    auto.set_tensor_parallel_config(tp, group)
    auto.update_linear_policies()
    auto._replace_module(model)
    return model


def held(view: View, data: dict[str, Any], make: Any) -> tuple[int, int]:
    """Numbers of the weights and of the states that this rank holds of a model, behind :func:`ranks`.

    Args:
        view: the plan.
        data: its configuration.
        make: builds the whole model.
    """
    import deepspeed

    tp = view.degrees.tp
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = make()
        if tp > 1:
            specs = data["tensor_parallel"]["partition_config"]
            model = replaced(model, specs, tp, groups.get_tensor_model_parallel_group())
        parameters = list(model.parameters())
        whole = sum(p.numel() for p in parameters)
        if view.level == 3:
            deepspeed.zero.Init(module=model, config_dict_or_path=data, dtype=torch.bfloat16)
            cut = sum(p.ds_tensor.ds_numel for p in parameters)
            return cut, cut
        optimizer = DeepSpeedZeroOptimizer(
            torch.optim.AdamW(parameters), {p: name for name, p in model.named_parameters()}, None, {},
            dp_process_group=groups._DATA_PARALLEL_GROUP if tp > 1 else dist.group.WORLD,
            partition_grads=view.level == 2, communication_data_type=torch.bfloat16,
        )  # fmt: skip
        return whole, sum(p.numel() for p in optimizer.single_partition_of_fp32_groups)
