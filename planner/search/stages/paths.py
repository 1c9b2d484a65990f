"""Bounds on cuts into chunks, and the best of them, from the paths that schedules meet.

A schedule takes as long as its longest path, and what a path passes does not depend on how long that takes: so many
forwards and backwards of every chunk, so many sends over every boundary. Each path of an order thus bounds every cut of
every layout with as many stages, chunks and micro-batches. Where a chunk takes at least so much and so much more for
each layer, the least over all cuts of the longest of some paths is a small linear program, an integer one once stages
or chunks hold whole layers. Its answer is simulated: the path that is longest there joins the others, until none is
longer than the program knows.

Source: Kelley 1960, The cutting-plane method for solving convex programs; Benders 1962 for the integer answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from planner.cost.orders import Schedule, group_size
from planner.cost.program import compile_schedule, simulate
from planner.search.stages.solver import PROVEN
from planner.units import Array, IntArray

PASSES = 512
"""Forward passes of chunks in a schedule up to which its paths are looked for: each takes a simulation and a program.
"""
ROUNDS = 60
"""Programs of a kind that are solved at most one after the other, one path more in each."""
CLOSE = 2e-4
"""Share by which the longest path may exceed what the program says for its answer to be good enough."""
TRUST = 1e-6
"""The same by which a program's answer may be off: its tolerances."""
TURNS = 12
"""Cuts of whole chunks that are simulated at most."""
NODES = 400
"""Nodes of a program of whole chunks at most."""


class Whole(IntEnum):
    """What holds whole numbers of layers in a program; each bound is at least the one before."""

    NOTHING = 0
    STAGES = 1
    CHUNKS = 2


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
    most: IntArray
    """Layers that a stage may hold; ``(stages,)``."""
    layers: int
    """Of the model."""

    def times(self, cut: Array) -> Array:
        """Seconds of the chunks of a cut.

        Shapes: layers in the order of the model, ``(chunks of all,)``; result ``(2, stages, chunks)``.
        """
        table = cut.reshape(-1, len(self.send)).T
        return np.asarray(self.layer[..., None] * table + self.fixed)


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

    def meet(self, chunks: Chunks, cut: Array) -> float:
        """Seconds of a cut, not of whole layers perhaps, whose longest path is known then."""
        forward, backward = chunks.times(cut)
        timing = simulate(self.program, forward, backward, chunks.send)
        delay = np.append(chunks.send, 0.0)
        ends = np.append(0.0, timing.ends)
        free, fed = self.program.after_own, self.program.after_data
        late = ends[fed] + delay[self.program.hop] > ends[free]
        before, place, met = np.where(late, fed, free).tolist(), int(timing.ends.argmax()) + 1, []
        while place:
            met.append(place - 1)
            place = before[place - 1]
        shape = self.passes.shape[1:]
        passes = np.bincount(self.program.task[met], minlength=int(np.prod(shape)))
        crossed = np.bincount(self.program.hop[met], late[met], minlength=len(delay))
        self.passes = np.concatenate([self.passes, passes.reshape(1, *shape)])
        self.sends = np.concatenate([self.sends, crossed[None, :-1]])
        return float(timing.makespan)

    def rows(self, chunks: Chunks) -> tuple[Array, Array]:
        """Seconds that every path takes more for each layer of a chunk, and beside its layers.

        Shapes: ``(paths, chunks of all)``, ``(paths,)``.
        """
        slopes = np.einsum("kdsc,ds->kcs", self.passes, chunks.layer)
        fixed = np.einsum("kdsc,dsc->k", self.passes, chunks.fixed) + self.sends @ chunks.send
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
            paths.meet(chunks, np.full(stages * count, chunks.layers / (stages * count)))
        return paths


def relaxed(chunks: Chunks, met: Met, enough: float) -> tuple[float, Array | None]:
    """Seconds that no cut beats, and the cut of whole stages, not of whole chunks, of which the last of them tell.

    Args:
        chunks: what they take.
        met: paths that are known, and are then.
        enough: seconds; larger bounds are not told apart.

    Returns:
        The bound, at most ``enough``; None where no cut is below that.
    """
    paths = met.of(chunks)
    bound, cut = _converged(chunks, paths, enough)
    for _ in range(ROUNDS):
        if cut is None:
            break
        least, cut = _least(chunks, paths, enough, Whole.STAGES)
        bound = max(bound, least)
        if cut is not None:
            held = np.round(cut.reshape(-1, len(chunks.send)).sum(axis=0)).astype(np.int64)
            same, near = _converged(replace(chunks, most=held), paths, enough)
            if near is not None and same <= bound * (1.0 + CLOSE):
                return bound, near
    return bound, cut


