"""What a profiler saw of a rank: how long it computed, sent, and waited in a step.

Traces are Chrome trace events as torch.profiler and the Ascend profiler write them: kernels as complete events with
``ts`` and ``dur`` in microseconds, steps as annotations called ``ProfilerStep#N``.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.errors import PlannerError
from planner.units import US, Array, Json

SENDS = re.compile(
    r"nccl|hcom_|hccl|rccl|oneccl|all_?reduce|all_?gather|reduce_?scatter|sendrecv", re.IGNORECASE
)
"""Names of kernels that send: NCCL, RCCL, HCCL and oneCCL name them after the library or the collective."""
ATTENTION = re.compile(r"flash|fmha|sdpa|attention|attn", re.IGNORECASE)
PRODUCTS = re.compile(
    r"gemm|matmul|cutlass|cublas|xmma|nvjet|tensile|mmadd|_mm_|cube", re.IGNORECASE
)
"""Names of kernels of fused attention, and of matrix products in CUTLASS, cuBLAS, Tensile and CANN."""
KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
STEP = re.compile(r"ProfilerStep#?\d+")


@dataclass(frozen=True, slots=True)
class Trace:
    """What a profiler wrote of one rank."""

    events: list[dict[str, Json]]
    """All that have a time, in microseconds."""
    kernels: list[dict[str, Json]]
    """Those of the accelerator within the steps."""
    window: tuple[float, float] | None
    """From the first step's begin to the last one's end, in microseconds; None where no step is marked."""
    steps: int


def load_trace(path: Path) -> Trace:
    """A trace with its kernels.

    Raises:
        PlannerError: the file cannot be read (F01), or holds no kernels (F02).
    """
    events = _events(path)
    steps = [_span(event) for event in events if STEP.fullmatch(str(event.get("name", "")))]
    window = _window(steps)
    kernels = [
        event for event in events if event.get("cat") in KERNELS and _number(event.get("dur"))
    ]
    inside = [e for e in kernels if window is None or window[0] <= e["ts"] < window[1]]
    if not inside:
        raise PlannerError.of(
            "F02",
            f"{path} holds no kernels of an accelerator.",
            "Profile with activities=[CPU, CUDA].",
        )
    return Trace(events, inside, window, max(1, len({round(start) for start, _ in steps})))


def by_activity(trace: Trace) -> dict[str, float]:
    """Seconds of a step by what the rank did: ``step``, ``compute``, ``exposed``, ``hidden``, ``idle``.

    ``exposed`` is what it sent while it computed nothing, ``hidden`` what it sent meanwhile; compute, exposed and idle
    sum to the step. ``attention``, ``products`` and ``others`` are the kernels of compute, where two overlap the first.
    """
    inside, window = trace.kernels, trace.window
    sends = _merged([_span(e) for e in inside if SENDS.search(str(e["name"]))])
    working = [e for e in inside if not SENDS.search(str(e["name"]))]
    works = _merged([_span(e) for e in working])
    attention = [_span(e) for e in working if ATTENTION.search(str(e["name"]))]
    products = [_span(e) for e in working if PRODUCTS.search(str(e["name"]))]
    one, two = _length(_merged(attention)), _length(_merged([*attention, *products]))
    both = _merged([*map(tuple, sends), *map(tuple, works)])
    whole = (window[1] - window[0]) if window else float(both[-1, 1] - both[0, 0])
    compute, busy, sent = (_length(spans) for spans in (works, both, sends))
    parts = {
        "step": whole,
        "compute": compute,
        "attention": one,
        "products": two - one,
        "others": compute - two,
        "exposed": busy - compute,
        "hidden": sent - (busy - compute),
        "idle": whole - busy,
    }
    return {name: value * US / trace.steps for name, value in parts.items()}


def is_trace(path: Path) -> bool:
    """Whether a file's name is that of a trace."""
    return path.name.endswith((".json", ".json.gz"))


def _events(path: Path) -> list[dict[str, Json]]:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        data = json.loads(raw)
    except OSError as error:
        raise PlannerError.of("F01", f"cannot read {path}: {error.strerror or error}.") from None
    except (ValueError, EOFError, RecursionError) as error:
        raise PlannerError.of("F02", f"{path} is no trace: {error}.") from None
    found = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(found, list):
        raise PlannerError.of("F02", f"{path} is no trace: it has no 'traceEvents'.")
    return [event for event in found if isinstance(event, dict) and _number(event.get("ts"))]


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _span(event: dict[str, Json]) -> tuple[float, float]:
    length = event.get("dur", 0)
    return float(event["ts"]), float(event["ts"]) + (float(length) if _number(length) else 0.0)


def _window(steps: list[tuple[float, float]]) -> tuple[float, float] | None:
    """From the first step's begin to the last one's end."""
    if not steps:
        return None
    return min(start for start, _ in steps), max(end for _, end in steps)


def _merged(spans: list[tuple[float, float]]) -> Array:
    """Spans of time without overlaps; ``(n, 2)``."""
    if not spans:
        return np.zeros((0, 2))
    table = np.array(sorted(spans), dtype=np.float64)
    ends = np.maximum.accumulate(table[:, 1])
    first = np.concatenate([[True], table[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([table[first, 0], ends[last]], axis=1)


def _length(spans: Array) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())
