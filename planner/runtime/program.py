"""What is run: blocks of operators with their layouts, the mesh, stages, schedule and states, read from an export.

The form is that of ``export --to dtensor`` (:mod:`planner.export.dtensor`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from planner.errors import PlannerError
from planner.units import Json

Placements = Mapping[str, str]
"""Of every axis what it does to a tensor: ``shard(dim)``, ``replicate`` or ``partial``."""
DENSE, EXPERT = ("dp", "cp", "tp"), ("edp", "ep", "etp")
"""Two ways to count the ranks of a stage."""
KEEP_NOTHING = ("layout", "dropout", "split_v", "join", "add")
"""Words in the names of passes over memory that keep nothing for the backward pass."""


@dataclass(frozen=True, slots=True)
class Move:
    """A collective that the plan has, for one micro-batch."""

    phase: str
    kind: str
    tensor: str
    axis: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator."""

    name: str
    kind: str
    reads: Mapping[str, Placements]
    """Tensors read, in order, and how they lie then."""
    writes: Mapping[str, Placements]
    weights: Mapping[str, Placements]
    recomputed: bool
    moves: tuple[Move, ...]

    @property
    def keeps(self) -> bool:
        """Whether it keeps anything for the backward pass: sums and views do not."""
        return self.kind != "memory" or not any(word in self.name for word in KEEP_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of layer, or the embedding, or the head."""

    name: str
    sizes: Mapping[str, int]
    """Whole size of every dim, of ``batch`` and ``capacity`` a micro-batch of all ranks."""
    tensors: Mapping[str, tuple[str, ...]]
    """Dims of every tensor."""
    arrives: Mapping[str, Placements]
    ops: tuple[Op, ...]
    states: tuple[Move, ...]
    """What the plan does with weights and their gradients."""

    @property
    def input(self) -> str:
        """The tensor that comes from the layer before."""
        return next(iter(self.arrives))

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of its weights, in order."""
        return tuple(dict.fromkeys(name for op in self.ops for name in op.weights))

    @property
    def gathered_again(self) -> frozenset[str]:
        """Tensors that are gathered once more for the backward pass."""
        moves = [m for op in self.ops for m in op.moves]
        return frozenset(m.tensor for m in moves if (m.phase, m.kind) == ("backward", "all-gather"))

    def placed(self, weight: str) -> Placements:
        """How a weight lies."""
        return next(op.weights[weight] for op in self.ops if weight in op.weights)

    @property
    def recomputed(self) -> bool:
        """It is computed again as a whole."""
        return all(op.recomputed for op in self.ops)

    def recomputing(self, *, whole: bool) -> Part:
        """The same with all its operators computed again, or none."""
        return replace(self, ops=tuple(replace(op, recomputed=whole) for op in self.ops))

    @property
    def output(self) -> str:
        """The tensor that goes to the layer after."""
        return next(iter(self.ops[-1].writes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A plan as the runtime sees it."""

    axes: Mapping[str, int]
    """Ranks of every axis: of the mesh as it is laid out, outermost first, then of the experts' view of it."""
    shard: int
    """Data ranks over which states are sharded."""
    level: int
    """State sharding, 0 to 3."""
    visits: tuple[int, ...]
    """Layers of every chunk in the order in which a token meets them."""
    schedule: str
    micro_batch: int
    """Sequences of a micro-batch of one data rank."""
    micro_batches: int
    embedding: Part
    layers: tuple[Part, ...]
    head: Part
    mtp: tuple[Part, ...] = ()
    """Modules for multi-token prediction, on the last stage."""
    again: bool = True
    """What was gathered is gathered again for the backward pass instead of being kept."""
    sent: float = 0.0
    """Bytes of what a rank sends to another stage in a micro-batch, or of its gradient."""

    @property
    def ranks(self) -> int:
        return prod(size for axis, size in self.axes.items() if axis not in EXPERT)

    @property
    def pp(self) -> int:
        return self.axes.get("pp", 1)

    @property
    def data(self) -> int:
        """Ranks that hold the same weights, those of context parallelism among them."""
        return self.axes.get("dp", 1) * self.axes.get("cp", 1)

    @property
    def splits_loss(self) -> bool:
        """The vocabulary of the loss is cut, so that its statistics are sums."""
        placed = next(iter(self.head.ops[-1].writes.values()))
        return any(p == "partial" and self.axes[a] > 1 for a, p in placed.items())

    @property
    def has_experts(self) -> bool:
        """Some layers have experts, whose ranks are counted in a view of their own."""
        return any("experts" in part.sizes for part in self.parts)

    @property
    def expert_parallel(self) -> bool:
        """Experts lie otherwise than the rest: over fewer data ranks."""
        cut = self.axes.get("ep", 1) * self.axes.get("etp", 1) * self.axes.get("tp", 1)
        return self.has_experts and cut > 1

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.embedding, *self.layers, *self.mtp, self.head)

    @property
    def ends(self) -> tuple[Part, ...]:
        """Parts that may share tables, in the order in which they come to own one."""
        return (self.embedding, self.head, *self.mtp)

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Weights of several ends, each with its dims in the first of them."""
        held = [name for part in self.ends for name in part.weights]
        return {
            name: next(part.tensors[name] for part in self.ends if name in part.weights)
            for name in held
            if held.count(name) > 1
        }

    @property
    def tied(self) -> bool:
        """The first and the last part of the model have a table together."""
        return bool(self.tables.keys() & set(self.embedding.weights))

    @property
    def folded(self) -> bool:
        """The chunks of the stages stand in a V."""
        return self.schedule in ("zbv", "dualpipev")

    def chunks_of(self, stage: int) -> list[int]:
        """Chunks of a stage in order; schedules in a V turn back at the last stage."""
        return [
            (turn + 1) * self.pp - 1 - stage if self.folded and turn % 2 else turn * self.pp + stage
            for turn in range(len(self.visits) // self.pp)
        ]

    def parts_of(self, chunk: int) -> list[Part]:
        """What a chunk runs."""
        start = sum(self.visits[:chunk])
        last = chunk == len(self.visits) - 1
        return [
            *[self.embedding] * (chunk == 0),
            *self.layers[start : start + self.visits[chunk]],
            *[self.head, *self.mtp] * last,
        ]

    def together(self, parts: Sequence[Part]) -> list[list[Part]]:
        """Parts of a chunk by whose states are gathered at once: each by itself, but those that share a table."""
        sharing = [p for p in self.ends if p in parts and self.tables.keys() & set(p.weights)]
        if len(sharing) < 2:
            return [[part] for part in parts]
        return [sharing, *([part] for part in parts if part not in sharing)]

    def passed(self, stage: int) -> list[tuple[str, str]]:
        """What a stage sends and receives in a micro-batch: phase, and ``send`` or ``receive``."""
        where = {chunk: s for s in range(self.pp) for chunk in self.chunks_of(s)}
        found = []
        for chunk in self.chunks_of(stage):
            if where.get(chunk + 1, stage) != stage:
                found += [("forward", "send"), ("backward", "receive")]
            if where.get(chunk - 1, stage) != stage:
                found += [("forward", "receive"), ("backward", "send")]
        return found

    @property
    def sequence_parallel(self) -> bool:
        """The stream between layers is cut by tp."""
        return self.layers[0].arrives[self.layers[0].input].get("tp") == "shard(seq)"


def program(settings: Json) -> Program:
    """An export of a plan, with the numbers that it has.

    Raises:
        PlannerError: the plan was made by a version that did not say how operators take their tensors (W06).
    """
    older = {
        "in which order operators take tensors": not all(
            op["operands"] for b in settings["blocks"].values() for op in b["operators"].values()
        ),
        "what stages send": settings["mesh"].get("pp", 1) > 1 and not all(settings["sends"]),
    }
    for what in (what for what, lacks in older.items() if lacks):
        raise PlannerError.of(
            "W06", f"The plan does not say {what}.", "Make it again: shardwright plan …"
        )
    schedule, states = settings["schedule"], settings["states"]
    sequences = schedule["micro_batch"] * settings["mesh"]["dp"]
    blocks: dict[str | int, Part] = {}
    for name, block in settings["blocks"].items():
        blocks |= dict.fromkeys(_places(block["layers"]), _part(name, block, sequences))
    mesh, experts = dict(settings["mesh"]), settings["experts"]
    again = settings["recompute"]
    modules = next((b["count"] for b in settings["blocks"].values() if b["layers"] == "mtp"), 0)
    sent = [c["bytes"] for stage in settings["sends"] for c in stage]
    edp = prod(mesh[axis] for axis in DENSE) // (experts["ep"] * experts["etp"])
    return Program(
        axes=mesh | {"edp": edp} | experts,
        shard=states["shard"],
        level=states["level"],
        visits=tuple(len(visit) for visit in settings["stages"]),
        schedule=schedule["name"],
        micro_batch=schedule["micro_batch"],
        micro_batches=schedule["micro_batches"],
        embedding=blocks["embedding"],
        layers=tuple(_layers(blocks, settings["stages"], again["whole"], again["in_part"])),
        head=blocks["head"],
        mtp=(blocks["mtp"],) * modules if modules else (),
        sent=max(sent, default=0.0),
    )


def _layers(
    blocks: Mapping[str | int, Part], visits: Json, whole: Sequence[int], some: Sequence[int]
) -> Iterator[Part]:
    """The part of every layer, with what it computes again. Equal layers share one."""
    made: dict[tuple[int, bool, bool], Part] = {}
    for layer in (layer for visit in visits for layer in visit):
        part, key = blocks[layer], (id(blocks[layer]), layer in whole, layer in some)
        if key not in made:
            made[key] = part if layer in some else part.recomputing(whole=layer in whole)
        yield made[key]


def _places(layers: str) -> list[str | int]:
    """Where a block stands: by name, or the numbers of its layers.

    >>> _places("0-2, 5"), _places("head")
    ([0, 1, 2, 5], ['head'])
    """
    if layers[:1].isalpha():
        return [layers]
    pairs = (run.strip().partition("-") for run in layers.split(","))
    return [n for first, _, last in pairs for n in range(int(first), int(last or first) + 1)]


def _part(name: str, block: Json, sequences: int) -> Part:
    grows = ("batch", "capacity")
    return Part(
        name=name,
        sizes={
            d: round(n * sequences) if d in grows else int(n) for d, n in block["sizes"].items()
        },
        tensors={tensor: tuple(dims) for tensor, dims in block["tensors"].items()},
        arrives=block["arrives"],
        ops=tuple(
            Op(
                name=op,
                kind=found["kind"],
                reads=_in_order(found, "inputs"),
                writes=_in_order(found, "outputs"),
                weights=_in_order(found, "weights"),
                recomputed=found["recomputed"],
                moves=_moves(found["collectives"]),
            )
            for op, found in block["operators"].items()
        ),
        states=_moves(block["states"]),
    )


def _in_order(op: Json, kind: str) -> dict[str, Placements]:
    """Tensors of one kind in the order in which an operator takes them."""
    return {name: op[kind][name] for name in op["operands"] if name in op[kind]}


def _moves(found: list[Json]) -> tuple[Move, ...]:
    names = ("phase", "kind", "tensor", "axis", "bytes")
    return tuple(Move(*(item[name] for name in names)) for item in found)
