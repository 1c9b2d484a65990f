"""The best cuts of a layout whose stages stand on pools of different chips."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from planner.cost.cut import FULL, Cut
from planner.cost.prices import Prices, block_seconds
from planner.search.stages.chunked import Chunked, Priced
from planner.search.stages.levelled import Levelled, floor, shifted
from planner.search.stages.options import Mixing
from planner.search.stages.options import Priced as Times
from planner.search.stages.paths import PASSES, Chunks, Met, relaxed, rounded, settled
from planner.search.stages.single import Single
from planner.search.stages.solver import PROVEN
from planner.units import Array, IntArray

Looked: TypeAlias = Literal["bound", "moves", "programs"]
"""How cuts into several chunks are looked for: not at all, by moving layers, or with programs of whole chunks."""
NEAR = 0.01
"""Share by which a cut may miss what is reached for shifts within its stages to be tried."""


class OnPools(Single):
    """One chunk a stage, as many layers as its chips are fast."""

    def _sizes(self, reached: float) -> IntArray:
        """Numbers of layers that a stage on the fastest pool may hold: it runs them once for every micro-batch."""
        assert self.p.mix is not None
        kinds = slice(1, 1 + len(self.model.blocks))
        least = min(
            float(np.add(*block_seconds(part))[0, kinds].min()) for part in self.p.mix.parts
        )
        most = reached / (least * float(self.p.micro_batches[0]))
        return np.arange(int(min(self.model.num_layers - self.pp + 2, most)) + 1)


class ChunkedOnPools(Chunked):
    """Several chunks a stage, bounded by the paths that schedules of other layouts have met."""

    def __init__(
        self, p: Prices, mixing: Mixing, limit: float | Array, met: Met, how: Looked
    ) -> None:
        """As :class:`Runs`.

        Args:
            p: the layout.
            mixing: how its layers may differ in what they recompute.
            limit: bytes.
            met: paths that are known, and are then.
            how: how cuts are looked for.
        """
        super().__init__(p, mixing, limit)
        self.met, self.how = met, how
        self.beaten = np.inf
        """Seconds that no cut that was looked for beats."""

    def cuts(self, reached: float) -> Iterator[tuple[Cut, float]]:
        """As of several chunks on one pool, less those that paths rule out."""
        assert self.p.cut is not None
        base, near = self.relaxed(None, reached)
        for count in self._counts(int(self.p.cut.layers.max())):
            bound, pricing = base, Priced(self, count)
            if count is not None and base < reached * (1.0 - PROVEN):
                bound, near = self.relaxed(count, reached)
            if bound < reached * (1.0 - PROVEN):
                found, bound = self._found(pricing, near, bound, reached)
                if found is not None:
                    gap = 1.0 - bound / found.makespan
                    yield pricing.cut(found.layers, found.again), max(0.0, gap)
                    reached = min(reached, found.makespan)
            self.beaten = min(self.beaten, bound)
            free = (self._most(count, reached) == self._most(None, reached)).all()
            if free and np.isfinite(pricing.seconds).all():
                return  # recomputing more is no faster

    def relaxed(self, count: int | None, reached: float) -> tuple[float, Array | None]:
        """Seconds that no cut beats, as of :meth:`bound`, and the cut of whole stages that tells of them.

        Bounds that rule out all that is faster than what is reached are not told apart.

        Args:
            count: layers of every chunk that run again as a whole; None for any number.
            reached: seconds.
        """
        after = self._later(reached)
        bound = max(self.bound(), self._levelled(count) + after)
        chunks, enough = self._chunks(count, reached), reached * (1.0 - PROVEN)
        if chunks is None or bound >= enough:
            return bound, None
        if chunks.most.sum() < chunks.layers or chunks.most.min() < self.vpp:
            return enough, None
        least, cut = relaxed(chunks, self.met, enough - after)
        return max(bound, least + after), cut

    def _found(
        self, pricing: Priced, near: Array | None, bound: float, reached: float
    ) -> tuple[Levelled | None, float]:
        """The best cut that is found, if it is faster than what is reached, and seconds that no cut beats."""
        chunks, after = self._chunks(pricing.count, reached), self._later(reached)
        if self.how == "bound":
            return None, bound
        if chunks is None or self.how == "moves":
            more = [] if near is None else rounded(near, self.pp)
            found = self._by_moves(pricing, bound, reached * (1.0 + NEAR), more)
            if found is None or found.again is not None:
                return found, bound if found is None else max(bound, found.bound)
            found = shifted(pricing, pricing.stage, found, np.ones_like(pricing.stage))
            return found, min(found.makespan, max(bound, found.bound))

        def price(cut: IntArray) -> float:
            fits = np.isfinite(pricing.loads(cut[None])).all()
            return float(pricing.makespans(cut[None])[0]) - after if fits else np.inf

        known, best, least = settled(chunks, self.met, price, reached - after)
        bound = max(bound, least + after)
        return None if best is None else Levelled(best, known + after, bound), bound

    def _chunks(self, count: int | None, reached: float) -> Chunks | None:
        """What chunks take at least; None where layers differ in kind, or schedules are long.

        Of n layers the least of n and ``count`` run again, which a line from one layer to the most that a chunk may
        hold is nowhere above.
        """
        m, kinds = int(self.p.micro_batches[0]), len(self.model.blocks) + bool(self.model.mtp)
        if kinds > 1 or m * self.pp * self.vpp > PASSES:
            return None
        mix = self._light.mix
        assert mix is not None
        columns = np.array([0, 1 + int(self._light.rows.recompute[0]), -1, 1 + FULL])
        parts = [[way[:, None, columns] for way in block_seconds(part)] for part in mix.parts]
        forward, backward = (
            mix.slowest([np.broadcast_to(part[way], (1, self.pp, 4)) for part in parts])[0]
            for way in (0, 1)
        )
        seconds, most = np.stack([forward, backward]), self._most(count, reached)
        layer, fixed = seconds[:, :, 1].copy(), np.zeros((2, self.pp, self.vpp))
        fixed += self.waits[:, None]
        fixed[:, 0, 0] += seconds[:, 0, 0]
        fixed[:, -1, -1] += seconds[:, -1, 2]
        if count:
            again, longest = backward[:, 3] - backward[:, 1], np.maximum(most - self.vpp + 1, 2)
            slope = again * (np.minimum(longest, count) - 1) / (longest - 1)
            layer[1] += slope
            fixed[1] += (again - slope)[:, None]
        return Chunks(
            micro_batches=m,
            layer=layer,
            fixed=fixed,
            send=self.p.delays(self.pp)[0],
            most=most,
            layers=self.model.num_layers,
        )

    def _most(self, count: int | None, reached: float) -> IntArray:
        """Layers that every stage holds at most, so many of every chunk running again, within what is reached."""
        loads = self._busy + self.lead[:, None]
        if count is not None:
            loads = np.where(self._alone.full <= count * self.vpp, loads, np.inf)
        fits = loads < reached - self._after()
        return np.asarray(np.where(fits, np.arange(loads.shape[1]), 0).max(axis=1))

    def _later(self, reached: float) -> float:
        """Least seconds that follow the schedule: those of the stage where that is most, as layers can be levelled.

        They shrink as gradients hide behind longer backwards: all layers count as recomputed.
        """
        most = self._most(None, reached)[:, None]
        times = self._longest_backwards.after / (1.0 + self.p.task.trainer.overhead.jitter)
        times = np.minimum.accumulate(times[:, ::-1], axis=1)[:, ::-1]
        times = np.where(np.arange(times.shape[1]) <= most, times, np.inf)
        least = floor(times, self.model.num_layers)
        return max(self._after(), least if np.isfinite(least) else 0.0)

    @cached_property
    def _longest_backwards(self) -> Times:
        """What stages cost by the number of their layers, all of which run again."""
        kind = int(np.bincount(self.model.layers).argmax())
        runs = [(kind,) * n for n in range(self.model.num_layers + 1)]
        held = self.held(runs)
        heavy = "full" in self.p.task.trainer.recompute
        every, none = held.length, np.zeros_like(held.length)
        again = (every, none) if heavy else (none, every)
        return self.priced(held, np.arange(len(runs)), *again)
