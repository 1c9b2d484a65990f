"""What a rank holds of a block from moment to moment: while every operator runs forwards, then while it runs backwards.

The last of a stage's layers is under way, for the last micro-batch that the schedule lets in: all other layers and
micro-batches hold what they save. Of this one a tensor and every copy of it stand until the last reader below them has
run, what is saved until the first that saves it has run backwards; a conversion holds both its ends beside the operator
that waits for it or left it. The gradient of a tensor, and of a copy, stands from the last reader's backward pass to
the writer's or first reader's; what another reader adds to it is a buffer of its own. A weight whose states are sharded
is whole between its first and its last operator, and so is its gradient; where the trainer hides gathers and
reductions behind compute, a weight is whole one operator earlier and its gradient one later. Then the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from planner.cost.strategies import Phase
from planner.search.free_axes import Side, Stand, ring
from planner.search.operator_problem import (
    Form,
    Nodes,
    Numbers,
    Places,
    among,
    bare,
    has_gradient,
    is_saved,
    loose,
)
from planner.units import Array, BoolArray, IntArray


class Moment(NamedTuple):
    """An operator runs forwards or backwards, or the optimizer steps."""

    phase: Phase | Literal["step"]
    operator: str

    def __str__(self) -> str:
        """What happens, as a sentence says it."""
        if self.phase == "step":
            return f"the {self.operator} steps"
        return f"{self.operator} runs {self.phase}s"


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Bytes that a rank holds from one moment until before another."""

    nodes: tuple[int, ...]
    """Those on whose states they depend: none, one or two."""
    lo: int
    hi: int
    size: Array
    """Bytes under every state. Shapes: (states,) of each node."""


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """Everything that is held, moment by moment."""

    spans: tuple[Span, ...]
    moments: int
    cover: BoolArray
    """Whether a span is held at a moment. Shapes: (moments, spans)."""

    def used(self, choice: IntArray) -> Array:
        """Bytes at every moment under a choice. Shapes: (nodes,) -> (moments,)."""
        held = [float(s.size[tuple(choice[list(s.nodes)])]) for s in self.spans]
        return np.asarray(self.cover @ np.array(held))

    def only(self, kept: Sequence[IntArray]) -> Live:
        """Under these states of every node alone."""
        spans = (replace(span, size=among(span.size, span.nodes, kept)) for span in self.spans)
        return Live(tuple(spans), self.moments, self.cover)

    def priced(self, p: Numbers, prices: Array) -> tuple[list[Array], list[Array]]:
        """Costs of nodes and edges where memory has a price at every moment, seconds a byte. Shapes: (moments,)."""
        costs, tables = list(p.costs), dict(p.tables)
        for price, span in zip(prices @ self.cover, self.spans, strict=True):
            if not price or not span.nodes:
                continue
            if len(span.nodes) == 1:
                costs[span.nodes[0]] = costs[span.nodes[0]] + price * span.size
            else:
                tables[span.nodes] = tables[span.nodes] + price * span.size  # type: ignore[index]
        return costs, list(tables.values())


def moments(form: Form) -> tuple[Moment, ...]:
    """All moments in order."""
    names = [each.op.name for each in form.every]
    ahead, back = (
        (Moment("forward", n) for n in names),
        (Moment("backward", n) for n in names[::-1]),
    )
    return (*ahead, *back, Moment("step", "optimizer"))


def live(form: Form, nodes: Nodes, *, keep: bool, choice: IntArray | None = None) -> Live:
    """What is held, by the states of the nodes.

    Args:
        form: the block.
        nodes: of its choice problem.
        keep: one layout a saved tensor is kept, and others are made again backwards.
        choice: without ``keep``, the one of which it is asked: every layout that a saver reads is kept.
    """
    count = 2 * len(form.every) + 1
    spans = [s for s in _spans(form, nodes, keep, choice) if s.lo < s.hi and s.size.any()]
    turned = tuple(
        Span(s.nodes[::-1], s.lo, s.hi, s.size.T) if s.nodes != tuple(sorted(s.nodes)) else s
        for s in spans
    )
    at = np.arange(count)[:, None]
    lo, hi = (np.array([getattr(s, end) for s in turned], dtype=np.int64) for end in ("lo", "hi"))
    return Live(turned, count, (lo <= at) & (at < hi))


def _spans(form: Form, nodes: Nodes, keep: bool, choice: IntArray | None) -> Iterator[Span]:
    end, others = 2 * len(form.every), form.held - 1.0
    for weight, node in zip(form.weights, nodes.weights, strict=True):
        first, last = min(weight.operators), max(weight.operators)
        early, late = form.hides("all-gather"), form.hides("reduce-scatter")
        yield Span((node,), 0, end + 1, weight.usage)
        yield Span((node,), max(0, first - early), last + 1, weight.whole)
        yield Span((node,), max(last + 1, end - 1 - last - early), end - first, weight.whole)
        yield Span((node,), end - 1 - last, min(end, end - first + late), weight.gradient)
        yield Span((node,), end - 1 - last, end - first, weight.making)
        yield Span((node,), end, end + 1, weight.stepped)
    for number, size in enumerate(loose(form)):
        yield Span((number,), 0, end, others * size)
        yield Span((number,), number, end - number, size)
    for one, places in zip(form.stands, nodes.stands, strict=True):
        yield from _Held(form, one, places, keep).spans(choice)


