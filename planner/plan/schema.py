"""The plan: the answer as data, versioned and published as a JSON Schema.

Everything that a person or a trainer sees is read from here; nothing is computed while rendering. Sizes are bytes,
times are seconds, shares are fractions, money is US dollars.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.plan.asked import Asked
from planner.plan.cluster import ClusterFacts as ClusterFacts
from planner.plan.cluster import LevelFacts as LevelFacts
from planner.plan.cluster import PoolFacts as PoolFacts
from planner.plan.cluster import Use as Use
from planner.plan.degrees import Degrees as Degrees
from planner.plan.derivation import Derivation
from planner.plan.figures import Figures
from planner.plan.left_open import LeftOpen as LeftOpen
from planner.plan.part import Count, Part, Positive, Share

SCHEMA_VERSION: Literal["1"] = "1"
OWN = "yours"
"""Id of the user's own layout where it is not one of the best."""
RUNS = r"([0-9]+(-[0-9]+)?(, [0-9]+(-[0-9]+)?)*)?"
Runs = Annotated[str, Field(pattern=rf"^{RUNS}$")]
"""Numbers of layers as runs, ``0-2, 5``; empty for none."""


class Fingerprints(Part):
    """Hashes of what the plan was made from; a plan whose inputs changed is stale."""

    model: str
    cluster: str
    recipe: str
    trainer: str


class ModelFacts(Part):
    """The model in a few numbers."""

    name: str
    num_params: Count
    """Parameters, multi-token-prediction modules not counted."""
    num_active_params: Count
    """Parameters that one token meets."""
    num_layers: Count
    tied: bool = False
    """The output projection is the embedding table."""
    source: str = ""


class RecipeFacts(Part):
    """What training asks for."""

    global_batch: Count
    seq: Count
    precision: str
    optimizer: str
    lora: str = ""
    """Adapters in words; empty where all weights train."""


class Term(Part):
    """One entry of a sum, such as a part of the step or of the memory."""

    name: str
    """Stable id, such as ``step.compute``."""
    label: str
    """Words for people."""
    value: float
    """Seconds on the critical path, or bytes."""
    hidden: float = 0.0
    """Seconds that run behind other work."""


class Collective(Part):
    """One communication that a layout change inserts."""

    kind: Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]
    tensor: str
    axis: str
    phase: Literal["forward", "backward", "gradient", "weight"]
    bytes: Share
    """Bytes of the full buffer as nccl-tests counts it."""
    seconds: Share
    """How long it takes."""
    exposed: float
    """Seconds that nothing hides."""


class Stage(Part):
    """One pipeline stage."""

    index: int
    layers: tuple[Runs, ...]
    """Layers of every chunk, folded: ``("0-7", "32-39")``."""
    recompute: dict[str, int] = Field(default_factory=dict)
    """How many of its layers recompute what, where layers differ: the first of every chunk as a whole (``full``), the
    next in part (``selective``)."""
    embedding: bool
    head: bool
    chip: str = ""
    """The chips it stands on, where there are pools of different ones."""
    memory_limit: Positive | None = None
    """Bytes a chip that it may use, where pools differ."""
    forward: Share
    """Seconds of one micro-batch forwards through the stage, all chunks."""
    backward: Share
    """Seconds backwards, recompute included."""
    in_flight: Positive
    """Micro-batches whose activations the stage holds at its peak."""
    memory: tuple[Term, ...]
    memory_total: Positive
    """Bytes; the sum of ``memory``."""
    sends: tuple[Collective, ...] = ()
    """What a rank sends to other stages in one micro-batch: of every chunk its result forwards, and the gradient of its
    input backwards; empty in plans that older versions made."""
    host: Share = 0.0
    """Bytes of host memory for a chip."""


