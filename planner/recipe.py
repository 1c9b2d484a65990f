"""The recipe: what training asks for, apart from model, cluster and trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]
OptimizerName: TypeAlias = Literal[
    "adamw", "sgd", "adafactor", "lion", "muon", "adamw-8bit", "adamw-bf16"
]

PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8", "fp16", "fp32")
"""What a plan may be asked for; measured runs also come in ``fp4``, which no trainer's file of ours can ask for."""
QUANTISED: Mapping[str, float] = {"fp8": 1.0, "fp4": 0.5625}
"""Bytes of an element of a product's quantised input, scales included; all else stays in bf16. fp4: 16 numbers share
a one-byte scale."""
MOMENT_BYTES: dict[OptimizerName, float] = {
    "adamw": 8.0,
    "adamw-bf16": 4.0,
    "adamw-8bit": 2.0,
    "sgd": 4.0,
    "lion": 4.0,
    "muon": 4.0,
    "adafactor": 0.0,
}
"""Bytes a parameter of optimizer moments: AdamW keeps two fp32 numbers, SGD with momentum, Lion and Muon one, Adafactor
without momentum one a row and one a column of a matrix, which is next to nothing (arXiv 1804.04235)."""
DEFAULT_BATCH_TOKENS = 4 * 2**20
"""Tokens in a global batch where the user names none."""
QUANTISED_BITS = {16: 16.0, 8: 8.0, 4: 4.127}
"""Bits of a frozen weight as it is stored, quantisation constants included. Source: QLoRA (arXiv 2305.14314), section
3: double quantisation leaves 0.127 bits a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters beside frozen weights."""

    rank: int = 16
    targets: tuple[str, ...] = ("attention",)
    """Products that have one: words of ``planner.graph.adapters``."""
    bits: int = 16
    """Bits in which the frozen weights are stored: 16, 8, or 4 (QLoRA)."""

    @property
    def described(self) -> str:
        """In words: ``rank 16 on attention, the other weights frozen in 16 bits``."""
        return f"rank {self.rank} on {', '.join(self.targets)}, other weights frozen in {self.bits} bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What training asks for. It decides convergence; the plan only decides execution."""

    global_batch: int
    """Sequences in one optimizer step."""
    seq: int
    """Tokens in one sequence."""
    precision: Precision = "bf16"
    optimizer: OptimizerName = "adamw"
    fused_attention: bool = True
    """Attention as one fused kernel (FlashAttention and its like)."""
    lora: Lora | None = None
    """Adapters; None where all weights train."""
    master_weights: bool = True
    """Low-precision training keeps fp32 weights; without them the optimizer updates the low-precision ones."""

    @property
    def tokens(self) -> int:
        """Tokens in one optimizer step."""
        return self.global_batch * self.seq

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight in compute precision (fp8 training keeps bf16 weights)."""
        return 4.0 if self.precision == "fp32" else 2.0

    @property
    def activation_bytes(self) -> float:
        """Bytes of an element of an activation."""
        return 4.0 if self.precision == "fp32" else 2.0

    @property
    def frozen_bytes(self) -> float:
        """Bytes of a frozen weight as it is stored."""
        if self.lora is None or self.lora.bits == 16:
            return self.weight_bytes
        return QUANTISED_BITS[self.lora.bits] / 8.0
