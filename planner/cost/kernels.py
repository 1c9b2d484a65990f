"""How long kernels take on one chip. Pure functions; every argument may be an array that broadcasts."""

from __future__ import annotations

import numpy as np

from planner.hardware.chip import Chip
from planner.units import Array, Number

TILE = 64
"""Rows to which matrix products are rounded up. Source: 10-36 thousand measured shapes a chip."""
BACKWARD_MATMUL = 1 / 0.91
"""Time of an input- or weight-gradient product over the forward one. Source: fit on published training runs; 5-10 %
in SimuMax's measured products."""
BACKWARD_ATTENTION = 1 / 0.81
"""Time a FLOP of attention's backward pass over its forward pass. Source: FlashAttention figures, .81 to .9."""
CAST_BYTES = 4.5
"""Bytes moved for every element of a product's input that is quantised to fp8 (read, write, transpose).
Source: fit on fp8 against bf16 runs, 1.5 × 3 bytes."""
LOSS_FORWARD, LOSS_BACKWARD = 8.0, 10.0
"""Bytes moved a logit by the cross-entropy. Source: fit on published runs, 18 bytes in all."""


def matmul(
    chip: Chip, precision: str, groups: Number, m: Number, n: Number, k: Number, size: Number
) -> Array:
    """Seconds of ``groups`` products of (m, k) by (k, n).

    ``t = t0 + ((F / (P e))^p + (Q / (B e_m))^p)^(1/p)`` with F counting m in whole tiles: compute and memory overlap,
    more sharply the larger p.

    Args:
        chip: the chip; its ``matmul_*`` numbers.
        precision: of the product's inputs.
        groups: independent products.
        m: rows of tokens.
        n: columns written.
        k: length of the sums.
        size: bytes of inputs and outputs of all groups; fp8 casts come on top.

    Units: seconds.

    Source: fit of this form to 10-36 thousand measured shapes on eleven chips, median error 4-8 %.
    """
    rows = np.ceil(np.asarray(m, dtype=np.float64) / TILE) * TILE
    compute = (
        2.0 * groups * rows * n * k / (chip.peak_for(precision) * chip.efficiency_for(precision))
    )
    cast = CAST_BYTES * groups * m * np.asarray(k) if precision == "fp8" else 0.0
    stream = np.asarray(size, dtype=np.float64) / (chip.memory_bandwidth * chip.memory_efficiency)
    p = chip.matmul_sharpness
    high, low = np.maximum(compute, stream), np.minimum(compute, stream)
    joint = high * (1.0 + (low / np.maximum(high, 1e-30)) ** p) ** (1.0 / p)
    return np.asarray(chip.matmul_latency + joint + stream_seconds(chip, cast))


def attention(chip: Chip, precision: str, flops: Number, keys: Number, head_dim: Number) -> Array:
    """Seconds of fused attention forwards.

    The rate falls for short sequences as ``1 / (1 + 128 / S)`` and with small heads as ``D / (D + 36)``, relative to
    its value at head size 128.

    Args:
        chip: the chip; ``attention_efficiency`` is its rate at long sequences and head size 128.
        precision: fp8 recipes run attention in bf16.
        flops: FLOPs that the mask leaves.
        keys: length of the sums over keys.
        head_dim: head size.

    Units: seconds.

    Source: FlashAttention-2 and -3 figures; fit with median error 5-11 % on three chips.
    """
    wide = "bf16" if precision == "fp8" else precision
    head = np.asarray(head_dim, dtype=np.float64)
    shape = (head / (head + 36.0)) * ((128.0 + 36.0) / 128.0) / (1.0 + 128.0 / np.asarray(keys))
    rate = chip.peak_for(wide) * chip.attention_efficiency * shape
    return np.asarray(chip.matmul_latency + flops / rate)


def stream_seconds(chip: Chip, size: Number) -> Array:
    """Seconds to move ``size`` bytes through device memory, without launch.

    Units: seconds.

    Source: profile field ``memory_efficiency``.
    """
    return np.asarray(size / (chip.memory_bandwidth * chip.memory_efficiency), dtype=np.float64)


def memory_pass(chip: Chip, size: Number) -> Array:
    """Seconds of one kernel that only moves ``size`` bytes.

    Units: seconds.

    Source: profile fields ``memory_efficiency`` and ``launch``.
    """
    return np.asarray(stream_seconds(chip, size) + chip.launch, dtype=np.float64)
