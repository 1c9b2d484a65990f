"""What a trainer can express, what it keeps in memory and what it overlaps: data, no searching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.candidates import Candidates, Recompute, Schedule
from planner.errors import Fault
from planner.graph.model import Model
from planner.graph.operator import DimName
from planner.graph.placement import AxisName
from planner.hardware.cluster import Cluster
from planner.recipe import Recipe
from planner.units import BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How a trainer spends memory. Bytes."""

    gradient_bytes: float
    """Bytes of a gradient in low-precision training (Megatron accumulates in fp32: 4)."""
    cast_weights: bool
    """The low-precision weights exist only while gathered; what is stored is the fp32 copy (FSDP2)."""
    gathered_layers: float
    """Layers whose gathered weights are alive at once under ZeRO-3."""
    logit_bytes: float
    """Bytes a logit that live at the loss, all copies."""
    wgrad_bytes: float
    """Bytes for every element of the largest weight of a rank while its gradient is computed."""
    runtime_bytes: float
    """Context, communication buffers and allocator overhead on a chip."""
    fragmentation: float
    """Reserved over allocated memory, for the verdict whether a plan fits."""
    optimizer_bytes: float
    """Temporary bytes for every parameter that the optimizer steps on a rank at once."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What a trainer hides behind compute: the exposed share of each kind of communication."""

    tp: float
    """Exposed share of tensor-parallel collectives."""
    cp: float
    """Exposed share of key/value exchange where attention is long enough to hide it."""
    ep: float
    """Exposed share of expert all-to-alls."""
    gradients: float
    """Exposed share of gradient reduction that fits behind the last micro-batch's backward pass."""
    weights: float
    """Exposed share of weight gathering that fits behind compute."""
    sends: float
    """Exposed share of the sends between pipeline stages."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Time that no operator accounts for."""

    step: float
    """Seconds a step: data, logging, gradient norm, launch of the optimizer."""
    layer: float
    """Least seconds a layer's forward pass takes because the host launches its kernels; twice that backwards."""
    memory_passes: float
    """Bytes moved by memory-bound operators over what the graph says (fusion below 1, eager code above)."""
    jitter: float
    """Share by which a pipeline's steady state is slower than its parts."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A program that runs plans."""

    name: str
    aliases: tuple[str, ...]
    release: str
    """Release whose rules these are."""
    roles: dict[AxisName, tuple[DimName, ...]]
    """For every axis, the dims that it may split, most wanted first: an operator is split along the first that it
    has. ``seq`` under ``tp`` counts only with sequence parallelism."""
    orders: tuple[tuple[AxisName, ...], ...]
    """Possible axis orders on the chips, innermost first."""
    shardings: tuple[int, ...]
    """State shardings that it can do (indices into ``SHARDING``)."""
    hsdp: bool
    """States may be sharded over a part of the data ranks."""
    schedules: tuple[Schedule, ...]
    sequence_parallel: tuple[bool, ...]
    """Possible values of sequence parallelism where tp > 1."""
    recompute: dict[Recompute, frozenset[str]]
    """For every mode, the tags of the operators that it recomputes; ``{"*"}`` for all."""
    axes: frozenset[AxisName]
    """Axes that it has; the others stay 1."""
    expert_tp: bool
    """Experts may be split inside (etp > 1)."""
    memory: Memory
    overlap: Overlap
    overhead: Overhead
    rules: tuple[Rule, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Task:
    """One question: this model on this cluster with this recipe, run by this trainer."""

    model: Model
    cluster: Cluster
    recipe: Recipe
    trainer: Trainer
    memory_limit: float
    """Bytes a chip that a plan may use."""
    copy_kv: bool = False
    """Key/value heads may be copied where tp exceeds them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A named reason why a candidate cannot run."""

    name: str
    """Stable id, as in ``explain plan.json rule:NAME``."""
    family: str
    """Word under which the answer counts it: ``head count``, ``trainer rules``, ``batch``, ``pins`` or ``memory``."""
    sentence: str
    """What must hold, in one sentence."""
    needs: frozenset[str]
    """Columns of ``Candidates`` that the rule looks at; it is applied as soon as they are known."""
    keeps: Callable[[Task, Candidates], BoolArray]
    """True for rows that may run; looks only at the columns in ``needs``."""
    fault: Callable[[Task, Candidates], Fault]
    """What to tell a person whose single stated layout breaks the rule, with the nearest values that do not."""
    source: str
