"""The best cuts of a layout whose stages stand on pools of different chips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, TypeAlias

import numpy as np

from planner.cost.cut import FULL, SELECTIVE, Cut
from planner.cost.prices import Prices, block_seconds
from planner.search.stages.chunked import Chunked, Priced
from planner.search.stages.levelled import Levelled, floor
from planner.search.stages.linear import CLOSE
from planner.search.stages.options import Mixing
from planner.search.stages.paths import Chunks, Met
from planner.search.stages.programs import TURNS, WORTH, Programs, rounded
from planner.search.stages.single import Single
from planner.search.stages.solver import PROVEN
from planner.units import Array, IntArray

Looked: TypeAlias = Literal["bound", "moves", "programs"]
"""How cuts into several chunks are looked for: not at all, by moving layers, or with programs of whole chunks."""
PASSES = 4096
"""Forward passes of chunks in a schedule up to which its paths are looked for: each takes a simulation and a program.
"""


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
        base, programs, near = self._relaxed(None, reached)
        for count in self._counts(int(self.p.cut.layers.max())):
            bound, pricing = base, Priced(self, count)
            if count is not None and base < reached * (1.0 - PROVEN):
                bound, programs, near = self._relaxed(count, reached)
            if bound < reached * (1.0 - PROVEN) and self.how != "bound":
                if programs is None or near is None:
                    found = self._by_moves(pricing, bound, reached)
                    bound = bound if found is None else max(bound, found.bound)
                else:
                    found, bound = self._settled(pricing, programs, near, bound, reached)
                if found is not None:
                    gap = 1.0 - bound / found.makespan
                    yield pricing.cut(found.layers, found.again), max(0.0, gap)
                    reached = min(reached, found.makespan)
            self.beaten = min(self.beaten, bound)
            free = (self._most(count, reached) == self._most(None, reached)).all()
            if free and np.isfinite(pricing.seconds).all():
                return  # recomputing more is no faster

    def _relaxed(
        self, count: int | None, reached: float
    ) -> tuple[float, Programs | None, Array | None]:
        """Seconds that no cut beats, as of :meth:`bound`, with the programs and the cut of whole stages that tell.

        Bounds that rule out all that is faster than what is reached are not told apart.

        Args:
            count: layers of every chunk that run again as a whole; None for any number.
            reached: seconds.
        """
        enough = reached * (1.0 - WORTH)
        bound, chunks = self.bound(), self._chunks(count, enough)
        if len(self.model.blocks) == 1:
            bound = max(bound, floor(self._ending(count), self.model.num_layers))
        if chunks is None or bound >= enough:
            return bound, None, None
        if chunks.most.sum() < chunks.layers or chunks.most.min() < self.vpp:
            return enough, None, None
        programs = Programs(chunks, self.met, enough)
        least, near = programs.relaxed()
        return max(bound, least), programs, near

    def _settled(
        self, pricing: Priced, programs: Programs, near: Array, bound: float, reached: float
    ) -> tuple[Levelled | None, float]:
        """The best cut that is found, if it is faster than what is reached, and seconds that no cut beats."""
        assert self.p.cut is not None
        more = [cut for cut in self._filled(pricing) if cut.min() > 0]
        starts = [*rounded(near, self.pp), *more, self.p.cut.layers]
        found = self._best(pricing, programs.moved(starts), reached)
        for _ in range(TURNS if self.how == "programs" else 0):
            known = reached if found is None else found.makespan
            programs.enough = known * (1.0 - WORTH)
            least, cut = programs.whole()
            bound = max(bound, least)
            if cut is None or programs.meet(cut[None], join=True)[0] <= least * (1.0 + CLOSE):
                break
            found = self._best(pricing, programs.moved([cut]), known) or found
        return found, bound

    def _best(self, pricing: Priced, cuts: Sequence[IntArray], reached: float) -> Levelled | None:
        """The fastest of these cuts that fit, if it is faster than what is reached."""
        some = np.stack(cuts)
        some = some[np.isfinite(pricing.loads(some)).all(axis=1)]
        seconds = pricing.makespans(some) if len(some) else np.array([np.inf])
        place = int(seconds.argmin())
        return (
            Levelled(some[place], float(seconds[place]), 0.0) if seconds[place] < reached else None
        )

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
        after = self._following(count)
        slope = after[np.arange(self.pp), most] - after[np.arange(self.pp), np.maximum(most - 1, 0)]
        number = np.arange(after.shape[1])
        left = np.where(number <= most[:, None], after - slope[:, None] * number, np.inf)
        return Chunks(
            micro_batches=m,
            after=np.stack([left.min(axis=1), slope]),
            layer=layer,
            fixed=fixed,
            send=self.p.delays(self.pp)[0],
            most=most,
            layers=self.model.num_layers,
        )

    def _ending(self, count: int | None) -> Array:
        """Seconds until a stage is done with all that it must do, by the number of its layers; ``(stages, numbers)``.

        It runs all micro-batches after the first one has passed the stages before (:meth:`Chunked._levelled`); its own
        gradients and optimizer follow, and no stage's take less than those of the mean one.
        """
        loads = self._busy + self.lead[:, None]
        if count is not None:
            loads = np.where(self._alone.full <= count * self.vpp, loads, np.inf)
        return np.asarray(loads + np.maximum(self._following(count), self._after()))

    def _most(self, count: int | None, reached: float) -> IntArray:
        """Layers that every stage holds at most, so many of every chunk running again, within what is reached."""
        fits = self._ending(count) < reached
        return np.asarray(np.where(fits, np.arange(fits.shape[1]), 0).max(axis=1))

    @cache  # noqa: B019 - it lives as long as one layout is cut
    def _following(self, count: int | None) -> Array:
        """Least seconds that follow the schedule, less jitter, by stage and the number of its layers.

        They shrink as gradients hide behind longer backwards: as many layers count as recomputed as may be.
        """
        kind = int(np.bincount(self.model.layers).argmax())
        runs = [(kind,) * n for n in range(self.model.num_layers + 1)]
        held = self.held(runs)
        every, none = held.length, np.zeros_like(held.length)
        if count is not None:
            again = np.minimum(every, self.vpp * count), none
        elif self.mixing == "alike":
            mode = int(self.p.rows.recompute[0])
            again = every * (mode == FULL), every * (mode == SELECTIVE)
        else:
            again = (every, none) if "full" in self.p.task.trainer.recompute else (none, every)
        after = self.priced(held, np.arange(len(runs)), *again).after
        return np.asarray(after / (1.0 + self.p.task.trainer.overhead.jitter))
