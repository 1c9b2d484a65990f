"""torchtitan: FSDP2 and HSDP with tensor, pipeline, context and expert parallelism."""

from __future__ import annotations

from planner.trainers.rules import choose
from planner.trainers.trainer import EVERY_SECOND, Memory, Offload, Overhead, Overlap, Trainer
from planner.units import GIB, MS, US

TORCHTITAN = Trainer(
    name="torchtitan",
    aliases=("titan", "fsdp2-tp"),
    release="torchtitan 0.3.0",
    roles={
        "dp": ("batch",),
        "cp": ("seq",),
        "tp": ("heads", "kv_heads", "ffn", "shared_ffn", "vocab", "seq"),
        "ep": ("experts",),
        "etp": ("expert_ffn",),
        "edp": ("capacity",),
    },
    orders=(("tp", "cp", "dp", "pp"),),
    shardings=(2, 3),
    hsdp=True,
    schedules=("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"),
    sequence_parallel=(True,),
    recompute={
        "none": frozenset(),
        "selective": frozenset({EVERY_SECOND}),
        "full": frozenset({"*"}),
    },
    recompute_unfused=frozenset({"core"}),
    axes=frozenset({"dp", "cp", "tp", "pp", "ep"}),
    expert_tp=False,
    copies_kv=False,
    uneven=frozenset({"vocab"}),
    vocab_multiple=1,
    uneven_stages=True,
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
        stages_accumulate=True,
        gathered_layers=2.0,
        logit_bytes=6.0,
        logit_whole_bytes=0.0,
        wgrad_bytes=0.0,
        runtime_bytes=2.5 * GIB,
        fragmentation=1.04,
        optimizer_bytes=0.0,
        source=(
            "16 N/n and two gathered layers in bf16: torchtitan's published 8B memory within 3 %; logits 6 bytes "
            "compiled (14 in eager torch: bf16 2, fp32 4, log-softmax 4, gradient 4); gradients between stages: "
            "torch.distributed.pipelining reduces them with the last micro-batch; runtime and reserved over allocated "
            "as measured for Megatron"
        ),
    ),
    overlap=Overlap(
        tp=1.0,
        cp=1.0,
        ep=1.0,
        gradients=0.19,
        weights=0.19,
        sends=0.6,
        source=(
            "FSDP traffic: what exceeds compute, and 0.19 of the rest (fitted, loose); tp without async-TP, which is "
            "off by default (0.5 with it); cp by all-gather, ep: nothing hidden (assumed); sends as for Megatron"
        ),
    ),
    overhead=Overhead(
        step=10 * MS,
        operator=40 * US,
        memory_passes=0.9,
        jitter=0.02,
        source=(
            "step and jitter: fitted on NVIDIA runs, weakly; memory-bound traffic of compiled code 0.9 (set); "
            "operator: less than eager code, as compiled code launches fewer kernels (assumed)"
        ),
    ),
    offload=Offload(
        kinds=(0, 2),
        gradients=True,
        source=(
            "training.enable_cpu_offload: FSDP2's CPUOffloadPolicy keeps fp32 shards of weights, gradients and states "
            "in pinned memory; fp32 is copied and cast on the chip (torch 2.13 fully_shard)"
        ),
    ),
    optimizers=frozenset({"adamw"}),
    rules=choose(
        "chips",
        "order",
        "heads",
        "kv-heads",
        "widths",
        "fp8-widths",
        "tied-embedding",
        "ring-chunks",
        "fused-ring",
        "sequence-product",
        "fp8-tokens",
        "stages",
        "virtual-pipeline",
        "virtual-chunks",
        "schedule",
        "virtual-schedule",
        "whole-backward",
        "kept-weights",
        "filled-stages-torch",
        "interleaved-rounds",
        "batch-ranks",
        "micro-batches",
        "experts-only",
        "experts",
        "whole-experts",
        "expert-mesh",
        "ep-over-tp",
        "sequence-parallel",
        "state-sharding",
        "shard-group",
        "hybrid-sharding",
        "shard-group-ring",
        "recompute",
        "offload",
        "offload-states",
        "offload-activations",
    ),
    source="torchtitan 0.3.0, its parser and ParallelDims run on a CPU; issues #775, #4258, #4794",
)