class _Held:
    """What is held of one tensor."""

    def __init__(self, form: Form, one: Stand, places: Places, keep: bool) -> None:
        self.one, self.places, self.keep = one, places, keep
        self.local, self.ends = one.layouts.local, bare(one.layouts)
        self.others, self.end = form.held - 1.0, 2 * len(form.every)
        self.readers = [side.operator for side in one.readers]
        self.saved = keep and is_saved(one)
        self.gradient = has_gradient(form, one)
        pair = ring(form.space.block) if form.wish.repeated else None
        self.ring = pair is not None and one.name == pair[1]
        self.leaves = one.name in form.space.plain.outputs

    def spans(self, choice: IntArray | None) -> Iterator[Span]:
        yield from self._values()
        if self.gradient and (self.readers or self.leaves):
            yield from self._gradients()
        yield from self._copies()
        for reader, source in self.places.read.items():
            yield from self._read(self.one.readers[reader], source)
        if self.one.writer is not None:
            yield from self._written(self.one.writer)
        if not self.keep and choice is not None:
            yield from self._as_read(choice)

    def _instances(self) -> list[tuple[int, int, list[int]]]:
        """Forward moments in which the tensor stands, and who saves it: of a ring, as it arrives and as it leaves."""
        writer, middle = self.one.writer, self.end // 2
        savers = [side.operator for side in self.one.readers if side.saves]
        own = [writer.operator] if writer is not None and writer.saves else []
        last = max(self.readers, default=-1) + 1
        if self.ring and writer is not None:
            return [(0, last, savers), (writer.operator, middle, own)]
        born = 0 if writer is None else writer.operator
        return [(born, middle if self.leaves else max(last, born + 1), savers + own)]

    def _values(self) -> Iterator[Span]:
        node, size = (self.places.kept,), self.local[self.ends]
        for lo, hi, savers in self._instances():
            kept = self.end - min(savers) if self.saved and savers else hi
            yield Span(node, lo, kept, size)
        if self.saved:
            yield Span(node, 0, self.end, self.others * size)

    def _gradients(self) -> Iterator[Span]:
        node, middle = (self.places.kept,), self.end // 2
        begin = self._back(max(self.readers)) if self.readers else middle
        writer = self.one.writer
        stop = self.end if writer is None else self._back(writer.operator) + 1
        if self.ring:
            yield Span(node, begin, self.end, self.local)
            begin = middle
        yield Span(node, middle if self.leaves else begin, stop, self.local)

    def _back(self, operator: int) -> int:
        """When an operator runs backwards."""
        return self.end - 1 - operator

    def _copies(self) -> Iterator[Span]:
        value = np.where(self.ends[:, None] != self.ends, self.local[self.ends], 0.0)
        gradient = np.where(~np.eye(len(self.local), dtype=np.bool_), self.local, 0.0)
        for copy in self.places.copies:
            nodes = copy.source, copy.node
            below = [self.readers[reader] for reader in copy.readers]
            again = [self.readers[r] for r in copy.readers if self.one.readers[r].saves]
            yield Span(nodes, min(below), max(below) + 1, value)
            if copy.again:
                yield Span(nodes, self._back(max(again)), self.end - min(again), value)
            if self.gradient:
                yield Span(nodes, self._back(max(below)), self.end - min(below), gradient)

    def _read(self, side: Side, source: int) -> Iterator[Span]:
        """What an operator reads in another layout than the tensor or copy has, and what it adds to the gradient."""
        nodes, at = (source, side.operator), self._back(side.operator)
        value = np.where(self.ends[:, None] != side.forward, self.local[side.forward], 0.0)
        yield Span(nodes, side.operator, side.operator + 1, value)
        if self.keep and side.saves:
            yield Span(nodes, at, at + 1, value)
        if self.gradient:
            apart = np.arange(len(self.ends))[:, None] != side.backward
            apart |= side.operator != max(self.readers)
            yield Span(nodes, at, at + 1, np.where(apart, self.local[side.backward], 0.0))

    def _written(self, side: Side) -> Iterator[Span]:
        """What an operator leaves, and needs of the gradient, in another layout than the tensor has."""
        nodes, at = (side.operator, self.places.kept), self._back(side.operator)
        value = np.where(side.forward[:, None] != self.ends, self.local[side.forward][:, None], 0.0)
        yield Span(nodes, side.operator, side.operator + 1, value)
        needed, states = self.local[side.backward][:, None], np.arange(len(self.ends))
        if self.keep and side.saves:
            again = np.where(side.backward[:, None] != self.ends, needed, 0.0)
            yield Span(nodes, at, at + 1, again)
        if self.gradient:
            gradient = np.where(side.backward[:, None] != states, needed, 0.0)
            yield Span(nodes, at, at + 1, gradient)

    def _as_read(self, choice: IntArray) -> Iterator[Span]:
        """All layouts in which the tensor is saved under a choice, each from its last saver on where it is no copy."""
        kept: dict[int, list[int]] = {}
        for side in self.one.readers:
            if side.saves:
                layout = int(side.forward[choice[side.operator]])
                kept.setdefault(layout, []).append(side.operator)
        writer = self.one.writer
        if writer is not None and writer.saves:
            layout = int(writer.backward[choice[writer.operator]])
            kept.setdefault(layout, []).append(writer.operator)
        stands = int(self.ends[choice[self.places.kept]])
        for layout, at in kept.items():
            size, begin = np.array(self.local[layout]), max(at) + 1
            if layout == stands:
                mine = (hi for _, hi, savers in self._instances() if set(at) <= set(savers))
                begin = next(mine, begin)
            yield Span((), begin, self.end - min(at), size)
            yield Span((), 0, self.end, self.others * size)
