"""How many ways a step is cut, and how: the layout of a plan."""

from __future__ import annotations

from typing import Literal

from planner.plan.part import Count, Part


class Degrees(Part):
    """How many ways the step is cut, and how."""

    dp: Count
    tp: Count
    pp: Count
    cp: Count
    ep: Count
    etp: Count
    vpp: Count
    """Virtual chunks a stage: with more of them the pipeline waits less and sends more often."""
    micro_batch: Count
    """Sequences in a micro-batch."""
    num_micro_batches: Count
    """Micro-batches of a data-parallel rank in one step."""
    sharding: Literal["none", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    shard_group: Count
    """Data ranks over which states are sharded."""
    recompute: Literal["none", "selective", "full", "mixed"]
    """What layers compute again in the backward pass: selective what takes memory and little time; mixed where they
    differ."""
    layers: tuple[int, ...] = ()
    """Layers of every chunk in the order of the model, where stages are not even: embedding, head and what fits make
    other numbers faster than equal ones."""
    full_layers: tuple[int, ...] = ()
    """How many of them, from the first on, are computed again as a whole, where layers differ."""
    selective_layers: tuple[int, ...] = ()
    """How many of those that follow are computed again in part."""
    recompute_unit: Count = 1
    """Layers that are computed again together, where all are as a whole: the input of the first of them is kept."""
    sequence_parallel: bool
    schedule: Literal[
        "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zbv", "dualpipev"
    ]
    offload: Literal[
        "none",
        "optimizer",
        "states",
        "activations",
        "optimizer+activations",
        "states+activations",
        "optimizer-25%",
        "optimizer-50%",
        "optimizer-75%",
    ] = "none"
    """What is kept in host memory; ``states`` are weights, gradients and the optimizer's."""
    order: tuple[Literal["dp", "tp", "pp", "cp"], ...]
    """Axes from innermost (neighbouring chips) to outermost."""
    pools: tuple[str, ...] = ()
    """The pool of every stage, where there are pools of different chips; empty where every stage has chips of all."""
    chips_used: Count
