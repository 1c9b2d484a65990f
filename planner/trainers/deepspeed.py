"""DeepSpeed: ZeRO with AutoTP, which splits the layers of a dense model, or with Ulysses, which splits its sequence."""

from __future__ import annotations

from dataclasses import replace

from planner.trainers.fsdp import FSDP
from planner.trainers.rules import choose

DEEPSPEED = replace(
    FSDP,
    name="deepspeed",
    aliases=("zero", "autotp", "ulysses"),
    release="DeepSpeed 0.19.8",
    roles={
        "dp": ("batch",),
        "cp": ("seq",),
        "tp": ("heads", "kv_heads", "ffn", "vocab"),
        "edp": ("capacity",),
    },
    apart={("cp", "attn.core"): ("heads",), ("tp", "lookup"): ()},
    hsdp=False,
    axes=frozenset({"dp", "cp", "tp"}),
    ring_chunks=1,
    memory=replace(
        FSDP.memory,
        gradient_bytes=2.0,
        cast_weights=False,
        source=(
            "as FSDP, but with bf16 weights and gradients beside the sharded fp32 copy: without grad_accum_dtype a "
            "gradient has the precision of the model (DeepSpeed 0.19.8, engine.get_data_types)"
        ),
    ),
    rules=choose(
        *(rule.name for rule in FSDP.rules if rule.name not in ("has-tp", "fused-ring", "ring-needs-fsdp")),
        "heads",
        "kv-heads",
        "widths",
        "ulysses-heads",
        "autotp-dense",
        "autotp-or-ulysses",
    ),
    source=(
        "DeepSpeed 0.19.8, DeepSpeedConfig and AutoTPConfig run on a CPU: AutoTP with any ZeRO stage, embedding whole "
        "unless tied, head split by vocabulary (auto_tp.py); UlyssesSPAttentionHF (arXiv 2309.14509)"
    ),
)  # fmt: skip