class OperatorPlan(Part):
    """One operator of a block: how it is cut, and what that costs for one micro-batch."""

    name: str
    kind: str
    split: dict[str, str]
    """Axis to the dim that it splits; an axis that is absent splits nothing."""
    by_role: bool = True
    """Whether the trainer's roles give this strategy; else it was pinned, or follows from pins."""
    inputs: dict[str, dict[str, str]]
    """For every tensor read, axis to placement: ``shard(dim)``, ``replicate`` or ``partial``."""
    weights: dict[str, dict[str, str]]
    outputs: dict[str, dict[str, str]]
    operands: tuple[str, ...] = ()
    """These tensors in the order in which the operator takes them: read, weights, written."""
    shape: dict[str, float]
    """Local size of every dim of the iteration space."""
    flops: Share
    """Forward FLOPs on one chip."""
    forward: Share
    """Seconds."""
    backward: Share
    """Seconds, recompute not included."""
    roofline: Share
    """Seconds forwards at the data sheet's peak FLOP/s or bandwidth, whichever is slower."""
    saved: float
    """Bytes kept for the backward pass under the plan's recompute mode."""
    recomputed: bool
    collectives: tuple[Collective, ...]


class BlockPlan(Part):
    """One distinct layer kind; equal layers share it."""

    name: str
    layers: Annotated[str, Field(pattern=rf"^(embedding|head|mtp|{RUNS})$")]
    """Layers that use it, folded: ``3-60``; or ``embedding``, ``head``, ``mtp``."""
    count: Count
    forward: Share
    """Seconds of one micro-batch forwards, everything exposed included: a stage's is the sum over its layers."""
    backward: Share
    """The same backwards, recompute included."""
    sizes: dict[str, Positive] = Field(default_factory=dict)
    """Whole size of every dim, of ``batch`` and ``capacity`` a sequence; empty in plans that older versions made."""
    tensors: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The dims of every tensor, weights included, in order; empty in plans that older versions made."""
    arrives: dict[str, dict[str, str]] = Field(default_factory=dict)
    """How what the layer reads lies before its first operator; the next layer's says how this one leaves its result."""
    operators: tuple[OperatorPlan, ...]
    gradient_collectives: tuple[Collective, ...]
    """Once a step (or a micro-batch, for sharded weights): gradients and gathered weights."""


class Alternative(Part):
    """A candidate that was priced exactly, and why it is not the plan."""

    rank: int
    """From 1; 0 for the user's own layout where it is not one of the best."""
    degrees: Degrees
    step: Positive
    """Seconds."""
    memory: Positive
    """Bytes on the fullest chip, the median."""
    fits: bool
    own: bool = False
    """The layout that the user has."""
    within_noise: bool = False
    """It differs from the winner by less than predictions of layouts of one cluster scatter: either may be faster."""
    reason: str
    """One clause; empty for the winner."""
    difference: tuple[Term, ...] = ()
    """Its terms of the step minus the winner's."""


class Removed(Part):
    """What one rule removed from the space."""

    rule: str
    family: str
    sentence: str
    count: int


class Proof(Part):
    """What is known about plans that were not priced exactly."""

    optimal: bool
    """No layout of the space with even stages, whose layers all recompute alike, is faster in this cost model."""
    bound: Share
    """Seconds; no such layout is faster than this."""
    gap: float
    """(step - bound) / step."""
    searched: int
    """Layouts in the space."""
    allowed: int
    """Layouts that satisfy every rule."""
    fitting: int
    """Layouts whose least memory fits."""
    refined: int
    """Layouts priced exactly."""
    cut_gap: float = 0.0
    """Share of the step by which a plan with other stages could be faster, of the layouts that fit with even ones: what
    bounds leave open of those that were not divided, and of the division of those that were."""
    front: int = 0
    """Layouts on the front of step and memory, where that is the objective."""
    stopped: bool = False
    """A time limit or the user stopped the search."""


class Assumption(Part):
    """Something that the user did not state."""

    key: str
    text: str


class Trust(Part):
    """How far the numbers can be trusted."""

    text: str
    step_error: float | None = None
    """Half width of the interval around the step time that holds 80 % of measured runs, as a share of it; None where
    nothing was measured."""
    memory_error: float | None = None
    """The same of memory."""
    measured: bool = False
    """Whether runs of this chip family were measured."""


class PinPrice(Part):
    """What a pin costs against the best plan without it."""

    pin: str
    """As the user wrote it, or ``all pins``."""
    without: float | None
    """Seconds of the fastest step without it; None where the search had no time left for it."""
    cost: float | None
    """Seconds by which it makes the step slower."""


