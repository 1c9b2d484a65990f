"""The per-operator plan of one block on a mesh of free axes: the strategy of every operator, exact.

Nothing here knows a scheme: data, fully sharded, tensor, sequence, context, vocabulary and expert parallelism are what
the cheapest choice turns out to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from planner.cost.resharding import FreeMesh, Step
from planner.cost.strategies import Phase
from planner.errors import PlannerError
from planner.graph.operator import Block, DimName
from planner.graph.placement import AxisName, Layout, Split
from planner.search.copies import Trees, cheapest
from planner.search.free_axes import Stand, Strategies, ring, space
from planner.search.free_weights import Weight, weight_exposed
from planner.search.narrow import narrow
from planner.search.operator_problem import (
    Form,
    Nodes,
    Numbers,
    Places,
    bare,
    form_of,
    has_gradient,
    is_saved,
    loose,
    numbers,
)
from planner.search.solver import Memory, TooWideError, eliminate
from planner.search.solver import build as build_problem
from planner.search.solver.solve import solve
from planner.search.wish import Wish as Wish
from planner.trainers.trainer import Task
from planner.units import Array, IntArray, show_bytes

DEAREST = 1.0
"""Seconds a byte at which memory is all that counts."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective that the plan inserts."""

    phase: Phase
    tensor: str
    operator: str
    """The operator that waits for it, or that left what it moves."""
    step: Step
    exposed: float
    """Seconds of it that nothing hides."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan of a block."""

    splits: Mapping[str, Split]
    """The strategy of every operator; the rows of experts go by the tokens' dims whose cut they inherit."""
    layouts: Mapping[str, Layout]
    """How every tensor stands between its writer and its readers, partial gradients of copies not shown."""
    states: Mapping[str, tuple[AxisName, ...]]
    """Axes over which the states of every weight are sharded besides those that its operator splits."""
    collectives: tuple[Collective, ...]
    seconds: float
    """Forwards and backwards of one micro-batch, gradients by their share; exposed or as the trainer hides it."""
    compute: float
    """Seconds of that in which kernels run."""
    memory: float
    """Bytes a rank of states and saved activations, of all layers and all micro-batches in flight."""
    bound: float
    """No plan takes less."""


def solve_block(block: Block, mesh: FreeMesh, task: Task, wish: Wish) -> Choice:
    """The fastest plan of a block on a mesh: exact, or with a proven bound where memory is limited.

    Args:
        block: as the model has it.
        mesh: free axes.
        task: cluster, recipe and trainer, for kernels and bytes.
        wish: batch, memory and what is fixed.

    Raises:
        PlannerError: a pin is impossible (N02) or the pins exclude each other (N03).
    """
    form = form_of(space(block, mesh, task, wish.sequences, repeated=wish.repeated), wish)

    limit = wish.memory_limit

    def solved(trees: Trees, known: _Solved | None, seconds: float) -> _Solved:
        p, nodes = numbers(form, trees, keep=limit is not None)
        if limit is None:
            return _free(p, nodes, known.cost if known else np.inf, seconds)
        if known is None:
            return _limited(p, nodes, limit, seconds)
        return _proved(p, nodes, limit, known, seconds)

    readers = {one.name: len(one.readers) for one in form.stands}
    best, bound = cheapest(readers, solved, wish.time_limit)
    return _told(form, best, bound, keep=limit is not None)


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """The best choice where readers share copies in a given way."""

    nodes: Nodes
    choice: IntArray
    """Empty where none costs less than what was known."""
    cost: float
    bound: float
    price: float = 0.0
    """Of memory, with the highest bound."""


def _none(nodes: Nodes, bound: float) -> _Solved:
    """No choice that costs less than what was known."""
    return _Solved(nodes, np.zeros(0, dtype=np.int64), np.inf, bound)


def _free(p: Numbers, nodes: Nodes, known: float, seconds: float) -> _Solved:
    choice, bound = _least(p.costs, p, seconds, known)
    if choice is None:
        return _none(nodes, bound)
    cost = p.cost(choice)
    return _Solved(nodes, choice, cost, min(bound, cost))


def _least(
    costs: list[Array], p: Numbers, seconds: float, known: float = np.inf
) -> tuple[IntArray | None, float]:
    """The optimum with these node costs and its value; where it is too wide for elimination, the best and a bound.

    None where nothing costs less than what is known.
    """
    left = narrow(costs, list(p.tables), list(p.tables.values()), known)
    if left is None:
        return _nothing(known)
    try:
        found = eliminate(left.costs, left.edges, left.tables)
        reached, bound = found.choice, float(found.value)
    except TooWideError:
        answer = solve(build_problem(left.costs, left.edges, left.tables), seconds=seconds)
        if answer.choice is None:
            return _nothing(known if answer.bound == np.inf else min(known, answer.bound))
        reached, bound = answer.choice, answer.bound
    if not np.isfinite(bound):
        return _nothing(known)
    choice = [kept[k] for kept, k in zip(left.kept, reached.tolist(), strict=True)]
    return np.array(choice, dtype=np.int64), bound


