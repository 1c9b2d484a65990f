"""Rules of the sequence: the grain at which cp and sequence parallelism may cut it."""

from __future__ import annotations

import numpy as np

from planner.candidates import Candidates
from planner.errors import Fault, listed
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import around, closest, divisors, every, value
from planner.units import BoolArray, IntArray

FP8_ROWS = 16
"""fp8 products want the rows of a rank in multiples of this."""


def ring_grain(task: Task, cp: IntArray) -> IntArray:
    """What context parallelism wants the sequence to be a multiple of."""
    return np.where(cp > 1, task.trainer.ring_chunks * cp, 1)


def _ring(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = task.recipe.seq % ring_grain(task, candidates.cp) == 0
    return keeps


def _grain_fault(task: Task, shown: str, grain: int, better: str) -> Fault:
    seq = task.recipe.seq
    return Fault(
        "S01",
        f"sequence {seq} cannot be cut for {shown}: it must be a multiple of {grain}.",
        (f"Nearest sequence: {listed(around(seq, grain))}. {better}",),
    )


def _ring_fault(task: Task, candidates: Candidates) -> Fault:
    cp, chunks = value(candidates, "cp"), task.trainer.ring_chunks
    fits = [c for c in divisors(task.recipe.seq) if task.recipe.seq % (chunks * c) == 0]
    better = f"With {task.recipe.seq}, cp {listed(closest({1, *fits}, cp, 5))} can."
    return _grain_fault(task, f"cp {cp}", chunks * cp, better)


RING = Rule(
    name="ring-chunks",
    family="sequence",
    sentence="The sequence is a multiple of cp, or of 2 · cp where causal work is balanced over the ring.",
    needs=frozenset({"cp"}),
    keeps=_ring,
    fault=_ring_fault,
    source="Megatron-LM 0.19.2: 'seq-length not a multiple of 2*cp'; flash-linear-attention #1093 (10 tokens on "
    "3 ranks lose one silently)",
)


def _token_grain(task: Task, tp: IntArray, cp: IntArray) -> IntArray:
    grain: IntArray = np.lcm(ring_grain(task, cp), cp * tp)
    return grain


def _token_shards(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    grain = _token_grain(task, c.tp, c.cp)
    keeps: BoolArray = ~c.sp | (task.recipe.seq % grain == 0)
    return keeps


def _token_shards_fault(task: Task, candidates: Candidates) -> Fault:
    tp, cp = value(candidates, "tp"), value(candidates, "cp")
    shown = f"cp {cp} × tp {tp}" if cp > 1 else f"tp {tp}"
    grain = int(_token_grain(task, candidates.tp, candidates.cp)[0])
    both = "Or turn sequence parallelism off."
    better = both if False in task.trainer.sequence_parallel else ""
    return _grain_fault(task, f"{shown} with sequence parallelism", grain, better)


TOKEN_SHARDS = Rule(
    name="token-shards",
    family="sequence",
    sentence="With sequence parallelism the sequence is a multiple of lcm(2 · cp, cp · tp).",
    needs=frozenset({"tp", "cp", "sp"}),
    keeps=_token_shards,
    fault=_token_shards_fault,
    source="NeMo-RL #3563, the exact padding factor",
)


def _sequence_product(task: Task, candidates: Candidates) -> BoolArray:
    c = candidates
    keeps: BoolArray = (c.tp * c.cp == 1) | (task.recipe.seq % (2 * c.tp * c.cp) == 0)
    return keeps


def _sequence_product_fault(task: Task, candidates: Candidates) -> Fault:
    tp, cp = value(candidates, "tp"), value(candidates, "cp")
    return _grain_fault(task, f"cp {cp} × tp {tp}", 2 * tp * cp, "")


SEQUENCE_PRODUCT = Rule(
    name="sequence-product",
    family="sequence",
    sentence="torchtitan wants the sequence to be a multiple of tp · 2 · cp.",
    needs=frozenset({"tp", "cp"}),
    keeps=_sequence_product,
    fault=_sequence_product_fault,
    source="torchtitan distributed/parallel_dims.py, seq_len_divisor",
)


def _rows(task: Task, c: Candidates) -> IntArray:
    """Rows that one rank holds; floors where the sequence does not divide (other rules say so)."""
    return c.micro_batch * task.recipe.seq // (c.cp * np.where(c.sp, c.tp, 1))


def _fp8_rows(task: Task, candidates: Candidates) -> BoolArray:
    if task.recipe.precision != "fp8":
        return every(candidates.sp)
    keeps: BoolArray = _rows(task, candidates) % FP8_ROWS == 0
    return keeps


def _fp8_rows_fault(task: Task, candidates: Candidates) -> Fault:
    c = candidates
    parts = value(c, "cp") * (value(c, "tp") if c.sp[0] else 1)
    seq, rows = task.recipe.seq, int(_rows(task, c)[0])
    grain = int(np.lcm(FP8_ROWS * parts, value(c, "micro_batch"))) // value(c, "micro_batch")
    return Fault(
        "S02",
        f"fp8 needs a multiple of 16 tokens on a rank; sequence {seq} over {parts} ranks leaves {rows}.",
        (f"Nearest sequence: {listed(around(seq, grain))}. Or use bf16.",),
    )


FP8_TOKENS = Rule(
    name="fp8-tokens",
    family="sequence",
    sentence="In fp8 the tokens of a micro-batch on one rank are a multiple of 16.",
    needs=frozenset({"tp", "cp", "micro_batch", "sp"}),
    keeps=_fp8_rows,
    fault=_fp8_rows_fault,
    source="NeMo #8869: fp8 products assert height % 8 and width % 16",
)


def _fused(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = np.logical_or(candidates.cp == 1, task.recipe.fused_attention)
    return keeps


def _fused_fault(task: Task, candidates: Candidates) -> Fault:
    cp = value(candidates, "cp")
    what = f"{task.trainer.name} cannot run cp {cp} without fused attention."
    return Fault("T01", what, ("It can with cp 1, or with fused_attention: true in the recipe.",))


FUSED_RING = Rule(
    name="fused-ring",
    family="trainer rules",
    sentence="Context parallelism needs fused attention.",
    needs=frozenset({"cp"}),
    keeps=_fused,
    fault=_fused_fault,
    source="MindFormers 1.9.0 refuses cp > 1 without flash attention; Megatron's cp needs Transformer Engine",
)

RULES = (RING, FUSED_RING, SEQUENCE_PRODUCT, FP8_TOKENS, TOKEN_SHARDS)
