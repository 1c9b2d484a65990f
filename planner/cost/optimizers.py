"""Optimizers that do more than a pass over their states: Muon."""

from __future__ import annotations

import numpy as np

from planner.graph.model import Model
from planner.recipe import MOMENT_BYTES
from planner.trainers.trainer import Task
from planner.units import Array

NEWTON_STEPS = 5
"""Newton-Schulz iterations of Muon. Source: Jordan et al. 2024, Muon; Moonlight (arXiv 2502.16982), section 2."""
ADAM_MOMENTS = 8.0
"""Bytes a parameter of the moments of embedding and head, which Muon leaves to AdamW. Source: as above."""


def newton_flops(model: Model) -> tuple[float, float]:
    """FLOPs of orthogonalising a step's updates, for one parameter of dense and of expert matrices of the layers.

    A matrix of m rows and n ≥ m columns takes three products an iteration: ``4 m² n + 2 m³``.
    """
    flops, params = np.zeros(2), np.zeros(2)
    counts = np.bincount(model.layers, minlength=len(model.blocks))
    for block, count in zip(model.blocks, counts, strict=True):
        for tensor in block.weights():
            if tensor.kind == "frozen":
                continue
            lead = tensor.dims[:1] if tensor.dims[:1] == ("experts",) else ()
            rest = tensor.dims[len(lead) :]
            size = count * block.elements(tensor.dims)
            params[len(lead)] += size
            if len(rest) < 2:
                continue
            whole = block.elements(rest)
            rows = block.sizes["embed"] if "embed" in rest else block.sizes[rest[0]]
            m = min(rows, whole / rows)
            n = whole / m
            flops[len(lead)] += NEWTON_STEPS * (4 * m**2 * n + 2 * m**3) * size / whole
    dense, expert = flops / np.maximum(params, 1.0)
    return float(dense), float(expert)


def table_moments(task: Task) -> float:
    """Bytes of moments of embedding and head over those of all optimizer states of another weight, less one."""
    recipe = task.recipe
    if recipe.optimizer != "muon":
        return 0.0
    moments = MOMENT_BYTES["muon"]
    low = recipe.precision != "fp32" and recipe.master_weights
    master = task.trainer.memory.master_bytes if low else 0.0
    return (ADAM_MOMENTS - moments) / (master + moments)


def orthogonal_seconds(task: Task) -> Array:
    """Seconds a parameter of the optimizer's own products, of dense and of expert weights; ``(2, 1)``.

    Whole matrices are divided among the ranks that share states, each in 16 bits.
    """
    if task.recipe.optimizer != "muon":
        return np.zeros((2, 1))
    chip = task.cluster.chip
    name = "bf16" if "bf16" in chip.peak else next(iter(chip.peak))
    rate = chip.peak_for(name) * chip.efficiency_for(name)
    return np.array(newton_flops(task.model))[:, None] / rate
