"""The per-operator plan of one block on a mesh of free axes: the strategy of every operator, exact.

Nothing here knows a scheme: data, fully sharded, tensor, sequence, context, vocabulary and expert parallelism are what
the cheapest choice turns out to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from planner.cost.resharding import FreeMesh, Step
from planner.cost.strategies import Phase
from planner.graph.operator import Block, DimName
from planner.graph.placement import AxisName, Layout, Split
from planner.search.copies import Trees, cheapest
from planner.search.free_axes import Stand, Strategies, ring, space
from planner.search.free_weights import Weight, weight_exposed
from planner.search.liveness import Moment, live, moments
from planner.search.operator_limit import ROUNDING, Limited, limited, proved
from planner.search.operator_optimum import Solved, free
from planner.search.operator_problem import (
    Form,
    Places,
    bare,
    form_of,
    has_gradient,
    numbers,
)
from planner.search.wish import Wish as Wish
from planner.trainers.trainer import Task
from planner.units import IntArray


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
    held: Mapping[Moment, float]
    """Bytes a rank at every moment, of all layers and all micro-batches in flight (:mod:`planner.search.liveness`)."""
    bound: float
    """No plan takes less."""

    @property
    def memory(self) -> float:
        """Bytes a rank at the fullest moment."""
        return max(self.held.values())

    @property
    def fullest(self) -> Moment:
        """Where memory binds, if it does."""
        return max(self.held, key=self.held.__getitem__)


def solve_block(block: Block, mesh: FreeMesh, task: Task, wish: Wish) -> Choice:
    """The fastest plan of a block on a mesh: exact, or with a proven bound where memory is limited.

    Args:
        block: as the model has it.
        mesh: free axes.
        task: cluster, recipe and trainer, for kernels and bytes.
        wish: batch, memory and what is fixed.

    Raises:
        PlannerError: a pin is impossible, or nothing keeps within the memory (N02); pins exclude each other (N03); the
            mesh has too many axes (N05).
    """
    form = form_of(space(block, mesh, task, wish.sequences, repeated=wish.repeated), wish)

    fastest = _solved(form, None)
    limit = wish.memory_limit
    return fastest if limit is None or fastest.memory <= limit else _solved(form, limit)


def _solved(form: Form, limit: float | None) -> Choice:
    """The fastest plan; within a limit, of those that keep every tensor that is saved in one layout."""

    def solved(trees: Trees, known: Solved | None, seconds: float) -> Solved:
        p, nodes = numbers(form, trees, keep=limit is not None)
        if limit is None:
            return free(p, nodes, known.cost if known else np.inf, seconds)
        held, most = live(form, nodes, keep=True), limit * (1 + ROUNDING)
        asked = Limited(p, nodes, held, moments(form), most)
        return limited(asked, seconds) if known is None else proved(asked, known, seconds)

    readers = {one.name: len(one.readers) for one in form.stands}
    best, bound = cheapest(readers, solved, form.wish.time_limit)
    return _told(form, best, bound, keep=limit is not None)


def _told(form: Form, found: Solved, bound: float, *, keep: bool) -> Choice:
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
    used = live(form, nodes, keep=keep, choice=choice).used(choice)
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
        held=dict(zip(moments(form), used.tolist(), strict=True)),
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
        first = one.readers[copy.readers[0]].operator
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
