"""Bounds on cuts into chunks, and the best of them, from the paths that schedules meet.

Where a chunk takes at least so much and so much more for each layer, the least over all cuts of the longest of some
paths is a small linear program, an integer one once stages or chunks hold whole layers. Its answer is simulated, and
cuts between it and the best one that is known: the paths that are longest there join the others, until none is longer
than the program knows. Whole chunks are looked for by moving layers first: the longest path that is known tells which
moves may gain, so that few are simulated.

Source: Kelley 1960, The cutting-plane method for solving convex programs; Ben-Ameur and Neto 2007, Acceleration of
cutting-plane and column generation algorithms, for cuts between; Benders 1962 for the integer answers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

import numpy as np

from planner.search.stages.linear import CLOSE, TRUST, Linear, whole_chunks
from planner.search.stages.paths import Chunks, Met
from planner.search.stages.solver import PROVEN
from planner.units import Array, IntArray

ROUNDS = 60
"""Programs of a kind that are solved at most one after the other, some paths more in each."""
BETWEEN = np.array([1.0, 0.7, 0.4, 0.2, 0.1])[:, None]
"""Shares of a program's answer in what is simulated; the rest is the best cut that is known."""
NEAR = 3e-3
"""The same where stages may hold several numbers of layers, which are told apart next."""
WORTH = 0.9 * PROVEN
"""Share by which a cut must be faster than what is known to be looked for."""
JOINING = 24
"""Paths that are known and too long for a program's answer, of which so many join it at a time."""
TURNS = 12
"""Cuts of whole chunks that programs find at most."""
STARTS, KEPT, LOOKED, SIMULATED = 8, 12, 40, 32
"""Moving layers: cuts that are begun with, best ones that are gone on from, rounds, and cuts simulated in each."""


SPREAD = 0.03
"""Share by which a path may be shorter than the longest one to become that by a move."""
BRANCHES = 200
"""Parts of all numbers of layers that stages may hold that are told apart, about."""
ROUNDED = (0.5, 0.3, 0.7, 0.1, 0.9)
"""Rests of beginnings of stages from which on they are rounded down."""


_Part: TypeAlias = tuple[float, int, IntArray, IntArray, float, Array | None]
"""Cuts whose stages hold so many layers at least and at most: their bound, a number, both, how close the bound is to be
told, and the cut that tells of it once it is."""


