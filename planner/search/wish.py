"""What is asked of a block's plan on free axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.graph.placement import Layout, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked of a block's plan."""

    sequences: int
    """Sequences of one micro-batch on all ranks of the mesh."""
    micro_batches: int = 1
    """Micro-batches a step; gradients are reduced once for all of them."""
    memory_limit: float | None = None
    """Bytes a rank for the states and saved activations of all layers; None where memory is no matter."""
    layers: int = 1
    """Layers of this block on a rank: a pipeline stage holds so many, all alike."""
    in_flight: float = 1.0
    """Micro-batches whose saved activations a rank holds at once: what the pipeline's schedule leaves waiting."""
    pins: Mapping[str, Split] = field(default_factory=dict)
    """Strategies of operators that are fixed."""
    lies: Mapping[str, Layout] = field(default_factory=dict)
    """Layouts of tensors that are fixed: how inputs arrive, how outputs leave."""
    repeated: bool = True
    """The block follows on itself: it leaves its stream as it found it."""
    overlapped: bool = False
    """What the trainer hides behind compute costs nothing, as much as it would hide of each kind of communication."""
    time_limit: float = 60.0
    """Seconds of the search, where memory is limited; what is found until then is returned with its bound."""
