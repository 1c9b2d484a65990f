"""What a trainer can express, what it keeps in memory and what it overlaps: data, no searching."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from planner.candidates import Candidates, Recompute, Schedule
from planner.errors import Fault
from planner.graph.model import Model
from planner.graph.operator import DimName
from planner.graph.placement import AxisName, Chosen
from planner.hardware.chip import Chip
from planner.hardware.cluster import Cluster
from planner.recipe import OptimizerName, Recipe
from planner.units import BoolArray

WaitsFor: TypeAlias = Literal["nothing", "collectives", "kernels"]
EVERYTHING = "*"
"""Tag that stands for all operators."""
EVERY_SECOND = "every second product"
"""Tag that stands for the passes over memory and for every second product with weights (torchtitan's list of operators
to save: attention, and products but for the second, fourth, … of a layer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How a trainer spends memory. Bytes."""

    gradient_bytes: float
    """Bytes of a gradient in low-precision training (Megatron accumulates in fp32: 4)."""
    stages_accumulate: bool = False
    """Between pipeline stages, sharded gradients stay whole until the last micro-batch has run backwards, and weights
    that a backward pass gathered until the next forward pass has used them."""
    accumulates_whole: bool = False
    """Sharded gradients stay whole until the last micro-batch without stages too, in ``gradient_bytes`` each whatever
    the weights have (FSDP2's ``set_requires_gradient_sync``, whose ``reduce_dtype`` is fp32)."""
    step_params: float = math.inf
    """Parameters that the optimizer steps on at once where weights are sharded."""
    master_bytes: float = 4.0
    """Bytes of the copy of a weight that the optimizer steps on, in low-precision training."""
    gradient_buffer: bool = True
    """Gradients have a buffer of their full size; otherwise one exists only where several micro-batches accumulate in
    it, and gradients are sharded as states are as soon as they are made."""
    cast_weights: bool
    """The low-precision weights exist only while gathered; what is stored is the fp32 copy (FSDP2)."""
    gathered_layers: float
    """Layers whose gathered weights are alive at once under ZeRO-3."""
    logit_bytes: float
    """Bytes a logit that live at the loss, all copies."""
    logit_whole_bytes: float
    """Bytes a logit of copies that every tp rank holds of the whole vocabulary."""
    wgrad_bytes: float
    """Bytes for every element of a weight while a plan of operators makes its gradient and adds it to the others: in
    low precision, and cast."""
    standing_bytes: float = 0.0
    """Bytes for every element of the matrices of one layer (of one expert) and of the head: what stands for their
    gradients while products add these to the buffer."""
    workspace_bytes: float = 0.0
    """What libraries of products and attention hold."""
    weighs_inside: bool = False
    """Experts' results are weighted before their last product, so that adding them up keeps nothing."""
    runtime_bytes: float
    """Context, communication buffers and allocator overhead on a chip."""
    fragmentation: float
    """Reserved over allocated memory, for the verdict whether a plan fits."""
    optimizer_bytes: float
    """Temporary bytes for every parameter that the optimizer steps on a rank at once."""
    kept: Mapping[str, float] = field(default_factory=dict)
    """Bytes an element of its result that an operator with a tag keeps beyond what a fused kernel does (eager code)."""
    keeps_gathered: bool = False
    """What sequence parallelism gathers for a product is kept whole until the backward pass, not gathered again."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What a trainer hides behind compute: the exposed share of each kind of communication."""

    tp: float
    """Exposed share of tensor-parallel collectives."""
    tp_gradients: float = 1.0
    """By what that share is multiplied for sums of input gradients: below 1 where they run beside the product that
    makes the gradient of the weight (Megatron-LM from 2022 on, LinearWithGradAccumulationAndAsyncCommunication)."""
    tp_again: float = 0.0
    """Exposed share of what is gathered again for the backward pass."""
    cp: float
    """Exposed share of key/value exchange where attention is long enough to hide it."""
    ep: float
    """Exposed share of expert all-to-alls."""
    gradients: float
    """Exposed share of what a step reduces and gathers once, as far as it fits behind one micro-batch: gradients behind
    the last backward pass, weights behind the next forward pass."""
    weights: float
    """Exposed share of weight gathering that fits behind compute."""
    sends: float
    """Exposed share of the sends between pipeline stages; 2 where sends and receives wait for one another."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What a trainer can keep in host memory, and how it gets there and back."""

    kinds: tuple[int, ...] = (0,)
    """Indices into ``OFFLOAD``."""
    gradients: bool = False
    """Sharded gradients follow the optimizer's states to the host as they are reduced, each micro-batch; otherwise
    they stay on the chip and are copied once a step."""
    gradient_bytes: float = 4.0
    """Bytes of a gradient as it is copied."""
    weight_bytes: float | None = None
    """Bytes of a weight in host memory as it is copied for use, beside the optimizer's own; None where the optimizer's
    fp32 copy is what is copied."""
    states_from: int = 2
    """Least state sharding with which weights can leave the chip."""
    share_from: int = 1
    """Least state sharding with which a share of the optimizer's states can leave it."""
    checkpoints: bool = False
    """Activations leave the chip as checkpoints of full recompute; otherwise as they are, without recompute and on
    one stage."""
    exposed: float = 0.1
    """Share of the copies of activations that nothing hides although compute is long enough."""
    source: str = "cannot keep anything in host memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Time that no operator accounts for."""

    step: float
    """Seconds a step: data, logging, gradient norm, launch of the optimizer."""
    operator: float
    """Seconds in which the host launches an operator or a collective: a block takes no less than all of its, backwards
    twice that."""
    slowest: float = 1.0
    """How many times longer that takes with eight and more ranks of tensor parallelism, which wait at every collective
    for the slowest of their processes."""
    memory_passes: float
    """Bytes moved by memory-bound operators over what the graph says (fusion below 1, eager code above)."""
    score_passes: float | None = None
    """The same of what passes over unfused scores of attention, where one kernel does or many do; None for the same."""
    softmax: Literal["always", "by four", "never"] = "always"
    """Where one kernel scales, masks and sums the scores of unfused attention: for multiples of four matrices only, as
    Megatron's does, or never."""
    engine: bool = False
    """Norms run in the module of the products that read them, keys and values in that of the queries."""
    jitter: float
    """Share by which a pipeline's steady state is slower than its parts."""
    accumulation: float = 0.0
    """Bytes whose passing shows when a micro-batch's gradient of a parameter is added to those before: all that a pass
    of its own moves, or a third of what the product that makes it moves to add it."""
    waits_for: WaitsFor = "nothing"
    """What the host waits for before it launches the next: every kernel (CUDA_LAUNCH_BLOCKING=1), or collectives, whose
    seconds a program takes. Its time adds to the chip's then, instead of running beside it and beside communication."""
    exchange: float | None = None
    """Seconds that the host needs to go on after interleaved stages have exchanged results, which they wait for; None
    where these are sent beside compute."""
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
    apart: Mapping[tuple[AxisName, str], tuple[DimName, ...]] = field(default_factory=dict)
    """The same for single operators, by axis and name, instead of what the role says; none where an axis leaves the
    operator whole. A lookup in a table that the head has too is cut as the head is."""
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
    """For every mode, the tags of the operators that it recomputes. See ``recomputed``."""
    recompute_unfused: frozenset[str]
    """Tags that ``selective`` adds where attention is not fused: the scores are then the largest tensors."""
    axes: frozenset[AxisName]
    """Axes that it has; the others stay 1."""
    expert_tp: bool
    """Experts may be split inside (etp > 1)."""
    copies_kv: bool
    """Can give every rank a copy of a key/value head where tp exceeds them."""
    uneven: frozenset[DimName]
    """Dims that it splits although the degree does not divide them (padded, or in unequal parts)."""
    vocab_multiple: int
    """The vocabulary is padded to a multiple of this times tp; 1 where it is not padded, or only to tp."""
    uneven_stages: bool
    """Stages and virtual chunks may hold unequal numbers of layers."""
    mixes_recompute: Literal["alike", "count", "stages"]
    """How layers may differ in what they recompute: not at all; as many layers of every chunk as a whole, or all of a
    shorter one; any numbers, stage by stage."""
    counts_ends: bool
    """Embedding and head may count as a layer each where layers are cut into equal virtual chunks."""
    pads_layers: bool = False
    """Fills chunks with layers that do nothing until all hold as many: how it runs unequal ones."""
    encoders: bool = False
    """Trains models with an encoder before the decoder."""
    ring_chunks: int
    """Chunks of the sequence a context-parallel rank holds: 2 where causal work is balanced, else 1."""
    sends_once: bool
    """Experts' all-to-alls send one copy of a token to each far group (hybrid expert parallelism)."""
    step_barrier: bool
    """All stages start a step together; without, each goes on with the next step when it is done with its own part (the
    optimizer validates its step afterwards)."""
    per_operator: bool
    """Takes a strategy for every operator: the tensor axis may cut another dim than its role says."""
    reduces_each: bool
    """Sharded gradients are reduced every micro-batch, not once a step."""
    reduced_bytes: float | None = None
    """Bytes of a gradient as it is reduced once a step; None where as it is kept."""
    reduces_whole: bool = False
    """Under optimizer sharding every rank gets all reduced gradients (an all-reduce), not only its part."""
    regathers: bool = False
    """Weights that are sharded are gathered for full recompute and again for the backward pass, not once for both."""
    bucket_per_rank: float = 0.0
    """Bytes by which messages of gradient reductions grow with every data rank."""
    loss: str = "fused"
    """How its cross-entropy runs: a row of :data:`planner.cost.kernels.LOSS`."""
    scatters_sends: bool = False
    """Without sequence parallelism, a tp rank sends only its part of the stream to the next stage, which gathers it."""
    kernel: str
    """Generation of its fused attention kernel: ``best`` of the chip, ``flash-2``, ``flash-1`` or ``triton``."""
    memory: Memory
    overlap: Overlap
    overhead: Overhead
    offload: Offload
    elsewhere: Mapping[str, str | None] = field(default_factory=dict)
    """By vendor of chips on which its own releases do not run: what does there instead; None where nothing does."""
    lacks: frozenset[str] = frozenset()
    """Precisions that it cannot train in."""
    optimizers: frozenset[OptimizerName] = frozenset({"adamw", "sgd"})
    """Those whose settings are known in its files."""
    rules: tuple[Rule, ...]
    source: str

    def recomputed(self, mode: Recompute, *, fused: bool) -> frozenset[str]:
        """Tags of the operators that a mode recomputes, for fused or unfused attention."""
        tags = self.recompute[mode]
        return tags | self.recompute_unfused if mode == "selective" and not fused else tags

    def role(self, axis: AxisName, operator: str, *, tied: bool) -> tuple[DimName, ...]:
        """Dims of an operator that an axis may split, most wanted first.

        Args:
            axis: the axis.
            operator: its name.
            tied: the head has the embedding's table.
        """
        own = None if tied and operator == "lookup" else self.apart.get((axis, operator))
        return self.roles.get(axis, ()) if own is None else own

    def runs_on(self, chip: Chip, precision: str) -> bool:
        """Whether it runs on a chip in a precision, itself or as a port; chips of an unknown vendor are its own."""
        return precision not in self.lacks and self.elsewhere.get(chip.vendor, "") is not None

    def padded_vocab(self, vocab: int, tp: int) -> int:
        """Rows of the vocabulary after padding; the same number where the trainer pads nothing."""
        if "vocab" not in self.uneven:
            return vocab
        multiple = self.vocab_multiple * tp
        return -(-vocab // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Cut:
    """How a run divides layers and ends among its stages where it does not do so evenly."""

    last: int | None = None
    """Layers on the last stage; the others share the rest evenly."""
    whole: int | None = None
    """Layers of every chunk, from its first on, that run again as a whole, and no others; None where all layers
    recompute alike."""
    hosted: float = 1.0
    """Share of a stage's layers whose activations leave the chip, where any do (Megatron's
    ``cpu_offloading_num_layers``)."""
    shared_ends: bool = False
    """Embedding and head are split over all stages: what a micro-batch's backward pass starts with is known one round
    later, when all stages have seen it, so that one more is in flight. Source: Yeung et al. 2024, Balancing Pipeline
    Parallelism with Vocabulary Parallelism (arXiv 2411.05288), section 5, one barrier."""


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
    uneven_chunks: bool = False
    """Virtual chunks may hold unequal numbers of layers where the trainer can say so: somebody asks for so many."""
    chips: tuple[int, ...] = ()
    """Numbers of chips that a plan may use, where others may stay idle; all of the cluster's where there are none."""
    operators: tuple[Mapping[str, Chosen], ...] = ({},)
    """Plans of operators that candidates point to: by block, the strategies that the roles do not give."""
    cut: Cut = Cut()
    """How layers are divided among stages; evenly unless a measured run says otherwise."""


FAMILIES = (
    "chips",
    "head count",
    "widths",
    "sequence",
    "layers",
    "batch",
    "experts",
    "trainer rules",
)
"""Families of rules, in the order in which a person meets them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A named reason why a candidate cannot run."""

    name: str
    """Stable id, as in ``explain plan.json rule:NAME``."""
    family: str
    """Word under which the answer counts it: one of ``FAMILIES``, or ``pins`` or ``memory`` for what is no rule."""
    sentence: str
    """What must hold, in one sentence."""
    needs: frozenset[str]
    """Columns of ``Candidates`` that the rule looks at; it is applied as soon as they are known."""
    keeps: Callable[[Task, Candidates], BoolArray]
    """True for rows that may run; looks only at the columns in ``needs``."""
    fault: Callable[[Task, Candidates], Fault]
    """What to tell a person whose single stated layout breaks the rule, with the nearest values that do not."""
    source: str