def _nothing(bound: float) -> tuple[None, float]:
    if bound == np.inf:
        raise PlannerError.of(
            "N03", "The pinned strategies and layouts exclude each other.", "Pin fewer operators."
        )
    return None, bound


@dataclass(frozen=True, slots=True)
class _Priced:
    """The optimum where memory has a price."""

    choice: IntArray
    cost: float
    usage: float
    bound: float
    price: float


def _limited(p: Numbers, nodes: Nodes, limit: float, seconds: float) -> _Solved:
    """A price of memory first: its bound rules strategies out, and the integer program decides among the rest."""
    usages = p.used()

    def priced(price: float) -> _Priced:
        costs = [cost + price * usage for cost, usage in zip(p.costs, usages, strict=True)]
        choice, value = _least(costs, p, seconds)
        assert choice is not None
        used = sum(float(u[k]) for u, k in zip(usages, choice, strict=True))
        return _Priced(choice, p.cost(choice), used, value - price * limit, price)

    least = priced(0.0)
    if least.usage <= limit:
        return _Solved(nodes, least.choice, least.cost, least.bound)
    best, tight = _prices(priced, least, limit)
    found = _Solved(nodes, best.choice, best.cost, tight.bound, tight.price)
    if best.cost - tight.bound <= 1e-9 * best.cost:
        return found
    better = _proved(p, nodes, limit, found, seconds)
    bound = max(tight.bound, better.bound)
    return replace(better if len(better.choice) else found, bound=bound)


def _prices(
    priced: Callable[[float], _Priced], least: _Priced, limit: float
) -> tuple[_Priced, _Priced]:
    """The best choice met that fits, and the price with the highest bound (secants of the dual, exact)."""
    dear = priced(DEAREST)
    if dear.usage > limit:
        raise PlannerError.of(
            "N02",
            f"The block cannot keep within {show_bytes(limit)} a rank.",
            f"The least it takes is {show_bytes(dear.usage)}: give it more, or more ranks.",
        )
    best, low, high = dear, least, dear
    tight = max(least, dear, key=lambda one: one.bound)
    while True:
        price = (high.cost - low.cost) / (low.usage - high.usage)
        middle = priced(price)
        if middle.bound > tight.bound:
            tight = middle
        if middle.usage <= limit and middle.cost < best.cost:
            best = middle
        flat = low.cost + price * (low.usage - limit)
        if middle.bound >= flat - 1e-9 * abs(flat):
            return best, tight
        low, high = (low, middle) if middle.usage <= limit else (middle, high)


def _proved(p: Numbers, nodes: Nodes, limit: float, known: _Solved, seconds: float) -> _Solved:
    """The integer program over the strategies that prices leave, for what costs less than is known."""
    pairs, usages, price = list(p.tables), p.used(), known.price
    costs = [c + price * u for c, u in zip(p.costs, usages, strict=True)]
    left = narrow(costs, pairs, list(p.tables.values()), known.cost + price * limit)
    if left is None:
        return _none(nodes, known.cost)
    some = [v for v, usage in enumerate(p.usages) if usage is not None]
    memory = Memory(
        nodes=np.array(some, dtype=np.int64),
        lo=np.zeros(len(some), dtype=np.int64),
        hi=np.ones(len(some), dtype=np.int64),
        usages=np.concatenate([usages[v][left.kept[v]] for v in some]),
        limit=limit,
    )
    real = [cost[kept] for cost, kept in zip(p.costs, left.kept, strict=True)]
    answer = solve(build_problem(real, pairs, left.tables, memory), seconds=seconds)
    bound = min(answer.bound, known.cost)
    if answer.choice is None or answer.cost >= known.cost:
        return _none(nodes, bound)
    chosen = zip(left.kept, answer.choice.tolist(), strict=True)
    choice = np.array([kept[k] for kept, k in chosen], dtype=np.int64)
    return _Solved(nodes, choice, answer.cost, bound, price)


def _told(form: Form, found: _Solved, bound: float, *, keep: bool) -> Choice:
    """A choice in names, with all that it moves."""
    s, count, nodes, choice = form.space, len(form.every), found.nodes, found.choice
    layouts: dict[str, Layout] = {}
    moves: list[Collective] = []
    for one, places in zip(form.stands, nodes.stands, strict=True):
        ends = bare(one.layouts)
        layouts[one.name] = one.layouts.placements(int(ends[choice[places.kept]]))
        moves += _moved(form, one, choice, places, keep=keep)
    if form.wish.repeated and (pair := ring(s.block)):
        layouts[pair[0]] = layouts[pair[1]]
    states = {}
    for weight, node in zip(form.weights, nodes.weights, strict=True):
        state = int(choice[node])
        states[weight.name] = tuple(s.mesh.names[a] for a in weight.groups[state])
        moves += _weight_moved(form, weight, state)
    return Choice(
        splits={
            each.op.name: each.split(s.mesh, int(k))
            for each, k in zip(form.every, choice[:count], strict=True)
        },
        layouts=layouts,
        states=states,
        collectives=tuple(moves),
        seconds=found.cost,
        compute=sum(float(c[k]) for c, k in zip(form.compute, choice[:count], strict=True)),
        memory=_memory(form, nodes, choice, keep=keep),
        bound=bound,
    )


