"""Facts of a run's software that no field of a task holds, read off its row."""

from __future__ import annotations

import math
import re

from planner.calibrate.modules import recomputed_modules
from planner.calibrate.remat import kept_products
from planner.calibrate.runs import Run
from planner.calibrate.software import Software
from planner.units import Json

_IN_2024 = re.compile(r"(^|[^0-9])(20)?24(0[1-9]|1[0-2])([^0-9]|$)")
"""A year and month of 2024 in a name, as in ``llama3_h100_202412``."""
_YEAR = re.compile(r"\b20\d\d\b")
_COMPILED = re.compile(r"compile(?! off)")
_CAPTURED = re.compile(r"mlperf training v[4-9]|cuda.?graph|_cg[_.]")
"""Runs whose host replays a captured graph: NVIDIA's MLPerf submissions do since 4.0, others say so."""
_CONTAINER = re.compile(r"(?:container|release) v?(\d\d\.\d\d)", re.IGNORECASE)
FUSED_SINKS = "26.08"
"""NVIDIA's container from which attention with learned sinks runs as one fast kernel."""
CHUNK_BYTES = 6.0
"""Bytes a logit of a chunk whose loss is made: bf16, and fp32 in which it is summed."""
_PERFORMANCE = re.compile("performance summary|benchmarking recipes")
"""Sources whose runs are of Megatron-Bridge's performance recipes, which take TransformerEngine's cross-entropy: it
writes the gradient over the logits, in bf16. Source: cross_entropy_impl of _benchmark_common; other recipes differ."""
_BEFORE_OVERLAP = ("baseline", "ptb", "ptb-swa", "tp-ovl")
_BLOCKING = re.compile(r"cuda_launch_blocking ?= ?1", re.IGNORECASE)
_HUNG = 320
"""Chips from which BLOOM's runs hung unless the host waited for every kernel, so that all of them set
CUDA_LAUNCH_BLOCKING=1. Source: bigscience, train/tr11-176B-ml, chronicles-prequel.md and tr11-176B-ml.slurm."""


def traits_of(run: Run, software: Software) -> dict[str, Json]:
    """What a run's row says of its software, by name; what :func:`planner.calibrate.as_run.as_run` looks at.

    On TPUs XLA fuses what precedes a product into it, so that the gradient of the logits is never stored: logits of
    32,768 tokens and 262,144 words are 16 GiB in bf16 (Gemma 3 12B), and a v6e has 31.25.
    """
    overlap = (run.parallel.overlap or "").lower()
    fsdp = run.parallel.fsdp or {}
    everything = f"{run.parallel.framework} {overlap} {run.remarks}".lower()
    return {
        "software": software.name,
        "attention": software.attention,
        "norm_kernel": "rms kernel" in str(run.parallel.other("kernel") or "").lower(),
        "eager_scores": run.parallel.other("kernel") == "torch",
        "tp_overlap": any(
            w in overlap for w in ("tp comm", "userbuffers", "async tp", "mc2", "tp_comm")
        )
        and "disabled" not in overlap,
        "tp_exposed": "tp overlap" in overlap and "disabled" in overlap,
        "no_overlap": overlap.startswith("none"),
        "pure_bf16": fsdp.get("mp_mode") == "PURE",
        "bf16_gradients": "bf16 gradient reduction" in run.remarks or fsdp.get("mp_mode") == "PURE",
        "ep_overlap": overlap.startswith("ep-overlap-on") or "deepep" in overlap,
        "dispatcher": next((w for w in ("hybridep", "deepep") if w in everything), ""),
        "compiled": bool(_COMPILED.search(run.remarks.lower())) or software.name == "jax",
        "captured": software.name == "nemo"
        and bool(_CAPTURED.search(f"{run.source.lower()} {everything}")),
        "before_2023": (_YEAR.findall(run.source) or ["2022"])[-1] < "2023",
        "early_sinks": "gpt-oss" in run.model.name.lower() and _container(run) < FUSED_SINKS,
        "in_2024": bool(_IN_2024.search(f"{run.id} {run.other('url')}")),
        "keeps": sorted(kept_products(run)) if software.name == "jax" else [],
        "recomputes": sorted(recomputed_modules(run)),
        "release": run.source,
        "bf16_optimizer": software.name == "megatron-deepspeed"
        and "fp16" not in (run.parallel.precision or "").lower(),
        "blocking": _blocks(run),
        "exchanges": _exchanges(run, software),
        "fused_loss": software.name == "jax" and (run.hardware.chip_key or "").startswith("tpu"),
        "liger": _liger(run),
        "in_place_loss": (
            "bridge" in (run.parallel.framework or "").lower()
            and bool(_PERFORMANCE.search(run.source.lower()))
        )
        or ("fused ce" in run.remarks.lower() and "transformerengine" in everything),
        "nemo": software.name == "nemo",
        "exchanges_heads": run.parallel.other("cp_comm") == "a2a",
        "zero_bubble": (run.parallel.schedule or "").startswith("zb-"),
    }


def _liger(run: Run) -> float:
    """Bytes a logit with Liger's kernels, 0 without: a chunk, of as many as the vocabulary is wider than the stream.

    Its norms and gates keep what fused ones do. Source: linkedin/Liger-Kernel, fused_linear_cross_entropy.py
    (``inc_factor``), ops/rms_norm.py and swiglu.py.
    """
    vocab, hidden = run.model.vocab, run.model.hidden
    named = "liger" in (run.parallel.framework or "").lower()
    return CHUNK_BYTES / math.ceil(vocab / hidden) if named and vocab and hidden else 0.0


def _exchanges(run: Run, software: Software) -> bool:
    """Whether interleaved stages wait for what they exchange: Megatron-LM before 2023, and later runs that say so.

    Source: launch file of sail-sg's fork (examples/pretrain_zero_bubble.sh); MegaScale's ablation, table 3, whose rows
    up to the overlap of tensor parallelism do not have that of the pipeline.
    """
    if software.name in ("megatron-2021", "megatron-2022"):
        return True
    if "sail-sg" in (run.parallel.framework or "").lower():
        return True
    return run.parallel.overlap in _BEFORE_OVERLAP and "MegaScale" in run.source


def _container(run: Run) -> str:
    """Year and month of NVIDIA's container, where the source names it; else later than all."""
    found = _CONTAINER.search(f"{run.source} {run.remarks}")
    return found[1] if found else "99"


def _blocks(run: Run) -> bool:
    """Whether the host waited for every kernel, as the row says or its source does."""
    hung = "BLOOM" in run.source and (run.hardware.num_chips or 0) >= _HUNG
    return hung or bool(_BLOCKING.search(run.remarks))