class Plan(Part):
    """The answer: degrees, stages, operators, predictions, proof, and the reasons."""

    schema_version: Literal["1"] = SCHEMA_VERSION
    made_by: str
    asked: Asked
    """The question, as it was asked."""
    fingerprints: Fingerprints
    model: ModelFacts
    cluster: ClusterFacts
    recipe: RecipeFacts
    trainer: str
    trainer_release: str
    pins: tuple[str, ...]
    pin_prices: tuple[PinPrice, ...] = ()
    """One a pin, and last, where there are several, that of all together."""
    left_open: LeftOpen | None = None
    """What a stated layout left open; None where it is whole, or none was stated."""
    degrees: Degrees
    step: Positive
    """Predicted seconds of one step."""
    time: tuple[Term, ...]
    """Parts of the step; their values sum to ``step``."""
    tokens_per_second: Positive
    """All chips together."""
    tokens_per_second_per_chip: Positive
    """Tokens a second of one chip that is paid for: idle ones count."""
    mfu: Positive
    """Model FLOPs (forward and backward, no recompute, causal attention halved) over the peak of the
    chips that are paid for: idle ones count."""
    price_per_million_tokens: Share | None
    """US dollars; None where no price of a chip-hour is known."""
    memory: Positive
    """Bytes on the fullest chip, the median."""
    memory_upper: Positive
    """Bytes that nine of ten runs stay under; the verdict compares it with the limit."""
    memory_stage: int
    memory_limit: Positive
    """Bytes a chip that a plan may use."""
    host_memory: Share = 0.0
    """Bytes of host memory for the chip that needs most of it."""
    host_limit: Positive | None = None
    """Bytes of host memory that a chip may use; None where nobody knows what there is."""
    fits: bool
    """Whether ``memory_upper`` and ``host_memory`` are within their limits."""
    derivations: dict[str, Derivation] = Field(default_factory=dict)
    """How numbers come about, by their ids: ``step.gradients``, ``memory.weights``, ``mfu``."""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    blocks: Annotated[tuple[BlockPlan, ...], Field(min_length=1)]
    uses: tuple[Use, ...] = ()
    """The ways to use pools of different chips, fastest first; empty where all chips are alike."""
    alternatives: tuple[Alternative, ...]
    removed: tuple[Removed, ...]
    proof: Proof
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    hints: tuple[str, ...] = ()
    """Rules of thumb for what the plan does not decide, such as the learning rate of another batch."""
    extrapolated: tuple[str, ...] = ()
    """What lies beyond all measured runs of this chip family, each with how far they reach."""
    objective: str = ""
    """What another objective than the fastest step came to, in words; empty for that."""
    trust: Trust
    figures: Figures | None = None
    """What only a report shows; None where none was asked for."""


class Remedy(Part):
    """A smallest change that would fit."""

    change: str
    memory: Positive
    """Bytes, the median."""
    limit: Positive
    """Bytes that may be used then."""
    note: str


class NoPlan(Part):
    """No candidate fits: the closest miss, its arithmetic, and the smallest changes that fit."""

    schema_version: Literal["1"] = SCHEMA_VERSION
    made_by: str
    model: ModelFacts
    cluster: ClusterFacts
    recipe: RecipeFacts
    trainer: str
    pins: tuple[str, ...]
    memory_limit: Positive
    """Bytes a chip that a plan may use."""
    closest: Degrees | None
    """The candidate that needs least memory; None where rules removed every candidate."""
    stage: int = 0
    memory: float = 0.0
    """Bytes on the fullest chip, the median."""
    memory_upper: float = 0.0
    """Bytes that nine of ten runs stay under; the verdict compares it with the limit."""
    terms: tuple[Term, ...] = ()
    explanation: str = ""
    """Why the largest term is large."""
    remedies: tuple[Remedy, ...] = ()
    removed: tuple[Removed, ...]
    searched: int
    stopped: bool = False
    """A time limit or the user stopped the search before anything that fits was found."""
    assumptions: tuple[Assumption, ...] = ()

    @property
    def fits(self) -> bool:
        """False, as a plan that does not fit says it too."""
        return False


Answer = Annotated[Plan | NoPlan, Field(union_mode="left_to_right")]
