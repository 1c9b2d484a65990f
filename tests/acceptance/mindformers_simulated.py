"""MindFormers' own Llama compiled for many devices that are not there: a program for a process of its own.

As in ``mindspore_simulated``; the exported file decides everything but the depth, of which one layer a chunk is enough
for the groups of ranks that the compiler makes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import mindspore as ms
import numpy as np
from mindformers.core.parallel_config import build_parallel_config
from mindformers.models.llama import LlamaConfig, LlamaForCausalLM
from mindformers.tools.register.config import MindFormerConfig
from mindspore import context, nn
from mindspore.graph.api import _cell_graph_executor
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell, _VirtualDatasetCell
from mindspore_simulated import GROUPS, simulate


def main(spec: dict[str, Any]) -> dict[str, list[int]]:
    """Groups of ranks by the names that the compiler gives them, of one rank."""
    simulate(spec["devices"], spec["rank"])
    config = MindFormerConfig(spec["file"])
    build_parallel_config(config)
    p = config.parallel_config
    # a tensor can only be made for what is there
    context.set_context(mode=context.GRAPH_MODE, device_target="CPU")
    own = {
        key: value
        for key, value in config.parallel.items()
        if key not in ("parallel_mode", "strategy_ckpt_save_file")
    }
    own |= {key: dict(own[key]) for key in ("pipeline_config", "parallel_optimizer_config")}
    own["dataset_strategy"] = tuple(map(tuple, own["dataset_strategy"]))
    context.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=spec["devices"], global_rank=spec["rank"],
        pipeline_stages=p.pipeline_stage, **own,
    )  # fmt: skip
    sizes = dict(config.model.model_config) | {"parallel_config": p, "offset": 0}
    sizes["num_layers"] = p.pipeline_stage * sizes["pp_interleave_num"]
    if config.moe_config.expert_num > 1:
        sizes["moe_config"] = config.moe_config
    with nn.utils.no_init_parameters():
        net = LlamaForCausalLM(
            LlamaConfig(**{key: value for key, value in sizes.items() if key != "type"})
        )
    turns = p.pipeline_stage
    if turns > 1:
        net = _VirtualDatasetCell(nn.PipelineCell(net, turns))
        net = _TrainGradAccuStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    net.set_train()
    context.set_context(device_target="Ascend")
    tokens = np.ones((sizes["batch_size"] * p.data_parallel * turns, sizes["seq_length"] + 1))
    _cell_graph_executor.compile(net, ms.Tensor(tokens, ms.int32), phase="train")
    return GROUPS


if __name__ == "__main__":
    sys.stdout.write("FOUND " + json.dumps(main(json.loads(sys.argv[1]))))
