"""A chip: what it holds, how fast it is on paper, and what fraction of that a training run reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.errors import PlannerError, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One accelerator as training sees it: a GPU, an NPU, a TPU chip, or one die where dies are ranks."""

    name: str
    """Canonical name, such as ``h100-sxm``; the profile's file name."""
    vendor: str = ""
    """Who makes it: ``nvidia``, ``amd``, ``google``, ``huawei``, ``intel``."""
    family: str = ""
    """Generation, such as ``hopper``."""
    memory_bytes: float
    """Bytes that a process can really allocate: the label minus what driver and firmware keep."""
    memory_bandwidth: float
    """Bytes/s of device memory, datasheet."""
    peak: Mapping[str, float] = field(hash=False)
    """FLOP/s by precision (``bf16``, ``fp16``, ``fp8``, ``fp4``, ``fp32``), dense, datasheet."""
    matmul_efficiency: Mapping[str, float] = field(hash=False)
    """Fraction of peak by precision that large products sustain in a real training run."""
    matmul_latency: float
    """Seconds that a product takes however small it is (t0 of the GEMM time model)."""
    matmul_sharpness: float
    """Exponent p in ``t = t0 + (compute^p + memory^p)^(1/p)``: large p is a sharp roofline, 1 a plain sum."""
    attention_efficiency: float
    """Fraction of 16-bit peak of fused causal attention: forward, long sequence, head dim 128."""
    memory_efficiency: float
    """Fraction of ``memory_bandwidth`` that streaming kernels reach."""
    launch: float
    """Seconds between two kernels that the host queues back to back."""
    watts: float | None = None
    """Board power limit in watts, where known."""
    price: float | None = None
    """Dollars a chip and hour, where a public offer is known."""
    cluster: str = ""
    """The cluster profile whose wiring is usual for this chip."""
    measured: str = ""
    """Which efficiency numbers rest on a measurement, and from which chip the others are borrowed."""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Where each number comes from, by profile key."""

    @property
    def price_source(self) -> str:
        """Whose offer ``price`` is, and when."""
        return self.sources.get("price_per_hour", "")

    def peak_for(self, precision: str) -> float:
        """FLOP/s on paper at a precision.

        Raises:
            PlannerError: the chip has no units for that precision; the message names those it has.
        """
        if precision not in self.peak:
            raise PlannerError.of(
                "C04", f"{self.name} has no {precision}. It has {listed(list(self.peak), 'and')}."
            )
        return self.peak[precision]

    def efficiency_for(self, precision: str) -> float:
        """Fraction of ``peak_for(precision)`` that large products sustain.

        Raises:
            PlannerError: the chip has no units for that precision.
        """
        self.peak_for(precision)
        return self.matmul_efficiency[precision]
