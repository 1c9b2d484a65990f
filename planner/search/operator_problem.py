"""A block on free axes as a choice problem: nodes and edges as numbers, priced.

Nodes are operators (strategies), tensors (layouts in which they stand) and weights (how they lie and over which axes
their states are sharded besides); edges are the conversions forwards and backwards. A tensor's node says, for an axis
that does not cut it, whether its gradient is summed there or left partial: conversions backwards start from that. A
tensor with several readers has a node more for every copy that they share (:mod:`planner.search.copies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.resharding import Conversions, StepKind
from planner.errors import PlannerError, listed, nearest
from planner.search.copies import Tree, Trees, leaves
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
)
from planner.search.free_weights import Weight, weight_exposed, weights_of
from planner.search.wish import Wish
from planner.units import Array, IntArray


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

    def hides(self, kind: StepKind) -> bool:
        """Whether a weight is gathered, or its gradient reduced, while other operators run."""
        return weight_exposed(self.space, self.wish, kind) < 1.0

    def seconds(self, one: Stand, *, again: bool = False) -> Array:
        """Exposed seconds of a tensor's conversions. Shapes: (states, states)."""
        return one.layouts.seconds * self.exposed(one.name, again=again)

    @property
    def held(self) -> float:
        """Times that a rank holds what a layer saves of a micro-batch: one at least, while it is under way."""
        return max(1.0, self.wish.layers * self.wish.in_flight)


def form_of(s: Space, wish: Wish) -> Form:
    """A block with all its strategies, conversions and weights priced.

    Raises:
        PlannerError: a pin names nothing of the block (N01) or is impossible (N02), or there are too many axes (N05).
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
    compute = tuple(c.forward + c.backward for c in costs)
    weights = weights_of(s, wish, every)
    return Form(s, wish, every, compute, tuple(inner), tuple(stands), weights)


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


@dataclass(slots=True)
class Numbers:
    """Nodes and edges as numbers; operators come first."""

    costs: list[Array] = field(default_factory=list)
    tables: dict[tuple[int, int], Array] = field(default_factory=dict)

    def node(self, cost: Array) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def cost(self, choice: IntArray) -> float:
        """What a choice costs. Shapes: (nodes,)."""
        total = sum(float(cost[k]) for cost, k in zip(self.costs, choice, strict=True))
        pairs = self.tables.items()
        return total + sum(float(table[choice[i], choice[j]]) for (i, j), table in pairs)

    def most(self) -> float:
        """No allowed choice costs more."""
        parts = [*self.costs, *self.tables.values()]
        return sum(float(part[np.isfinite(part)].max(initial=0.0)) for part in parts)

    def allowed(self) -> Numbers:
        """The same where whatever is allowed costs nothing."""
        costs = [np.where(np.isfinite(cost), 0.0, np.inf) for cost in self.costs]
        tables = {e: np.where(np.isfinite(t), 0.0, np.inf) for e, t in self.tables.items()}
        return Numbers(costs, tables)

    def only(self, kept: Sequence[IntArray]) -> Numbers:
        """With these states of every node alone."""
        costs = [cost[states] for cost, states in zip(self.costs, kept, strict=True)]
        return Numbers(costs, {pair: among(t, pair, kept) for pair, t in self.tables.items()})

    def edge(self, first: int, second: int, table: Array) -> None:
        pair, turned = ((first, second), table) if first < second else ((second, first), table.T)
        self.tables[pair] = self.tables[pair] + turned if pair in self.tables else turned


def among(table: Array, nodes: Sequence[int], kept: Sequence[IntArray]) -> Array:
    """The part of a table that some states of its nodes have. Shapes: (states,) of each node."""
    for axis, node in enumerate(nodes):
        if len(kept[node]) < table.shape[axis]:
            table = table.take(kept[node], axis)
    return table


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


def _copied_table(form: Form, one: Stand, *, again: bool) -> Array:
    """Seconds from a tensor or a copy of it to a copy, and of the gradient back; with ``again`` made a second time."""
    cost, ends = form.seconds(one), bare(one.layouts)
    table = cost[np.ix_(ends, ends)]
    if again:
        table = table + form.seconds(one, again=True)[np.ix_(ends, ends)]
    if has_gradient(form, one):
        table = table + cost[: len(ends), : len(ends)].T
    return table


def has_gradient(form: Form, one: Stand) -> bool:
    return form.space.plain.tensors[one.name].kind in ("activation", "statistic")


def is_saved(one: Stand) -> bool:
    return any(side.saves for side in (*one.readers, *([one.writer] if one.writer else [])))


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that readers share."""

    source: int
    """Node of what it is made from."""
    node: int
    readers: tuple[int, ...]
    """Those that share it."""
    again: bool
    """Whether it is made a second time for the backward pass."""


@dataclass(slots=True)
class Places:
    """Where a tensor stands among the nodes."""

    kept: int
    """The layout that is kept."""
    copies: list[Copy] = field(default_factory=list)
    """Each after what it is made from."""
    read: dict[int, int] = field(default_factory=dict)
    """What every reader takes."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where things are among the nodes."""

    stands: tuple[Places, ...]
    weights: tuple[int, ...]


def numbers(form: Form, trees: Trees, *, keep: bool) -> tuple[Numbers, Nodes]:
    """The choice problem where readers share copies in a given way.

    Args:
        form: all that is priced.
        trees: of every tensor with readers; those that a tree lacks cost nothing.
        keep: one layout a saved tensor is kept, and others are made again backwards.
    """
    p, stands = Numbers(), []
    for compute, inner in zip(form.compute, form.inner, strict=True):
        p.node(compute + inner)
    for one in form.stands:
        places = Places(p.node(_tensor_cost(form, one)))
        stands.append(places)
        if one.writer is not None:
            table = _written_table(form, one, one.writer, keep=keep)
            p.edge(one.writer.operator, places.kept, table)
        if one.readers:
            _add_readers(form, p, one, places, trees[one.name], places.kept, keep=keep)
    weights = []
    for weight in form.weights:
        weights.append(p.node(weight.seconds))
        for operator, table in zip(weight.operators, weight.tables, strict=True):
            p.edge(operator, weights[-1], table)
    return p, Nodes(tuple(stands), tuple(weights))


def _add_readers(
    form: Form, p: Numbers, one: Stand, places: Places, tree: Tree, source: int, *, keep: bool
) -> None:
    """A reader takes the source; branches take a copy of it."""
    if isinstance(tree, int):
        side = one.readers[tree]
        places.read[tree] = source
        p.edge(source, side.operator, _read_table(form, one, side, keep=keep))
        return
    below = leaves(tree)
    again = keep and any(one.readers[reader].saves for reader in below)
    copy = Copy(source, p.node(np.zeros(len(one.layouts.layouts))), below, again)
    places.copies.append(copy)
    p.edge(source, copy.node, _copied_table(form, one, again=again))
    for branch in tree:
        _add_readers(form, p, one, places, branch, copy.node, keep=keep)


def loose(form: Form) -> list[Array]:
    """Bytes of one micro-batch that operators keep of tensors that nobody reads (masks). Shapes: (strategies,) each."""
    s, standing = form.space, {one.name for one in form.stands}
    found = []
    for each in form.every:
        total, parts = np.zeros(len(each.table)), each.parts(s.mesh)
        for name in each.op.saves:
            if name not in standing:
                cuts = [parts[d] for d in s.plain.tensors[name].dims if d in parts]
                total += s.bytes_of(name) / np.prod([np.ones(len(total)), *cuts], axis=0)
        found.append(total)
    return found
