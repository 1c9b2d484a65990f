"""The recipe: what training asks for, apart from model, cluster and trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]
OptimizerName: TypeAlias = Literal["adamw", "sgd", "adafactor", "adamw-8bit", "adamw-bf16"]

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
    "adafactor": 0.0,
}
"""Bytes a parameter of optimizer moments: AdamW keeps two fp32 numbers, SGD with momentum one, Adafactor without
momentum one a row and one a column of a matrix, which is next to nothing (Shazeer and Stern, arXiv 1804.04235)."""
DEFAULT_BATCH_TOKENS = 4 * 2**20
"""Tokens in a global batch where the user names none."""


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
