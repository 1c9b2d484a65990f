"""A block on free axes as a choice problem: nodes and edges as numbers, priced.

Nodes are operators (strategies), tensors (layouts in which they stand) and weights (axes over which their states are
sharded besides); edges are the conversions forwards and backwards. A tensor's node says, for an axis that does not cut
it, whether its gradient is summed there or left partial: conversions backwards start from that. A tensor with several
readers has a second node, a copy that they share: what they want alike is converted once, both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, combinations

import numpy as np

from planner.cost.collectives import collective
from planner.cost.resharding import Conversions, StepKind
from planner.cost.states import state_bytes
from planner.errors import PlannerError, listed, nearest
from planner.graph.placement import Kind, Layout, Split
from planner.search.free_axes import (
    ROWS,
    Side,
    Space,
    Stand,
    Strategies,
    ring,
    seconds,
    stand,
    strategies,
    weight_share,
)
from planner.units import Array, BoolArray, IntArray


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
    """Seconds for the integer program, where memory is limited."""


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A weight at one operator: what sharding its states costs under every strategy."""

    name: str
    operator: int
    table: Array
    """Seconds. Shapes: (strategies, groups)."""
    usage: Array
    """Bytes of states on a rank, of all layers. Shapes: (strategies, groups)."""
    elements: Array
    """Elements on a rank before its states are sharded. Shapes: (strategies,)."""
    partial: BoolArray
    """Axes over which its gradient is partial. Shapes: (strategies, axes)."""

    def group(self, state: int, *, keep: bool) -> int:
        """The group that a state of the weight's node stands for."""
        return state // len(np.unique(self.usage[:, 0])) if keep else state


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Everything priced."""

    space: Space
    wish: Wish
    every: tuple[Strategies, ...]
    compute: tuple[Array, ...]
    inner: tuple[Array, ...]
    """Seconds of sums that operators finish themselves (the loss's statistics)."""
    stands: tuple[Stand, ...]
    groups: tuple[tuple[int, ...], ...]
    """Sets of axes over which states may be sharded."""
    weights: tuple[Weight, ...]

    def exposed(self, name: str, *, again: bool = False) -> float:
        """Exposed share of what a tensor's conversions take, or of those made again for the backward pass."""
        if not self.wish.overlapped:
            return 1.0
        overlap, expert = (
            self.space.task.trainer.overlap,
            ROWS in self.space.block.tensors[name].dims,
        )
        if again and not expert:
            return 0.0  # beside the product that makes the input's gradient
        return overlap.ep if expert else overlap.tp

    def seconds(self, one: Stand, *, again: bool = False) -> Array:
        """Exposed seconds of a tensor's conversions. Shapes: (states, states)."""
        return one.layouts.seconds * self.exposed(one.name, again=again)

    def saved(self, one: Stand) -> Array:
        """Bytes of a tensor that is kept, of all layers and all micro-batches in flight. Shapes: (layouts,)."""
        return one.layouts.local * (self.wish.layers * self.wish.in_flight)


def form_of(s: Space, wish: Wish) -> Form:
    """A block with all its strategies, conversions and weights priced.

    Raises:
        PlannerError: a pin names nothing of the block (N01) or is impossible (N02).
    """
    _named(wish.pins, [op.name for op in s.plain.operators], "operator")
    _named(wish.lies, list(s.block.tensors), "tensor")
    pinned = [_pinned(s, number, wish) for number in range(len(s.plain.operators))]
    every, shared = tuple(pinned), dict[object, Conversions]()
    read = {use.tensor for op in s.plain.operators for use in op.reads}
    names = [name for name in s.plain.tensors if name in read or name in s.plain.outputs]
    stands = [stand(s, name, every, shared, wish.lies.get(name)) for name in names]
    costs = [seconds(s, op, each) for op, each in zip(s.block.operators, every, strict=True)]
    inner = [np.zeros(len(each.table)) for each in every]
    for number, one in enumerate(stands):
        if one.writer is not None and every[one.writer.operator].op.kind == "loss":
            at, summed = one.writer.operator, one.writer.backward
            inner[at] = one.layouts.seconds[one.writer.forward, summed]
            stands[number] = replace(one, writer=replace(one.writer, forward=summed))
    axes = range(len(s.mesh.sizes))
    groups = tuple(chain.from_iterable(combinations(axes, n) for n in range(len(axes) + 1)))
    weights = tuple(
        _weight(s, wish, number, name, every[number], groups)
        for number, op in enumerate(s.plain.operators)
        for name in op.weights
    )
    compute = tuple(c.forward + c.backward for c in costs)
    return Form(s, wish, every, compute, tuple(inner), tuple(stands), groups, weights)


def _named(pins: Iterable[str], names: list[str], what: str) -> None:
    for pin in pins:
        if pin not in names:
            close = listed(nearest(pin, names))
            raise PlannerError.of("N01", f"The block has no {what} {pin}.", f"Nearest: {close}.")


def _pinned(s: Space, number: int, wish: Wish) -> Strategies:
    op = s.plain.operators[number]
    pin = wish.pins.get(op.name)
    free = strategies(s, op)
    if pin is None:
        return free
    unknown = set(pin) - set(s.mesh.names) or {d for d in pin.values() if d not in free.dims}
    found = None if unknown else strategies(s, op, pin)
    if found is None or not len(found.table):
        able = [str(dim) for dim in free.dims if dim is not None]
        asked = ", ".join(f"{axis} = {dim}" for axis, dim in pin.items())
        raise PlannerError.of(
            "N02",
            f"{op.name} cannot be split by {asked}.",
            f"It can split {', '.join(able)} in whole parts by the axes {', '.join(s.mesh.names)}.",
        )
    return found


def _weight(
    s: Space,
    wish: Wish,
    number: int,
    name: str,
    each: Strategies,
    groups: tuple[tuple[int, ...], ...],
) -> Weight:
    """Gathers forwards and backwards, gradients reduced where they are partial, scattered where states are sharded."""
    cut, partial, share = weight_share(s, each, s.plain.tensors[name])
    kinds = state_bytes(s.task)
    elements = s.block.elements(s.block.tensors[name].dims) * share
    columns, usages = [], []
    for group in groups:
        inside = np.isin(np.arange(len(s.mesh.sizes)), group)
        ranks = float(np.prod([s.mesh.sizes[a] for a in group]))
        possible = ~(cut & inside).any(axis=1) & (elements % ranks == 0)
        moves = weight_moves(s, elements, partial, group)
        total = np.zeros(len(elements))
        for kind, _, _, taken in moves:
            total += (
                weight_exposed(s, wish, kind)
                * taken
                / (1 if kind == "all-gather" else wish.micro_batches)
            )
        columns.append(np.where(possible, total, np.inf))
        kept = (kinds.weights + kinds.gradients + kinds.optimizer) * elements / ranks
        usages.append(wish.layers * kept)
    table, usage = np.stack(columns, axis=1), np.stack(usages, axis=1)
    return Weight(name, number, table, usage, elements, partial)


def weight_exposed(s: Space, wish: Wish, kind: StepKind) -> float:
    """Exposed share of gathering a weight or reducing its gradient."""
    overlap = s.task.trainer.overlap
    if not wish.overlapped:
        return 1.0
    return overlap.weights if kind == "all-gather" else overlap.gradients


WeightMove = tuple[Kind, BoolArray, Array, Array]
"""Kind, the axes that take part, bytes and seconds. Shapes: (n, axes), (n,), (n,)."""


def weight_moves(
    s: Space, elements: Array, partial: BoolArray, group: tuple[int, ...]
) -> list[WeightMove]:
    """What a weight costs when its states are sharded over a group; a gather forwards and one backwards."""
    inside = np.broadcast_to(np.isin(np.arange(partial.shape[1]), group), partial.shape)
    whole = elements * s.task.recipe.weight_bytes
    grads = elements * state_bytes(s.task).gradients
    scattered = partial & inside
    less = grads / s.mesh.ranks(scattered)
    wanted: list[tuple[Kind, BoolArray, Array]] = [
        ("reduce-scatter", scattered, grads),
        ("all-reduce", partial & ~inside, less),
    ]
    if group:
        gather: tuple[Kind, BoolArray, Array] = ("all-gather", inside, whole)
        wanted = [gather, gather, *wanted]
    return [(kind, axes, size, _joint(s, kind, axes, size)) for kind, axes, size in wanted]


def _joint(s: Space, kind: Kind, axes: BoolArray, size: Array) -> Array:
    """Seconds of one collective over several axes at once, row by row; 0 where there are none."""
    spread = s.mesh.joint(axes)
    return np.where(axes.any(axis=1), collective(kind, size, spread, s.mesh.cluster), 0.0)


@dataclass(slots=True)
class Numbers:
    """Nodes and edges as numbers; operators come first."""

    costs: list[Array] = field(default_factory=list)
    usages: list[Array | None] = field(default_factory=list)
    tables: dict[tuple[int, int], Array] = field(default_factory=dict)

    def node(self, cost: Array, usage: Array | None = None) -> int:
        self.costs.append(cost)
        self.usages.append(usage)
        return len(self.costs) - 1

    def cost(self, choice: IntArray) -> float:
        """What a choice costs. Shapes: (nodes,)."""
        total = sum(float(cost[k]) for cost, k in zip(self.costs, choice, strict=True))
        pairs = self.tables.items()
        return total + sum(float(table[choice[i], choice[j]]) for (i, j), table in pairs)

    def edge(self, first: int, second: int, table: Array) -> None:
        pair, turned = ((first, second), table) if first < second else ((second, first), table.T)
        self.tables[pair] = self.tables[pair] + turned if pair in self.tables else turned


def bare(layouts: Conversions) -> IntArray:
    """Every layout with copies where gradients may be partial. Shapes: (layouts,)."""
    codes = np.array(layouts.layouts)
    return layouts.at(np.where(codes == 1, 0, codes))


def _tensor_cost(form: Form, one: Stand) -> Array:
    """0 for the layouts in which a tensor may stand, else inf."""
    codes = np.array(one.layouts.layouts)
    cost = np.zeros(len(codes))
    gradient = form.space.plain.tensors[one.name].kind in ("activation", "statistic")
    if one.writer is None or not one.readers or not gradient:
        cost[(codes == 1).any(axis=1)] = np.inf
    pair = ring(form.space.block) if form.wish.repeated else None
    for name in pair if pair is not None and one.name == pair[1] else (one.name,):
        if (wanted := form.wish.lies.get(name)) is not None:
            cost[bare(one.layouts) != one.layouts.number(wanted)] = np.inf
    return cost


def _written_table(form: Form, one: Stand, side: Side, *, keep: bool) -> Array:
    """Seconds from a writer to where the tensor stands, and of the gradient back. Shapes: (strategies, layouts)."""
    cost, ends = form.seconds(one), bare(one.layouts)
    table = cost[np.ix_(side.forward, ends)]
    if has_gradient(form, one):
        table = table + cost[: len(ends)][:, side.backward].T
    if keep and side.saves:
        table = table + form.seconds(one, again=True)[np.ix_(ends, side.backward)].T
    return table


def _read_table(form: Form, one: Stand, side: Side, *, keep: bool) -> Array:
    """Seconds from where a tensor stands to a reader, and of the gradient back. Shapes: (layouts, strategies)."""
    cost, ends = form.seconds(one), bare(one.layouts)
    table = cost[np.ix_(ends, side.forward)]
    if keep and side.saves:
        table = table + form.seconds(one, again=True)[np.ix_(ends, side.forward)]
    if has_gradient(form, one):
        table = table + cost[side.backward][:, : len(ends)].T
    return table


def _copied_table(form: Form, one: Stand, *, keep: bool) -> Array:
    """Seconds from where a tensor stands to the copy that its readers share, and of their gradients back."""
    cost, ends = form.seconds(one), bare(one.layouts)
    table = cost[np.ix_(ends, ends)]
    if keep and any(side.saves for side in one.readers):
        table = table + form.seconds(one, again=True)[np.ix_(ends, ends)]
    if has_gradient(form, one):
        table = table + cost[: len(ends), : len(ends)].T
    return table


def has_gradient(form: Form, one: Stand) -> bool:
    return form.space.plain.tensors[one.name].kind in ("activation", "statistic")


def is_saved(one: Stand) -> bool:
    return any(side.saves for side in (*one.readers, *([one.writer] if one.writer else [])))


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where things are among the nodes."""

    kept: tuple[int, ...]
    """Node of every stand: the layout that is kept."""
    used: tuple[int, ...]
    """Node of the copy that its readers share; the same where there is only one."""
    weights: tuple[int, ...]


def numbers(form: Form, *, keep: bool) -> tuple[Numbers, Nodes]:
    """The choice problem; with ``keep``, one layout a saved tensor is kept and others are made again backwards."""
    p, kept, used = Numbers(), [], []
    apart = loose(form)
    for number, (compute, inner) in enumerate(zip(form.compute, form.inner, strict=True)):
        p.node(compute + inner, apart[number] if keep else None)
    for one in form.stands:
        cost, saved = _tensor_cost(form, one), keep and is_saved(one)
        usage = form.saved(one)[bare(one.layouts)] if saved else None
        kept.append(p.node(cost, usage))
        used.append(kept[-1])
        if len(one.readers) > 1:
            used[-1] = p.node(np.zeros(len(cost)))
            p.edge(kept[-1], used[-1], _copied_table(form, one, keep=keep))
        if one.writer is not None:
            table = _written_table(form, one, one.writer, keep=keep)
            p.edge(one.writer.operator, kept[-1], table)
        for side in one.readers:
            p.edge(used[-1], side.operator, _read_table(form, one, side, keep=keep))
    return p, Nodes(tuple(kept), tuple(used), _add_weights(form, p, keep=keep))


def _add_weights(form: Form, p: Numbers, *, keep: bool) -> tuple[int, ...]:
    """A node a weight: the group; with ``keep`` also the operator's share of it, so that bytes are the node's."""
    nodes = []
    for weight in form.weights:
        count, groups = weight.table.shape
        if not keep:
            nodes.append(p.node(np.zeros(groups)))
            p.edge(weight.operator, nodes[-1], weight.table)
            continue
        sizes, which = np.unique(weight.usage[:, 0], return_inverse=True)
        usage = weight.usage[np.unique(which, return_index=True)[1]]
        nodes.append(p.node(np.zeros(usage.size), usage.T.ravel()))
        table = np.full((count, groups, len(sizes)), np.inf)
        table[np.arange(count), :, which.ravel()] = weight.table
        p.edge(weight.operator, nodes[-1], table.reshape(count, -1))
    return tuple(nodes)


def loose(form: Form) -> list[Array]:
    """Bytes that operators keep of tensors that nobody reads (masks, statistics). Shapes: (strategies,) each."""
    held = form.wish.layers * form.wish.in_flight
    s, standing = form.space, {one.name for one in form.stands}
    found = []
    for each in form.every:
        total, parts = np.zeros(len(each.table)), each.parts(s.mesh)
        for name in each.op.saves:
            if name not in standing:
                cuts = [parts[d] for d in s.plain.tensors[name].dims if d in parts]
                total += s.bytes_of(name) / np.prod([np.ones(len(total)), *cuts], axis=0)
        found.append(total * held)
    return found
