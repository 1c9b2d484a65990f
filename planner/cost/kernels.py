"""How long kernels take on one chip. Pure functions; every argument may be an array that broadcasts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.hardware.chip import Chip
from planner.recipe import QUANTISED
from planner.units import Array, Number

TILE = 64
"""Rows to which matrix products are rounded up. Source: 10-36 thousand measured shapes a chip."""
BACKWARD_MATMUL = 1 / 0.91
"""Time of an input- or weight-gradient product over the forward one. Source: fit on published training runs; 5-10 %
in SimuMax's measured products."""
BACKWARD_ATTENTION = 1 / 0.81
"""Time a FLOP of attention's backward pass over its forward pass. Source: FlashAttention figures, .81 to .9."""
SHORT_SUM = 64.0
"""Length of sums at which a 16-bit product runs at half its rate: ``k / (k + 64)``; what starts and ends a tile takes
as long in narrower ones, whose rate is a multiple. Source: row slices of 8k-token products,
k = 512 at 0.78 to 0.84 and k = 1024 at 0.88 to 0.93 of the rate at k = 4096 (A100, H100)."""
GROUPED = {"ascend": 2.0, "blackwell": 1.25}
"""Time of grouped 16-bit products with many rows over that of one product, by chip family; 1 elsewhere, as grouped
sweeps on NVIDIA's chips show. Source: mixtures on the 910B run at 0.45 of dense models; Transformer Engine's grouped
products reach .37, .31 and .25 of B200's peak in training (forward, gradients of inputs and of weights) where one
product reaches .49, .49 and .46; few rows and adding up in fp32 explain 1.15 and 1.24 of that, 1.25 is left. On A100,
.65, .67 and .56 against .74, .74 and .70, nothing is."""
ALIGNED = 8
MISALIGNED = 26.0
"""How many times slower the batched products of unfused attention sum where the head size is no multiple of 8, which
tensor cores need of 16-bit rows; what starts and ends a tile takes what it always takes. Source: 17 of BLOOM's layouts
with heads of 150 that are not among the measured runs (bigscience, chronicles-prequel.md), about 9 TFLOPS on A100."""
FEW_ROWS = 150.0
"""Rows of an expert at which a grouped product runs at half its rate. Source: grouped products of H100, 0.17 of peak at
64 rows, 0.49 at 256, 0.61 at 512, 0.64 to 0.8 beyond."""
ATTENTION_KERNELS: dict[str, dict[str, float]] = {
    "best": {},
    "flash-2": {"hopper": 0.62, "blackwell": 0.62},
    "flash-1": {"ampere": 0.44, "hopper": 0.34, "blackwell": 0.34},
    "triton": {"ampere": 0.62, "hopper": 0.62 * 0.62, "blackwell": 0.62 * 0.62},
    "early-sinks": {"hopper": 0.115, "blackwell": 0.115},
}
"""Rate of a kernel generation over the best of each chip family; 1 where it is the best there. Source: fit on published
training runs; forward and backward at 0.33 of peak on A100 (Triton's), 0.185 on H100 (FlashAttention-1); the second is
1.7 to 3.0 times as fast as FlashAttention-1 on A100 (arXiv 2307.08691, section 4.1), here their geometric mean;
attention with learned sinks before cuDNN's fused kernel had them (9.18; verl issue 5224): gpt-oss on GB200 and B300.
Triton's on Hopper is to FlashAttention-2 what it is on A100: neither uses what Hopper brought."""
CAST_BYTES = 4.5
"""Bytes moved for every element of a product's input that is quantised to fp8 or fp4 (read, write, transpose).
Source: fit on fp8 against bf16 runs, 1.5 × 3 bytes."""
UNTURNED = 0.75
"""Share of them that is moved where the weight is frozen: the transposed copy is for its gradient alone."""
LOSS: Mapping[str, tuple[float, float]] = {
    "fused": (8.0, 10.0),
    "torch": (22.0, 14.0),
    "megatron": (38.0, 14.0),
}
"""Bytes moved a logit by the cross-entropy, forwards and backwards. Source: fused: fit on published runs. The others
are the passes that the code makes: a cast to fp32 6, softmax and its sum 16 (torch); Megatron's parallel one a cast 6,
maximum 4, difference 8, exponentials 8, sum 4, quotient 8; both backwards the product 8 and a cast 6. Stages of a 4B
model with 256,000 words spend 26 ms forwards at the head, 13 in the product (arXiv 2411.05288, artifact)."""


