"""Megatron-LM / Megatron-Core."""

from __future__ import annotations

from planner.trainers.rules import choose
from planner.trainers.trainer import Memory, Offload, Overhead, Overlap, Trainer
from planner.units import GIB, MIB, MS, US

MEGATRON = Trainer(
    name="megatron",
    aliases=("megatron-lm", "megatron-core", "mcore", "megatron-bridge", "nemo"),
    release="Megatron-LM 0.19.2",
    roles={
        "dp": ("batch",),
        "cp": ("seq",),
        "tp": ("heads", "kv_heads", "ffn", "shared_ffn", "vocab", "seq"),
        "ep": ("experts",),
        "etp": ("expert_ffn",),
        "edp": ("capacity",),
    },
    orders=(("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")),
    shardings=(0, 1),
    hsdp=True,
    schedules=("1f1b", "interleaved"),
    sequence_parallel=(False, True),
    recompute={
        "none": frozenset(),
        "selective": frozenset({"norm", "expert_activation", "mla_up"}),
        "full": frozenset({"*"}),
    },
    recompute_unfused=frozenset({"core"}),
    axes=frozenset({"dp", "cp", "tp", "pp", "ep"}),
    expert_tp=True,
    copies_kv=True,
    uneven=frozenset({"vocab"}),
    vocab_multiple=128,
    encoders=True,
    uneven_stages=True,
    mixes_recompute="count",
    counts_ends=True,
    ring_chunks=2,
    sends_once=True,
    step_barrier=True,
    per_operator=False,
    reduces_each=True,
    kernel="best",
    bucket_per_rank=2e6,
    memory=Memory(
        gradient_bytes=4.0,
        cast_weights=False,
        gathered_layers=0.0,
        logit_bytes=6.0,
        logit_whole_bytes=0.0,
        wgrad_bytes=5.5,
        standing_bytes=2.0,
        workspace_bytes=64.0 * MIB,
        weighs_inside=True,
        runtime_bytes=2.5 * GIB - 64.0 * MIB,
        fragmentation=1.04,
        optimizer_bytes=0.0,
        source=(
            "bf16 6 + 12/d bytes a parameter: 43 SimuMax rows on B200, mean error of memory 0.2 %; what stands for "
            "gradients: a tensor a shape of weight that Transformer Engine hands to autograd (get_dummy_wgrad), "
            "Megatron's head too; workspaces: 32 MiB each of torch's and of its cuBLAS; weights of the "
            "router multiply within the experts' activation (0.12); logits with fused cross-entropy, 6 (10 without); "
            "reserved over allocated 1.04: median of SimuMax; runtime: with workspaces the low end of 2.5-4 GiB that "
            "558 Aleph fit-or-OOM labels leave on an A100"
        ),
    ),
    overlap=Overlap(
        tp=0.5,
        cp=0.2,
        ep=1.0,
        gradients=0.3,
        weights=0.3,
        sends=0.6,
        source=(
            "tp with user buffers (--tp-comm-overlap): fitted, range 0.4-0.75; gradients and weights "
            "(--overlap-grad-reduce, --overlap-param-gather): H100 rows do as well with 0.3 as with more; sends: "
            "fitted; ep: without --overlap-moe-expert-parallel-comm, whatever tp does; cp assumed, no row shows it"
        ),
    ),
    overhead=Overhead(
        step=10 * MS,
        operator=100 * US,
        memory_passes=1.0,
        jitter=0.02,
        source=(
            "step and jitter: fitted on NVIDIA runs, weakly; operator: 5.3 ms forwards and backwards for a "
            "Transformer Engine layer at tp 8, 6.8 ms for one of Qwen3-30B, over their operators and collectives; "
            "memory-bound traffic 1.0 by definition of the fit"
        ),
    ),
    offload=Offload(
        kinds=(0, 1, 3, 4, 6, 7, 8),
        source=(
            "--optimizer-cpu-offload with the distributed optimizer and --optimizer-offload-fraction, gradients kept "
            "in the chip's buffer; "
            "--cpu-offloading-num-layers: one stage, no recompute, no CUDA graphs (transformer_config); share of "
            "copies that show: assumed"
        ),
    ),
    elsewhere={
        "huawei": "MindSpeed-LLM is its port (--trainer mindspeed)",
        "google": "MaxText divides models alike (export --to maxtext)",
        "intel": "Intel's fork for Gaudi does",
    },
    optimizers=frozenset({"adamw", "adamw-bf16", "adamw-8bit", "sgd"}),
    rules=choose(
        "chips",
        "order",
        "stages-inside-data",
        "encoder-sequence",
        "encoder-stages",
        "heads",
        "kv-heads",
        "widths",
        "expert-widths",
        "fp8-widths",
        "ring-chunks",
        "fused-ring",
        "token-shards",
        "fp8-tokens",
        "stages",
        "virtual-pipeline",
        "virtual-chunks",
        "schedule",
        "virtual-schedule",
        "interleaved-batch",
        "batch-ranks",
        "micro-batches",
        "experts-only",
        "experts",
        "expert-mesh",
        "expert-sequence",
        "expert-instances",
        "sequence-parallel",
        "state-sharding",
        "shard-group",
        "hybrid-sharding",
        "recompute",
        "offload",
        "offload-states",
        "offload-activations",
    ),
    source="Megatron-LM 0.19.2, its argument parser and parallel_state run on a CPU with fake groups",
)
