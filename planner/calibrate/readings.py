"""What a row measured, in our units: seconds of a step, bytes of a kind of reading, whether it fitted."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from planner.calibrate.row_task import Case
from planner.calibrate.runs import Run
from planner.units import GIB, Json

Kind: TypeAlias = Literal["allocated", "first-step", "reserved", "driver"]
KINDS: tuple[Kind, ...] = ("allocated", "first-step", "reserved", "driver")
READINGS: tuple[tuple[str, Kind], ...] = (
    (r"torchtitan|MLPerf|ml-engineering", "reserved"),
    (r"BLOOM|FlagPerf|MindFormers", "driver"),
    (r"MindSpeed-LLM CI|MindSpeed.*baseline", "first-step"),
)
"""Kind of memory reading by source; torch's largest allocation elsewhere. Jobs that report after their first step saw
activations before the optimizer's moments existed."""
AT_ODDS = 0.2
"""How far a step and a printed rate may lie apart, as a share of the larger, before the stated batch is doubted."""
DECIMAL = re.compile(r"decimal GB")
DROPPED_MEMORY = re.compile(r"VETTING \(drop \(memory")


def step_seconds(run: Run) -> tuple[float | None, str]:
    """Seconds of a step and the field that they were taken from.

    Printed FLOP rates follow five conventions, so they count only where no time is given and the formula is one of
    those that we know. Where a source prints a step and a rate that the batch cannot join, the batch is what it did not
    run with: the rate holds whatever the batch was.
    """
    m, batch, seq = run.measured, run.parallel.global_batch, run.model.seq
    by_rate = 0.0
    if m.tokens_per_s_per_chip and batch and seq and run.hardware.num_chips:
        by_rate = batch * seq / run.hardware.num_chips / m.tokens_per_s_per_chip
    at_odds = by_rate and abs(by_rate - (m.step_time_s or 0)) > AT_ODDS * max(
        by_rate, m.step_time_s or 0
    )
    if m.step_time_s and not at_odds:
        return m.step_time_s, "step_time_s"
    if by_rate:
        return by_rate, "tokens_per_s_per_chip"
    if m.samples_per_s and batch:
        return batch / m.samples_per_s, "samples_per_s"
    flops = _known_flops(run)
    if flops and m.tflops_per_chip and run.hardware.num_chips:
        return flops / (m.tflops_per_chip * 1e12 * run.hardware.num_chips), "tflops_per_chip"
    return None, ""


def _known_flops(run: Run) -> float | None:
    """FLOPs of a step by the formula that the source prints, for the two formulas that rows without a time have."""
    model, batch = run.model, run.parallel.global_batch
    formula = run.measured.flops_formula or ""
    if not (batch and model.layers and model.hidden and model.seq and model.vocab):
        return None
    tokens = float(batch) * model.seq
    layers, width, seq = model.layers, model.hidden, model.seq
    if formula.startswith("MaxText model FLOPs (6N + full attention") and model.params_b:
        heads = (model.heads or 0) * (model.head_dim or 0) or width
        return tokens * (6e9 * model.params_b + 12.0 * layers * heads * seq)
    if formula.startswith("GPT: 96*B*S*H^2*L*(1+S/(6H))"):
        body = 96.0 * layers * width**2 * (1 + seq / (6 * width))
        return tokens * (body + 6.0 * width * model.vocab)
    return None


def memory_gib(run: Run) -> tuple[float | None, Kind]:
    """GiB of the reading that a source gives, and of what kind it is."""
    kind: Kind = next((k for pattern, k in READINGS if re.search(pattern, run.source)), "allocated")
    value = run.measured.mem_gib_per_chip
    if value is None or DROPPED_MEMORY.search(run.remarks):
        return None, kind
    if DECIMAL.search(run.remarks) and "the field holds decimal GB" in run.remarks:
        value *= 1e9 / GIB
    return value, kind


def fits(run: Run) -> bool | None:
    """Whether it ran; None where the label is a formula's and not an outcome."""
    if run.measured.oom is None or DROPPED_MEMORY.search(run.remarks):
        return None
    return not run.measured.oom


def features(case: Case) -> dict[str, Json]:
    """What residuals may depend on: degrees, sizes, software."""
    row = {name: int(getattr(case.layout, name)[0]) for name in case.layout.__slots__}
    model, recipe = case.task.model, case.task.recipe
    run = case.run
    micro = int(case.layout.num_micro_batches(recipe.global_batch)[0])
    nodes = (run.hardware.num_chips or 1) / (run.hardware.chips_per_node or 8)
    return {
        **row,
        "micro_batches": micro,
        "micro_batches_per_stage": micro / row["pp"],
        "seq": recipe.seq,
        "hidden": run.model.hidden,
        "head_dim": run.model.head_dim or (run.model.hidden or 0) // (run.model.heads or 1),
        "vocab": run.model.vocab,
        "layers": model.num_layers,
        "tokens_per_micro_batch": row["micro_batch"] * recipe.seq // row["cp"],
        "chips": run.hardware.num_chips,
        "nodes": max(nodes, 1.0),
        "experts": max(run.model.experts or 0, 0),
        "params_b": case.num_params / 1e9,
        "precision": recipe.precision,
        "chip": case.task.cluster.chip.name,
        "trainer": case.software.trainer.name,
        **{key: value for key, value in case.traits.items() if key not in ("release", "keeps")},
    }
