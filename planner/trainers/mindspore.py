"""MindFormers on MindSpore, and its likes on Ascend: dp, mp (tp), cp, pipeline, experts, optimizer parallelism."""

from __future__ import annotations

from planner.trainers.rules import choose
from planner.trainers.trainer import Memory, Offload, Overhead, Overlap, Trainer
from planner.units import GIB, MS, US

MINDSPORE = Trainer(
    name="mindspore",
    aliases=("mindformers", "ms"),
    release="MindFormers 1.9.0 on MindSpore 2.9-2.10",
    roles={
        "dp": ("batch",),
        "cp": ("seq",),
        "tp": ("heads", "kv_heads", "ffn", "shared_ffn", "vocab", "seq"),
        "ep": ("experts",),
        "etp": ("expert_ffn",),
        "edp": ("capacity",),
    },
    orders=(("tp", "cp", "dp", "pp"),),
    shardings=(0, 1),
    hsdp=True,
    schedules=("1f1b", "interleaved", "zbv"),
    sequence_parallel=(False, True),
    recompute={
        "none": frozenset(),
        "selective": frozenset({"norm", "activation"}),
        "full": frozenset({"*"}),
    },
    recompute_unfused=frozenset({"core"}),
    axes=frozenset({"dp", "cp", "tp", "pp", "ep"}),
    expert_tp=True,
    copies_kv=False,
    uneven=frozenset(),
    vocab_multiple=1,
    encoders=True,
    uneven_stages=True,
    mixes_recompute="stages",
    counts_ends=False,
    ring_chunks=1,
    sends_once=False,
    step_barrier=True,
    per_operator=True,
    reduces_each=True,
    kernel="best",
    memory=Memory(
        gradient_bytes=4.0,
        gradient_buffer=False,
        cast_weights=False,
        gathered_layers=0.0,
        logit_bytes=10.0,
        logit_whole_bytes=0.0,
        wgrad_bytes=0.0,
        runtime_bytes=2.0 * GIB,
        fragmentation=1.0,
        optimizer_bytes=0.0,
        source=(
            "bf16 6 + 12/d bytes a parameter: 41 MindSpeed jobs, allocated memory median 0.99 of it; logits 10 bytes: "
            "upper bound of Megatron without fused loss; runtime: published configurations give MindSpore 59 of "
            "61 GiB, and graph mode plans memory before it runs; gradients are sharded as they are made (optimizer "
            "parallelism: 13 B models ran on 8 chips of 64 GiB), unless micro-batches accumulate"
        ),
    ),
    overlap=Overlap(
        tp=1.0,
        cp=1.0,
        ep=1.0,
        gradients=0.5,
        weights=0.5,
        sends=0.6,
        source=(
            "gradients half exposed: the model behind 108 dense 910B rows; tp without MC2 (releases that have it are "
            "10-20 % faster, batch sizes changed too); the others assumed"
        ),
    ),
    overhead=Overhead(
        step=10 * MS,
        operator=20 * US,
        memory_passes=1.0,
        jitter=0.02,
        source="step and jitter from NVIDIA rows; graph mode launches from the device, so little a layer (assumed)",
    ),
    offload=Offload(
        kinds=(0, 3),
        source=(
            "MindFormers swap_config (layer_swap) prefetches activations; taken without recompute and on one stage, "
            "as nothing measured tells more"
        ),
    ),
    elsewhere={
        "nvidia": "its last plugins for GPUs are of CUDA 11.6",
        **dict.fromkeys(("amd", "google", "intel")),
    },
    lacks=frozenset({"fp8"}),
    optimizers=frozenset({"adamw", "adamw-bf16", "adamw-8bit", "sgd"}),
    rules=choose(
        "chips",
        "whole-servers",
        "power-of-two-tp",
        "power-of-two-cp",
        "order",
        "encoder-sequence",
        "heads",
        "kv-heads",
        "widths",
        "expert-widths",
        "ring-chunks",
        "fused-ring",
        "token-shards",
        "stages",
        "virtual-pipeline",
        "virtual-chunks",
        "schedule",
        "virtual-schedule",
        "filled-stages",
        "batch-ranks",
        "micro-batches",
        "experts-only",
        "experts",
        "expert-mesh",
        "sequence-parallel",
        "state-sharding",
        "shard-group",
        "hybrid-sharding",
        "recompute",
        "offload",
        "offload-states",
        "offload-activations",
    ),
    source="MindFormers 1.9.0 rules and MindSpore 2.10 compiler run on a CPU with simulated devices",
)
