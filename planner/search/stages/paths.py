"""Paths that schedules of several chunks a stage meet, and what they tell of other layouts.

A schedule takes as long as its longest path, and what a path passes does not depend on how long that takes: so many
forwards and backwards of every chunk, so many sends over every boundary. Each path of an order thus bounds every cut of
every layout with as many stages, chunks and micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.orders import Schedule, group_size
from planner.cost.program import compile_schedule, simulate
from planner.units import Array, BoolArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """What the chunks of an interleaved layout take at least, by their layers; each holds one or more."""

    micro_batches: int
    layer: Array
    """Seconds of a layer forwards and backwards; ``(2, stages)``."""
    fixed: Array
    """Seconds of a chunk beside its layers; ``(2, stages, chunks)``."""
    send: Array
    """Delay of the boundary behind every stage; ``(stages,)``."""
    after: Array
    """Seconds that follow the schedule on a stage, beside its layers and for each of them; ``(2, stages)``."""
    most: IntArray
    """Layers that a stage may hold; ``(stages,)``."""
    layers: int
    """Of the model."""

    def times(self, cuts: Array | IntArray) -> Array:
        """Seconds of the chunks of cuts.

        Shapes: layers in the order of the model, ``(n, chunks of all)``; result ``(2, n, stages, chunks)``.
        """
        table = cuts.reshape(len(cuts), -1, len(self.send)).swapaxes(1, 2)
        return np.asarray(self.layer[:, None, :, None] * table + self.fixed[:, None])

    def following(self, cuts: Array | IntArray) -> Array:
        """Seconds that follow the schedule, of the stage where that is most; ``(n, chunks of all)`` to ``(n,)``."""
        turns = cuts.shape[1] // len(self.send)
        held = cuts.reshape(len(cuts), turns, len(self.send)).sum(axis=1)
        return np.asarray((self.after[0] + self.after[1] * held).max(axis=1))


class Paths:
    """Paths that the schedule of so many stages, chunks and micro-batches has met."""

    def __init__(self, stages: int, chunks: int, micro_batches: int) -> None:
        """None is known yet."""
        group = int(group_size(stages, micro_batches))
        shape = stages, micro_batches, chunks, group
        self.program = compile_schedule(Schedule.INTERLEAVED, *shape)
        self.passes = np.empty((0, 2, stages, chunks))
        """How often a path passes every chunk forwards and backwards; ``(paths, 2, stages, chunks)``."""
        self.sends = np.empty((0, stages))
        """How often it crosses the boundary behind every stage; ``(paths, stages)``."""
        self.known = set[bytes]()

    def meet(self, chunks: Chunks, cuts: Array | IntArray) -> Array:
        """Seconds of cuts, not of whole layers perhaps, whose longest paths are known then.

        Shapes: ``(n, chunks of all)`` to ``(n,)``.
        """
        forward, backward = chunks.times(cuts)
        timing = simulate(self.program, forward, backward, chunks.send)
        delay = np.append(chunks.send, 0.0)
        ends = np.concatenate([np.zeros((1, len(cuts))), timing.ends])
        free, fed = self.program.after_own, self.program.after_data
        for column, last in enumerate(timing.ends.argmax(axis=0).tolist()):
            own = ends[:, column]
            late = own[fed] + delay[self.program.hop] > own[free]
            before, place, met = np.where(late, fed, free).tolist(), last + 1, []
            while place:
                met.append(place - 1)
                place = before[place - 1]
            self._keep(np.array(met), late)
        return np.asarray(timing.makespan)

    def _keep(self, met: IntArray, late: BoolArray) -> None:
        """Know one path more, by its operations and which of all wait for a send, unless it is known already."""
        shape = self.passes.shape[1:]
        passes = np.bincount(self.program.task[met], minlength=int(np.prod(shape)))
        crossed = np.bincount(self.program.hop[met], late[met], minlength=self.sends.shape[1] + 1)
        name = passes.tobytes() + crossed.tobytes()
        if name not in self.known:
            self.known.add(name)
            self.passes = np.concatenate([self.passes, passes.reshape(1, *shape)])
            self.sends = np.concatenate([self.sends, crossed[None, :-1]])

    def rows(self, chunks: Chunks, first: int = 0) -> tuple[Array, Array]:
        """Seconds that every path takes more for each layer of a chunk, and beside its layers; from one of them on.

        Shapes: ``(paths, chunks of all)``, ``(paths,)``.
        """
        passes, sends = self.passes[first:], self.sends[first:]
        slopes = np.einsum("kdsc,ds->kcs", passes, chunks.layer)
        fixed = np.einsum("kdsc,dsc->k", passes, chunks.fixed) + sends @ chunks.send
        return slopes.reshape(len(fixed), self.passes[0, 0].size), fixed


class Met(dict[tuple[int, int, int], Paths]):
    """Paths of every number of stages, chunks and micro-batches that was met."""

    def __missing__(self, key: tuple[int, int, int]) -> Paths:
        """None yet."""
        self[key] = Paths(*key)
        return self[key]

    def of(self, chunks: Chunks) -> Paths:
        """Those of a layout's schedule; that of equal chunks of every stage at least."""
        _, stages, count = chunks.fixed.shape
        paths = self[stages, count, chunks.micro_batches]
        if not len(paths.passes):
            paths.meet(chunks, np.full((1, stages * count), chunks.layers / (stages * count)))
        return paths
