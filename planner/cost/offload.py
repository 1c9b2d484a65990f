"""Offload to host memory: what leaves the chip, what the copies and the update on the host cost.

Copies run both ways at once at :attr:`planner.hardware.cluster.Host.rate`, the rate that all chips of a host reach
together. The optimizer steps where its states are, at the host's memory bandwidth or, below it, at the rate of the
threads that its process has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.candidates import Candidates
from planner.cost.optimizers import orthogonal_seconds
from planner.cost.states import (
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    StateCost,
    shard_ranks,
    state_bytes,
    temporary_bytes,
)
from planner.trainers.trainer import Task
from planner.units import Array

HOST_EFFICIENCY = 0.45
"""Share of the host's memory bandwidth that an optimizer on its CPUs reaches. Source: ZeRO-Offload (arXiv 2101.06840),
table 4: CPU-Adam takes 0.22, 0.51, 1.03, 2.41 and 2.57 s for 1, 2, 4, 8 and 10 G parameters of 30 bytes each on two
Xeon 8168, 256 GB/s."""
THREAD_RATE = 19.5e9
"""Bytes/s that an optimizer on one thread reaches. Source: Megatron's on hosts of H100, beyond the step on the chips
alone: 2.88 s for 1.91 G parameters of 30 bytes a rank, 8 ranks a host (Megatron-Bridge, card of cpu-offloading:
Qwen3-30B-A3B, 996 to 3,877 ms); 0.46 and 0.93 s for 0.30 and 0.60 G on one rank (NVIDIA-NeMo/RL#3628). Two threads of 8
ranks reach 34 GB/s together (ISEEKYAN/Megatron-LM#188: 15.5 s for 2.19 G a rank)."""
HOST_SHARE = 0.9
"""Share of host memory that a plan may fill; the rest is the system's and the data loader's (assumed)."""
HOST_GRADIENT = 4.0
"""Bytes of a gradient beside the optimizer's states in host memory. Source: DeepSpeed's estimator, 16 bytes a parameter
with Adam's 12."""
IN_TRANSIT = 2.0
"""Layers whose activations are on the chip while the others are in host memory: one computes, one is copied."""


def host_room(task: Task) -> float:
    """Bytes of host memory that a chip may fill; infinite where nobody knows what there is."""
    return HOST_SHARE * task.cluster.host.memory


def update_rate(task: Task) -> float:
    """Bytes/s at which the host updates a chip's states.

    A process that is alone on its host has all threads; torchrun and Accelerate give each of several a single one
    (OMP_NUM_THREADS=1).
    """
    cluster = task.cluster
    threads = np.inf if min(cluster.num_chips, cluster.chips_per_host) == 1 else THREAD_RATE
    return min(HOST_EFFICIENCY * cluster.host.bandwidth, threads)


def offloaded(task: Task, rows: Candidates, cost: StateCost) -> StateCost:
    """States as they are where some of them are in host memory.

    Gradients go down and updated weights come up once a step, beside the update; where the trainer streams sharded
    gradients they go down behind every backward pass. Weights in host memory come up for every pass that gathers them.
    Of a share of the optimizer states only that share moves; chip and host update their parts at the same time.
    Muon's products stay on the chip.

    Args:
        task: the question.
        rows: the candidates.
        cost: their states with everything on the chip.

    Source: ZeRO-Offload (arXiv 2101.06840), section 4; ZeRO-Infinity (arXiv 2104.07857), section 5; shares: Twin-Flow
    of ZeRO-Offload++ (DeepSpeed's ``ratio``), Megatron-Core's HybridDeviceOptimizer.
    """
    if not np.any(rows.offload):
        return cost
    way, host, kinds, recipe = (
        task.trainer.offload,
        task.cluster.host,
        state_bytes(task),
        task.recipe,
    )
    level = rows.sharding
    optimizer, states = rows.in_host("optimizer"), rows.in_host("states")
    share = rows.optimizer_in_host
    streams = optimizer & way.gradients & (level >= GRADIENTS)
    stepped = 1.0 / np.where(level >= OPTIMIZER, shard_ranks(rows), 1.0)
    copied = 4.0 if way.weight_bytes is None else way.weight_bytes
    up, down = copied * stepped / host.rate, way.gradient_bytes * stepped / host.rate
    moved = HOST_GRADIENT + 2.0 * kinds.optimizer + recipe.weight_bytes
    update = moved * stepped / update_rate(task)
    update = np.maximum(update, np.where(states, 0.0, recipe.weight_bytes * stepped / host.rate))
    update = share * np.maximum(update, np.where(streams, 0.0, down))
    products = orthogonal_seconds(task) * stepped
    update = np.maximum(update, (1.0 - share) * (cost.update - products)) + products
    again = np.where(states & (level == WEIGHTS), up, 0.0)
    kept = np.where(kinds.weights == 0.0, recipe.weight_bytes, kinds.weights) * stepped
    low = optimizer & ~states & (level == WEIGHTS)
    beside = 0.0 if way.weight_bytes is None else way.weight_bytes
    return replace(
        cost,
        weights=np.where(states, 0.0, np.where(low, kept, cost.weights)),
        gradients=np.where(streams, (1.0 - share) * cost.gradients, cost.gradients),
        optimizer=(1.0 - share) * cost.optimizer,
        each_forward=cost.each_forward + np.where(states, up, 0.0),
        each_backward=cost.each_backward + np.maximum(np.where(streams, share * down, 0.0), again),
        update=np.where(optimizer, update, cost.update),
        temporary=cost.temporary - share * temporary_bytes(task) * stepped,
        host=share * (cost.optimizer + HOST_GRADIENT * stepped)
        + np.where(states, beside * stepped, 0.0),
        frozen=np.where(states, 0.0, cost.frozen),
        frozen_host=np.where(states, recipe.frozen_bytes * stepped, 0.0),
        frozen_gather=cost.frozen_gather
        + np.where(states, recipe.frozen_bytes * stepped / host.rate, 0.0),
    )


def activation_copies(
    task: Task, left: Array, forward: Array, backward: Array
) -> tuple[Array, Array, Array]:
    """Seconds of copying what blocks keep: exposed forwards, exposed backwards, and of one direction in all.

    Down behind the block's forward pass, up behind its backward pass: exposed is a share, or what exceeds the block's
    time if that is more.

    Args:
        task: the question.
        left: bytes of every block that leave the chip.
        forward: seconds of every block.
        backward: the same backwards.

    Shapes: ``(n, blocks)`` each.
    """
    share = task.trainer.offload.exposed
    copy = left / task.cluster.host.rate
    return (
        np.maximum(share * copy, copy - forward),
        np.maximum(share * copy, copy - backward),
        copy,
    )