def _converged(chunks: Chunks, paths: Paths, enough: float) -> tuple[float, Array | None]:
    """The same where nothing holds whole layers."""
    bound, cut = 0.0, None
    for _ in range(ROUNDS):
        least, cut = _least(chunks, paths, enough, Whole.NOTHING)
        bound = max(bound, least)
        if cut is None or paths.meet(chunks, cut) <= least * (1.0 + CLOSE):
            break
    return bound, cut


def settled(
    chunks: Chunks, met: Met, price: Callable[[IntArray], float], known: float
) -> tuple[float, IntArray | None, float]:
    """The best cut of whole layers, as far as few programs find it.

    Args:
        chunks: what they take at least.
        met: paths that are known, and are then.
        price: seconds that a cut takes; infinite where it does not fit.
        known: seconds that are reached already.

    Returns:
        Seconds that are reached then, of which cut if it is another one, and seconds that no cut beats.
    """
    paths, bound, best, tried = met.of(chunks), 0.0, None, set[bytes]()
    for _ in range(TURNS):
        enough = known * (1.0 - PROVEN)
        least, cut = _least(chunks, paths, enough, Whole.CHUNKS)
        bound = max(bound, least)
        if cut is None or cut.tobytes() in tried:
            break
        tried.add(cut.tobytes())
        whole = cut.astype(np.int64)
        if (seconds := price(whole)) < known:
            known, best = seconds, whole
        paths.meet(chunks, cut)
    return known, best, min(bound, known)


def _least(chunks: Chunks, paths: Paths, enough: float, whole: Whole) -> tuple[float, Array | None]:
    """Least seconds of the longest path over all cuts, from below, and a cut that comes close.

    No cut where none is below ``enough``, or none was found.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    slopes, fixed = paths.rows(chunks)
    stages, size = len(chunks.send), slopes.shape[1]
    unit = min(enough, float(slopes.max() * chunks.layers + fixed.max()))  # no path is longer
    columns = np.zeros((size, stages))
    columns[np.arange(size), np.arange(size) % stages] = 1.0
    longest = np.hstack([slopes / unit, np.zeros((len(fixed), stages)), -np.ones((len(fixed), 1))])
    held = np.hstack([columns.T, -np.eye(stages), np.zeros((stages, 1))])
    every = np.concatenate([np.zeros(size), np.ones(stages), [0.0]])
    answer = milp(
        np.append(np.zeros(size + stages), 1.0),
        constraints=[
            LinearConstraint(longest, ub=-fixed / unit),
            LinearConstraint(np.vstack([held, every]), *[np.append(np.zeros(stages), chunks.layers)] * 2),
        ],
        bounds=Bounds(
            np.concatenate([np.ones(size), np.full(stages, size // stages), [0.0]]),
            np.concatenate([np.full(size, np.inf), chunks.most, [1.0]]),
        ),
        integrality=np.repeat([whole == Whole.CHUNKS, whole >= Whole.STAGES, False], [size, stages, 1]),
        options={"mip_rel_gap": CLOSE, "node_limit": NODES},
    )  # fmt: skip
    if answer.status == _INFEASIBLE:
        return unit * (1.0 - TRUST), None
    bound = answer.fun if whole == Whole.NOTHING else answer.mip_dual_bound
    least = max(0.0, float(bound or 0.0) - TRUST) * unit
    if answer.x is None:
        return least, None
    cut = answer.x[:size]
    return least, np.round(cut) if whole == Whole.CHUNKS else cut


_INFEASIBLE = 2
"""What :func:`scipy.optimize.milp` says where nothing keeps all rows."""


def rounded(cut: Array, stages: int) -> list[IntArray]:
    """Cuts of whole layers near one of whole stages: beginnings of every stage rounded, or its largest rests up.

    >>> rounded(np.array([1.5, 2.0, 2.5, 2.0]), 2)
    [array([2, 2, 2, 2]), array([2, 2, 2, 2])]
    """
    table = cut.reshape(-1, stages)
    sums = np.floor(np.cumsum(table, axis=0) + 0.5 + TRUST).astype(np.int64)
    low = np.floor(table + TRUST).astype(np.int64)
    more = np.round(table.sum(axis=0)).astype(np.int64) - low.sum(axis=0)
    rank = np.argsort(np.argsort(low - table, axis=0, kind="stable"), axis=0, kind="stable")
    return [np.diff(sums, axis=0, prepend=0).ravel(), (low + (rank < more)).ravel()]