class Programs:
    """Programs over the cuts of one layout."""

    def __init__(self, chunks: Chunks, met: Met, enough: float) -> None:
        """None is solved yet.

        Args:
            chunks: what they take.
            met: paths that are known, and are then.
            enough: seconds; larger bounds are not told apart.
        """
        self.chunks, self.paths, self.enough = chunks, met.of(chunks), enough
        self.stages = len(chunks.send)
        self.slopes, self.fixed = self.paths.rows(chunks)
        values = self._longest(np.full(self.slopes.shape[1], chunks.layers / self.slopes.shape[1]))
        self.joined = np.zeros(len(values), dtype=bool)
        self.joined[np.argsort(-values)[:JOINING]] = True
        self.told = np.zeros(len(values), dtype=bool)
        self.linear = Linear(chunks, enough)

    def _longest(self, cut: Array | IntArray) -> Array:
        """Seconds of every path that is known; ``(paths,)``."""
        return np.asarray(self.slopes @ cut + self.fixed)

    def meet(self, cuts: Array | IntArray, *, join: bool = False) -> Array:
        """Seconds of cuts and what follows, whose paths are known then, and join the programs perhaps; ``(n,)``."""
        seconds = self.paths.meet(self.chunks, cuts) + self.chunks.following(cuts)
        slopes, fixed = self.paths.rows(self.chunks, len(self.fixed))
        self.slopes = np.concatenate([self.slopes, slopes])
        self.fixed = np.concatenate([self.fixed, fixed])
        self.joined = np.append(self.joined, np.full(len(fixed), join))
        self.told = np.append(self.told, np.zeros(len(fixed), dtype=bool))
        return seconds

    def relaxed(self) -> tuple[float, Array | None]:
        """Seconds that no cut beats, and the cut of whole stages, not of whole chunks, that tells of them.

        Branch and bound on the layers of stages, the least bound first.

        Returns:
            The bound, at most what is enough; None where no cut is below that.
        """
        size, most = self.slopes.shape[1] // self.stages, self.chunks.most
        order = count()
        heap: list[_Part] = [(0.0, next(order), np.full_like(most, size), most, NEAR, None)]
        while heap:
            bound, number, fewest, most, close, near = heapq.heappop(heap)
            if near is not None or number > BRANCHES:
                return bound, near
            least, near = self._converged(fewest, most, close)
            if near is None:
                continue
            least, held = max(bound, least), near.reshape(-1, self.stages).sum(axis=0)
            stage = int(np.abs(held - np.round(held)).argmax())
            low, high = int(np.floor(held[stage] + TRUST)), int(np.ceil(held[stage] - TRUST))
            if low == high:
                known = near if close == CLOSE else None
                heapq.heappush(heap, (least, next(order), fewest, most, CLOSE, known))
                continue
            here = np.arange(self.stages) == stage
            for few, many in (
                (fewest, np.where(here, low, most)),
                (np.where(here, high, fewest), most),
            ):
                heapq.heappush(heap, (least, next(order), few, many, NEAR, None))
        return self.enough * (1.0 - TRUST), None

    def _converged(
        self, fewest: IntArray, most: IntArray, close: float
    ) -> tuple[float, Array | None]:
        """The same, but for a share, where nothing holds whole layers, and stages no fewer and no more than some."""
        bound, best, centre = 0.0, np.inf, None
        for _ in range(ROUNDS):
            least, cut = self._least(fewest, most)
            bound = max(bound, least)
            if cut is None:
                return bound, None
            points = cut[None] if centre is None else BETWEEN * cut + (1.0 - BETWEEN) * centre
            known, seconds = len(self.fixed), self.meet(points, join=True)
            if seconds.min() < best:
                best, centre = float(seconds.min()), points[seconds.argmin()]
            if best <= bound * (1.0 + close) or len(self.fixed) == known:
                break
        return bound, centre

    def _least(self, fewest: IntArray, most: IntArray) -> tuple[float, Array | None]:
        """Least seconds of the longest path that is known and what follows, and the cut; none where that is enough."""
        while True:
            new = self.joined & ~self.told
            self.linear.join(self.slopes[new], self.fixed[new])
            self.told |= new
            least, cut = self.linear.solved(fewest, most)
            if cut is None or not self._joining(least, cut):
                return least * (1.0 - TRUST), cut

    def _joining(self, least: float, cut: Array) -> bool:
        """Whether paths that are known and too long for a program's answer join it."""
        longest = np.where(self.joined, 0.0, self._longest(cut))
        order = np.argsort(-longest)[:JOINING]
        beyond = least * (1.0 + CLOSE) - float(self.chunks.following(cut[None])[0])
        self.joined[order[longest[order] > beyond]] = True
        return bool(longest.max() > beyond)

    def whole(self) -> tuple[float, IntArray | None]:
        """Least seconds of the longest path and what follows over all cuts of whole layers, and one that comes close.

        No cut where none is below what is enough, or none was found.
        """
        bound = 0.0
        for _ in range(ROUNDS):
            paths = self.slopes[self.joined], self.fixed[self.joined]
            least, cut = whole_chunks(self.chunks, *paths, self.enough)
            bound = max(bound, least)
            if cut is None or not self._joining(least, cut):
                break
        return bound, None if cut is None else cut.astype(np.int64)

    def moved(self, starts: Sequence[IntArray]) -> list[IntArray]:
        """Cuts of whole chunks that moving single layers finds, the fastest first.

        Args:
            starts: cuts of whole chunks.
        """
        cuts = np.unique(np.stack(starts), axis=0)
        seconds = self.meet(cuts)
        order = np.argsort(seconds, kind="stable")[:STARTS]
        found = sorted(zip(seconds[order].tolist(), map(tuple, cuts[order].tolist()), strict=True))
        seen, left = {cut for _, cut in found}, {cut for _, cut in found}
        for _ in range(LOOKED):
            some = [cut for _, cut in found[:KEPT] if cut in left][:2]
            if not some:
                break
            left -= set(some)
            near = sorted(
                each for cut in some for each in self._near(np.array(cut), found[:KEPT][-1][0])
            )
            new = list(dict.fromkeys(cut for _, cut in near if cut not in seen))[:SIMULATED]
            if new:
                seen |= set(new)
                left |= set(new)
                seconds = self.meet(np.array(new)).tolist()
                found = sorted([*found, *zip(seconds, new, strict=True)])[: 2 * KEPT]
        return [np.array(cut) for _, cut in found]

    def _near(self, cut: IntArray, known: float) -> list[tuple[float, tuple[int, ...]]]:
        """Cuts that differ by one layer, with the seconds of their longest path that is known, below these."""
        values = self._longest(cut)
        long = values > values.max() * (1.0 - SPREAD)
        slopes = self.slopes[long]
        moves = (values[long, None, None] - slopes[:, :, None] + slopes[:, None, :]).max(axis=0)
        stage = np.arange(len(cut)) % self.stages
        full = np.bincount(stage, cut, minlength=self.stages) >= self.chunks.most
        allowed = (cut[:, None] > 1) & (~full[stage] | (stage[:, None] == stage))
        giver, taker = np.nonzero(allowed & (moves < known) & ~np.eye(len(cut), dtype=bool))
        near, row = np.repeat(cut[None], len(giver), axis=0), np.arange(len(giver))
        near[row, giver] -= 1
        near[row, taker] += 1
        seconds = moves[giver, taker] + self.chunks.following(near)
        order = np.argsort(seconds, kind="stable")[:SIMULATED]
        order = order[seconds[order] < known]
        return list(zip(seconds[order].tolist(), map(tuple, near[order].tolist()), strict=True))


def rounded(cut: Array, stages: int) -> list[IntArray]:
    """Cuts of whole layers near one of whole stages: beginnings of every stage rounded, or its largest rests up.

    >>> rounded(np.array([1.5, 2.0, 2.5, 2.0]), 2)[:2]
    [array([2, 2, 2, 2]), array([2, 2, 2, 2])]
    """
    table = cut.reshape(-1, stages)
    low = np.floor(table + TRUST).astype(np.int64)
    more = np.round(table.sum(axis=0)).astype(np.int64) - low.sum(axis=0)
    rank = np.argsort(np.argsort(low - table, axis=0, kind="stable"), axis=0, kind="stable")
    found = [low + (rank < more)]
    for share in ROUNDED:
        sums = np.floor(np.cumsum(table, axis=0) + share + TRUST).astype(np.int64)
        sums[-1] = np.round(table.sum(axis=0))
        found.append(np.diff(sums, axis=0, prepend=0))
    return [each.ravel() for each in found if each.min() > 0]