def matmul(
    chip: Chip,
    precision: str,
    groups: Number,
    m: Number,
    n: Number,
    k: Number,
    size: Number,
    *,
    idle_rows: float = 0.0,
    slowed: float = 1.0,
    misaligned: float = 1.0,
    cast_bytes: float = CAST_BYTES,
) -> Array:
    """Seconds of ``groups`` products of (m, k) by (k, n).

    ``t = t0 + ((F / (P e))^p + (Q / (B e_m))^p)^(1/p)`` with F counting m in whole tiles: compute and memory overlap,
    more sharply the larger p. Short sums run slower, ``e k / (k + 64)``.

    Args:
        chip: the chip; its ``matmul_*`` numbers.
        precision: of the product's inputs.
        groups: independent products.
        m: rows of tokens.
        n: columns written.
        k: length of the sums.
        size: bytes of inputs and outputs of all groups; fp8 casts come on top.
        idle_rows: rows whose time every group loses: ``FEW_ROWS`` for the products of many experts.
        slowed: how many times slower the units run than in one product: ``GROUPED``.
        misaligned: how many times slower they sum than over aligned rows: ``MISALIGNED``.
        cast_bytes: bytes moved for every element of the rows that is quantised.

    Units: seconds.

    Source: fit of this form to 10-36 thousand measured shapes on eleven chips, median error 4-8 %.
    """
    rows = np.ceil(np.asarray(m, dtype=np.float64) / TILE) * TILE
    rate = chip.peak_for(precision) * chip.efficiency_for(precision) / slowed
    wide = chip.peak.get("bf16") or chip.peak.get("fp16") or chip.peak_for(precision)
    start = SHORT_SUM * max(1.0, chip.peak_for(precision) / wide)
    compute = 2.0 * groups * (rows + idle_rows) * n * (misaligned * np.asarray(k) + start) / rate
    cast = cast_bytes * groups * m * np.asarray(k) if precision in QUANTISED else 0.0
    stream = np.asarray(size, dtype=np.float64) / (chip.memory_bandwidth * chip.memory_efficiency)
    p = chip.matmul_sharpness
    high, low = np.maximum(compute, stream), np.minimum(compute, stream)
    joint = high * (1.0 + (low / np.maximum(high, 1e-30)) ** p) ** (1.0 / p)
    return np.asarray(chip.matmul_latency + joint + stream_seconds(chip, cast))


def attention(
    chip: Chip,
    precision: str,
    flops: Number,
    keys: Number,
    head_dim: Number,
    kernel: str = "best",
) -> Array:
    """Seconds of fused attention forwards.

    The rate falls for short sequences as ``1 / (1 + 128 / S)`` and with small heads as ``D / (D + 36)``, relative to
    its value at head size 128.

    Args:
        chip: the chip; ``attention_efficiency`` is its rate at long sequences and head size 128.
        precision: fp8 recipes run attention in bf16.
        flops: FLOPs that the mask leaves.
        keys: length of the sums over keys.
        head_dim: head size.
        kernel: generation of the kernel, of ``ATTENTION_KERNELS``.

    Units: seconds.

    Source: FlashAttention-2 and -3 figures; fit with median error 5-11 % on three chips.
    """
    wide = "bf16" if precision in QUANTISED else precision
    head = np.asarray(head_dim, dtype=np.float64)
    shape = (head / (head + 36.0)) * ((128.0 + 36.0) / 128.0) / (1.0 + 128.0 / np.asarray(keys))
    best = chip.peak_for(wide) * chip.attention_efficiency
    rate = best * ATTENTION_KERNELS[kernel].get(chip.family, 1.0) * shape
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
