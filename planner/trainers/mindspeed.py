"""MindSpeed-LLM on Ascend: Megatron's arguments of an older core, with empty layers where stages are uneven."""

from __future__ import annotations

from dataclasses import replace

from planner.trainers.megatron import MEGATRON
from planner.trainers.trainer import Offload

MINDSPEED = replace(
    MEGATRON,
    name="mindspeed",
    aliases=("mindspeed-llm", "modellink"),
    release="MindSpeed-LLM 2.1 on Megatron-Core 0.12",
    recompute=MEGATRON.recompute | {"selective": frozenset({"core"})},
    counts_ends=False,
    pads_layers=True,
    encoders=False,
    sends_once=False,
    loss="torch",
    memory=replace(
        MEGATRON.memory,
        logit_bytes=10.0,
        standing_bytes=0.0,
        weighs_inside=False,
        source="as Megatron, with the cross-entropy of torch (10 bytes a logit): MindSpeed and ModelLink on Ascend",
    ),
    offload=Offload(),
    optimizers=frozenset({"adamw", "sgd"}),
    elsewhere=dict.fromkeys(("nvidia", "amd", "google", "intel")),
    source="MindSpeed-LLM's example scripts: --noop-layers 61,62,63 of 64 (DeepSeek-V3), 94,95 of 96 (Qwen3-235B)",
)