_Leg: TypeAlias = tuple[Phase, int, int, int, bool]
"""Phase, the operator that waits, from which to which layout, and whether it is made again for the backward pass."""


def _legs(
    one: Stand, choice: IntArray, places: Places, *, keep: bool, back: bool
) -> Iterator[_Leg]:
    """All conversions of a tensor."""
    ends, kept = bare(one.layouts), int(choice[places.kept])
    if one.writer is not None:
        operator, own = one.writer.operator, one.writer
        k = choice[operator]
        yield "forward", operator, int(own.forward[k]), int(ends[kept]), False
        if back:
            yield "backward", operator, kept, int(own.backward[k]), False
        if keep and own.saves:
            yield "backward", operator, int(ends[kept]), int(own.backward[k]), True
    for copy in places.copies:
        first = one.readers[copy.reader].operator
        have, want = int(choice[copy.source]), int(choice[copy.node])
        yield "forward", first, int(ends[have]), int(ends[want]), False
        if copy.again:
            yield "backward", first, int(ends[have]), int(ends[want]), True
        if back:
            yield "backward", first, want, have, False
    for reader, side in enumerate(one.readers):
        used = int(choice[places.read[reader]])
        k = choice[side.operator]
        yield "forward", side.operator, int(ends[used]), int(side.forward[k]), False
        if keep and side.saves:
            yield "backward", side.operator, int(ends[used]), int(side.forward[k]), True
        if back:
            yield "backward", side.operator, int(side.backward[k]), used, False


def _moved(
    form: Form, one: Stand, choice: IntArray, places: Places, *, keep: bool
) -> Iterator[Collective]:
    for phase, operator, have, want, again in _legs(
        one, choice, places, keep=keep, back=has_gradient(form, one)
    ):
        share = form.exposed(one.name, again=again)
        for step in one.layouts.path(have, want) if have != want else ():
            name = form.every[operator].op.name
            yield Collective(phase, one.name, name, step, share * step.seconds)
    for each, inner, k in zip(form.every, form.inner, choice, strict=False):
        if one.writer is not None and each is form.every[one.writer.operator] and inner[k] > 0:
            yield from _inside(form, one, each, int(k))


def _inside(form: Form, one: Stand, each: Strategies, k: int) -> Iterator[Collective]:
    """The sums that an operator finishes itself."""
    codes = np.where(each.splits(set(each.op.dims) - set(_dims(form, one)))[k], 1, 0)
    mine = one.layouts.layouts[int(one.writer.forward[k])] if one.writer else ()
    have = one.layouts.at(np.where(codes == 1, 1, np.array(mine))[None, :])
    for step in one.layouts.path(int(have[0]), int(one.writer.forward[k]) if one.writer else 0):
        yield Collective("forward", one.name, each.op.name, step, step.seconds)


def _dims(form: Form, one: Stand) -> tuple[DimName, ...]:
    return form.space.plain.tensors[one.name].dims


def _weight_moved(form: Form, weight: Weight, state: int) -> Iterator[Collective]:
    s, row = form.space, slice(state, state + 1)
    operator = form.every[weight.operators[0]].op.name
    for number, (kind, axes, size, taken) in enumerate(weight.moves):
        names = tuple(n for n, on in zip(s.mesh.names, axes[row][0], strict=True) if on)
        phase: Phase = "forward" if number == 0 else "backward"
        if names:
            step = Step(kind, names, float(size[row][0]), float(taken[row][0]))
            share = weight_exposed(s, form.wish, kind)
            yield Collective(phase, weight.name, operator, step, share * step.seconds)


def _memory(form: Form, nodes: Nodes, choice: IntArray, *, keep: bool) -> float:
    """Bytes of states and of saved tensors; where memory is free every layout that a reader saves is kept."""
    total = 0.0
    for weight, node in zip(form.weights, nodes.weights, strict=True):
        total += float(weight.usage[choice[node]])
    for operator, bytes_ in enumerate(loose(form)):
        total += float(bytes_[choice[operator]])
    for one, places in zip(form.stands, nodes.stands, strict=True):
        local, ends = form.saved(one), bare(one.layouts)
        kept = {int(ends[choice[places.kept]])} if keep and is_saved(one) else set()
        if not keep:
            kept = {int(r.forward[choice[r.operator]]) for r in one.readers if r.saves}
            if one.writer is not None and one.writer.saves:
                kept.add(int(one.writer.backward[choice[one.writer.operator]]))
        total += sum(float(local[k]) for k in kept)
    return total
