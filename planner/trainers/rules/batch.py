"""Rules of the batch: whole micro-batches on every data-parallel rank."""

from __future__ import annotations

from planner.candidates import Candidates
from planner.errors import Fault, listed
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import around, divisors, value
from planner.units import BoolArray


def _batch_fault(task: Task, candidates: Candidates) -> Fault:
    batch, chips = task.recipe.global_batch, task.cluster.num_chips
    dp, mbs = value(candidates, "dp"), value(candidates, "micro_batch")
    what = f"global batch {batch} is not a multiple of dp × micro-batch = {dp} × {mbs}."
    fits = [d for d in divisors(chips) if batch % (d * mbs) == 0]
    fixes = [f"Nearest with dp {dp}: {listed(around(batch, dp * mbs))}."]
    if fits:
        fixes.append(f"With {batch}, dp can be {listed(fits)} on {chips} chips.")
    elif batch % dp == 0:
        fixes.append(f"With dp {dp}, micro-batch {listed(divisors(batch // dp)[:8])} can.")
    return Fault("B01", what, (" ".join(fixes),))


def _ranks(task: Task, candidates: Candidates) -> BoolArray:
    keeps: BoolArray = task.recipe.global_batch % candidates.dp == 0
    return keeps


BATCH_RANKS = Rule(
    name="batch-ranks",
    family="batch",
    sentence="The global batch is a multiple of dp.",
    needs=frozenset({"dp"}),
    keeps=_ranks,
    fault=_batch_fault,
    source="Megatron-LM, torchtitan and DeepSpeed: global batch = micro-batch · accumulation · dp (OpenRLHF #346)",
)


def _micro_batches(task: Task, candidates: Candidates) -> BoolArray:
    """Leaves rows whose dp alone does not divide the batch to ``batch-ranks``, so that each is counted once."""
    batch, c = task.recipe.global_batch, candidates
    keeps: BoolArray = (batch % c.dp != 0) | (batch % (c.dp * c.micro_batch) == 0)
    return keeps


MICRO_BATCHES = Rule(
    name="micro-batches",
    family="batch",
    sentence="What a data-parallel rank gets of the global batch is whole micro-batches.",
    needs=frozenset({"dp", "micro_batch"}),
    keeps=_micro_batches,
    fault=_batch_fault,
    source="Megatron-LM, torchtitan and DeepSpeed: global batch = micro-batch · accumulation · dp (OpenRLHF #346)",
)

RULES = (BATCH_RANKS, MICRO_BATCHES)
