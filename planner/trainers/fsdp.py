"""Accelerate with FSDP2, or ZeRO alone: data parallelism with sharded states, and context parallelism."""

from __future__ import annotations

from planner.trainers.rules import choose
from planner.trainers.trainer import Memory, Offload, Overhead, Overlap, Trainer
from planner.units import GIB, MS, US

FSDP = Trainer(
    name="fsdp",
    aliases=("fsdp2", "accelerate", "axolotl"),
    release="Accelerate 1.15.0, DeepSpeed 0.19.8",
    roles={"dp": ("batch",), "cp": ("seq",), "edp": ("capacity",)},
    orders=(("tp", "cp", "dp", "pp"),),
    shardings=(1, 2, 3),
    hsdp=True,
    schedules=("1f1b",),
    sequence_parallel=(False,),
    recompute={"none": frozenset(), "full": frozenset({"*"})},
    recompute_unfused=frozenset(),
    axes=frozenset({"dp", "cp"}),
    expert_tp=False,
    copies_kv=False,
    uneven=frozenset(),
    vocab_multiple=1,
    encoders=True,
    uneven_stages=False,
    mixes_recompute="alike",
    counts_ends=False,
    ring_chunks=2,
    sends_once=False,
    step_barrier=True,
    per_operator=False,
    reduces_each=True,
    kernel="flash-2",
    memory=Memory(
        gradient_bytes=4.0,
        cast_weights=True,
        gathered_layers=2.0,
        logit_bytes=14.0,
        logit_whole_bytes=0.0,
        wgrad_bytes=0.0,
        runtime_bytes=2.5 * GIB,
        fragmentation=1.04,
        optimizer_bytes=8.0,
        step_params=1e9,
        kept={"rms_norm": 6.0, "gated": 2.0},
        source=(
            "16 N/n, two gathered layers and the root in bf16: 165 llm-foundry runs pushed to the limit, predicted "
            "0.5-1.06 of usable memory; logits 14 bytes: torch's cross-entropy in eager mode; unfused Adam holds a "
            "square root and its quotient, 8 bytes for each parameter it steps on (LlamaFactory #1221: 3.14 GiB asked "
            "for with 28.28 allocated), of 1e9 at a time under ZeRO-3 (DeepSpeed's sub_group_size); models as eager "
            "transformers has them: an RMS norm keeps its input in fp32 and its result before the weight, a gate its "
            "activation"
        ),
    ),
    overlap=Overlap(
        tp=1.0,
        cp=1.0,
        ep=1.0,
        gradients=0.19,
        weights=0.19,
        sends=1.0,
        source=(
            "FSDP traffic: what exceeds compute, and 0.19 of the rest (fitted, loose); cp: nothing hidden (assumed); "
            "the others do not occur"
        ),
    ),
    overhead=Overhead(
        step=10 * MS,
        operator=60 * US,
        memory_passes=1.6,
        jitter=0.02,
        source=(
            "memory-bound traffic of eager FSDP 1.6 (fitted); step and jitter: fitted on NVIDIA runs, weakly; "
            "operator: between Megatron of 2021 and Transformer Engine (assumed)"
        ),
    ),
    offload=Offload(
        kinds=(0, 1, 2, 3, 4, 5, 6, 7, 8),
        gradients=True,
        gradient_bytes=2.0,
        weight_bytes=2.0,
        states_from=3,
        share_from=3,
        checkpoints=True,
        source=(
            "DeepSpeed offload_optimizer (ZeRO-Offload: 16-bit gradients down, 16-bit weights up), its ratio and "
            "offload_param (ZeRO-3 only); cpu_checkpointing and its likes move the checkpoints of full recompute; "
            "share of copies that show: assumed"
        ),
    ),
    rules=choose(
        "chips",
        "has-tp",
        "has-pp",
        "has-ep",
        "encoder-sequence",
        "order",
        "ring-chunks",
        "fused-ring",
        "fp8-tokens",
        "virtual-pipeline",
        "schedule",
        "virtual-schedule",
        "batch-ranks",
        "micro-batches",
        "whole-experts",
        "experts-only",
        "sequence-parallel",
        "state-sharding",
        "shard-group",
        "hybrid-sharding",
        "shard-group-ring",
        "ring-needs-fsdp",
        "recompute",
        "offload",
        "offload-states",
        "offload-activations",
    ),
    source="Accelerate 1.15 ParallelismConfig and DeepSpeed 0.19.8 DeepSpeedConfig run on a CPU",
)
