"""The best cuts of a layout whose stages hold several chunks, or of one without a pipeline.

Layers are recomputed in turn from all chunks of a stage, so that chunks stay as equal as they can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from planner.cost.bounds import lower_bound, stage_bound
from planner.cost.cut import FULL, NONE, SELECTIVE, Cut, blocks_of_cuts, cut_blocks, uniform
from planner.cost.makespan import makespan
from planner.cost.orders import Schedule
from planner.cost.prices import Prices, after_seconds, block_seconds, cut_of, weight_seconds
from planner.search.stages.levelled import Levelled, exhausted, filled, floor, possible, solve
from planner.search.stages.probes import Open, Settled, settle
from planner.search.stages.runs import Fastest, Runs
from planner.search.stages.solver import PROVEN
from planner.units import Array, IntArray

Key = tuple[tuple[int, ...], int]
"""Kinds of the layers of a stage, in the order in which they are recomputed; how many of them as a whole, -1: any."""


class Chunked(Runs):
    """Several chunks a stage."""

    def cuts(self, reached: float) -> Iterator[tuple[Cut, float]]:
        """The best cut of every number of recomputed layers that is tried, with its gap.

        Args:
            reached: seconds; cuts whose busiest stage takes longer may be left out.
        """
        assert self.p.cut is not None
        even = self.p.cut.layers
        after, bound = self._after(), self.bound()
        for count in self._counts(int(even.max())):
            if self._levelled(count) + after >= reached:
                continue
            pricing = Priced(self, count)
            if self.vpp > 1 and self.p.task.trainer.uneven_stages:
                found = self._by_moves(pricing, bound, reached)
                if found is not None:
                    gap = 1.0 - max(bound, found.bound) / found.makespan
                    yield pricing.cut(found.layers, found.again), max(0.0, gap)
                fits = np.isfinite(pricing.seconds).all()
            elif fits := np.isfinite(pricing.loads(even[None])).all():
                yield pricing.cut(even), 0.0
            if fits:
                return  # recomputing more is no faster

    def _by_moves(
        self, pricing: Priced, bound: float, reached: float, more: Sequence[IntArray] = ()
    ) -> Levelled | None:
        """The best cut that moving layers finds, from cuts that level stages, the even one and some more."""
        assert self.p.cut is not None
        even = self.p.cut.layers
        least = np.minimum(even, 1)
        others = [cut for cut in (*self._filled(pricing), *more) if (cut >= least).all()]
        start = others[0] if others and self.p.mix is not None else even
        found = solve(pricing, pricing.stage, start, least, bound, reached, others)
        return found and self._exhausted(pricing, found, bound, reached)

    def bound(self) -> float:
        """Seconds of the schedule and what follows it, less jitter, that no cut beats."""
        return self._bound() + self._after()

    def _exhausted(
        self, pricing: Priced, found: Levelled, bound: float, reached: float
    ) -> Levelled:
        """The best cut, proven where few others are possible and stages have no choice in what they recompute."""
        free = not self.counted and self.mixing != "alike"
        known = min(found.makespan, reached)
        if free or len(self.model.blocks) > 1 or bound >= known * (1.0 - PROVEN):
            return found
        last = known * (1.0 - PROVEN) - self._after()
        cuts = possible(self._busy + self.lead[:, None], self.model.num_layers, pricing.stage, last)
        return found if cuts is None else exhausted(pricing, cuts, found, known)

    def _filled(self, pricing: Priced) -> list[IntArray]:
        """Cuts that level what stages take, with and without what the schedule takes before and after them."""
        return [
            cut
            for lead in (np.zeros_like(pricing.lead), pricing.lead)
            for cut in filled(self._busy + lead[:, None], self.model.num_layers, pricing.stage)
        ]

    def _counts(self, most: int) -> Sequence[int | None]:
        """Numbers of layers of every chunk that run again as a whole, as they are tried; None where stages are free."""
        if not self.counted:
            return (None,)
        if self.pp * self.vpp > 1:
            return range(most + 1)
        return [
            int(each) for each in self.least(self.held([self.model.layers])).flat if each <= most
        ]

    def _after(self) -> float:
        """Seconds that follow the schedule whatever the cut: those of the mean stage.

        They shrink as gradients hide behind longer backwards, and are convex: all layers count as recomputed.
        """
        p = self.p
        assert p.cut is not None
        heavy = np.array([FULL if "full" in p.task.trainer.recompute else SELECTIVE])
        blocks = cut_blocks(self.model, uniform(p.cut.layers, int(heavy[0])), self.pp, folded=False)
        whole, least = blocks.sum(axis=(0, 1)), np.inf
        for part in (p,) if p.mix is None else p.mix.parts:
            seconds = block_seconds(part.stated(replace(part.rows, recompute=heavy)))
            room = whole @ (seconds[0][0] + seconds[1][0])
            least = min(least, float(after_seconds(part, whole, room)))
        return least / self.pp / (1.0 + p.task.trainer.overhead.jitter)

    def _bound(self) -> float:
        """Seconds that no cut beats whatever its layers recompute.

        Proof: :func:`planner.cost.bounds.lower_bound` holds for every division.
        """
        p, schedule = self.p, Schedule(int(self.p.rows.schedule[0]))
        forward, backward = _fastest(self._light)
        assert p.cut is not None
        mode = int(self._light.rows.recompute[0])
        blocks = cut_blocks(self.model, uniform(p.cut.layers, mode), self.pp, folded=False)
        whole = blocks.sum(axis=(0, 1))
        send, waits = p.delays(self.pp)[0], self.vpp * self.waits.sum()
        m = int(p.micro_batches[0])
        forward, backward = whole @ forward + waits, whole @ backward + waits
        bound = lower_bound(schedule, self.pp, m, self.vpp, forward, backward, send.min())
        return max(float(bound), self._levelled(None))

    @cached_property
    def _light(self) -> Prices:
        """The layout, no layer of which runs again that may do without."""
        mode = int(self.p.rows.recompute[0]) if self.mixing == "alike" else NONE
        return replace(self.p, rows=replace(self.p.rows, recompute=np.array([mode])))

    def _levelled(self, count: int | None) -> float:
        """Seconds that no cut beats of whose chunks so many layers run again as a whole; None for any number.

        Proof: where layers are equal, stage i runs all micro-batches of what it holds, after the first one has passed
        a chunk of every stage before, and the last one's gradients go back through these under 1F1B's order; no chunk
        is empty. A stage holds no more than fits with all that its chunks may recompute.
        """
        if len(self.model.blocks) > 1 or self.vpp == 1:
            return 0.0
        loads = self._busy + self.lead[:, None]
        if count is not None:
            loads = np.where(self._alone.full <= count * self.vpp, loads, np.inf)
        return floor(loads, self.model.num_layers)

    @cached_property
    def _alone(self) -> Fastest:
        """What stages hold at best, by the number of layers, all of the most frequent kind."""
        kind, layers = int(np.bincount(self.model.layers).argmax()), self.model.num_layers
        most = layers if self.p.mix is not None else min(layers, 2 * layers // self.pp + 2)
        return self.fastest(self.held([(kind,) * n for n in range(most + 1)]))

    @cached_property
    def _busy(self) -> Array:
        """Seconds in which every stage is busy, by the number of its layers; ``(stages, numbers)``."""
        waits = 2 * self.vpp * self.waits[:, None]
        return np.asarray(int(self.p.micro_batches[0]) * (self._alone.seconds + waits))

    @cached_property
    def waits(self) -> Array:
        """Seconds by which every pass of a chunk is longer than its layers; ``(stages,)``."""
        return np.asarray(self.p.sends.waits(self.p.delays(self.pp))[0])

    @cached_property
    def lead(self) -> Array:
        """Least seconds in which a first micro-batch passes the stages before, and interleaved its gradient in the end.

        A chunk holds a layer at least; ``(stages,)``.
        """
        p, both = self.p, int(self.p.rows.schedule[0]) == Schedule.INTERLEAVED
        mode = int(self._light.rows.recompute[0])
        columns, each = np.array([0, 1 + mode * len(self.model.blocks)]), []
        for part in (self._light,) if p.mix is None else p.mix.parts:
            forward, backward = (seconds[0, columns] for seconds in block_seconds(part))
            passed = np.full((1, self.pp), forward[1] + both * backward[1])
            passed[0, 0] += forward[0] + both * backward[0]
            each.append(passed)
        passed = each[0] if p.mix is None else p.mix.slowest(each)
        passed = passed[0] + (1 + both) * (p.delays(self.pp)[0] + self.waits)
        return np.asarray(np.cumsum(passed) - passed)


def _fastest(p: Prices) -> tuple[Array, Array]:
    """Forward and backward seconds of every block on the chips that run it fastest; ``(blocks,)`` each."""
    parts = (p,) if p.mix is None else p.mix.parts
    each = [block_seconds(part) for part in parts]
    forward, backward = (np.min([part[which][0] for part in each], axis=0) for which in (0, 1))
    return forward, backward


class Priced:
    """What cuts into chunks cost, with the fastest recompute that fits on every stage."""

    def __init__(self, runs: Chunked, count: int | None) -> None:
        self.runs, self.count = runs, count
        self.folded = bool(runs.p.rows.folded[0])
        self.stage = np.arange(runs.pp * runs.vpp) % runs.pp
        if self.folded:
            self.stage[runs.pp :] = self.stage[: runs.pp][::-1]
        self.mine = np.stack([np.flatnonzero(self.stage == stage) for stage in range(runs.pp)])
        self.numbers: dict[bytes, int] = {}
        self.keys: dict[Key, int] = {}
        self.seconds, self.again = np.empty((runs.pp, 0)), np.empty((2, runs.pp, 0), np.int64)
        self.micro_batches = int(runs.p.micro_batches[0])
        self.jitter = 1.0 + runs.p.task.trainer.overhead.jitter

    @cached_property
    def lead(self) -> Array:
        """Seconds in which a first micro-batch passes the stages before, and its gradient in the end; ``(stages,)``."""
        forward, backward = (part[0] for part in block_seconds(self.runs.p))
        passed = cut_of(self.runs.p)[:, 0] @ (forward + backward)
        return np.asarray(np.cumsum(passed) - passed)

    def loads(self, cuts: IntArray) -> Array:
        """Seconds in which every stage is busy, infinite where it cannot hold its layers; ``(n, stages)``."""
        numbers = self._numbers(cuts)
        waits = 2 * self.runs.vpp * self.runs.waits
        seconds = self.seconds[np.arange(self.runs.pp), numbers] + waits
        return np.asarray(seconds * self.micro_batches)

    def makespans(self, cuts: IntArray) -> Array:
        """Seconds of the schedule of cuts that fit and what follows it, less jitter; ``(n,)``."""
        found, after = self._timed(cuts, *self._again(cuts))
        return np.asarray(found + after.max(axis=1))

    def bounds(self, cuts: IntArray) -> Array:
        """Seconds that these cuts take at least; ``(n,)``."""
        found, after = self._timed(cuts, *self._again(cuts), exact=False)
        return np.asarray(found + after.max(axis=1))

    def settled(self, cuts: IntArray, known: float, place: int) -> Settled:
        """The best of cuts one of which takes so long, whatever its stages recompute if they are free in that."""
        if self.count is not None or self.runs.mixing == "alike":
            return Settled(known, known, place, None)
        return settle(self, cuts, known, place)

    def choices(self, cuts: IntArray, known: float) -> list[Open]:
        """What stages may recompute so that none of them alone takes longer than what is known."""
        numbers = self._numbers(cuts).ravel().tolist()
        every = list(self.keys)
        keys = [every[number] for number in numbers]
        place = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        run, full, part, costs = self.runs.choices(self.runs.held([run for run, _ in place]))
        after = costs.after / self.jitter
        seconds = self.micro_batches * (costs.forward + costs.backward) + after
        slow = ~costs.fits | (seconds > known)
        ways = np.array([full, full + part])
        table = np.stack([*np.repeat(ways[:, None], len(after), axis=1), after], axis=-1)
        starts = np.searchsorted(run, np.arange(len(place) + 1))
        options = []
        for number, key in enumerate(keys):
            stage, mine = number % self.runs.pp, slice(*starts[place[key] :][:2])
            options.append(table[stage, mine][~slow[stage, mine]])
        return [options[row : row + self.runs.pp] for row in range(0, len(keys), self.runs.pp)]

    def schedules(self, cuts: IntArray, full: IntArray, part: IntArray) -> Array:
        """Seconds of schedules, so many layers of every stage running again, ``(n, stages)`` each; ``(n,)``."""
        return self._timed(cuts, *self._spread(cuts, full, part))[0]

    def _timed(
        self, cuts: IntArray, full: IntArray, selective: IntArray, *, exact: bool = True
    ) -> tuple[Array, Array]:
        """Seconds of schedules, or bounds, ``(n,)``, and of what follows, less jitter, ``(n, stages)``."""
        p = self.runs.p
        schedule, send = Schedule(int(p.rows.schedule[0])), p.delays(self.runs.pp)[0]
        *times, weight, after = self._seconds(cuts, full, selective)
        times = [each + self.runs.waits[:, None] for each in times]
        seconds = makespan if exact else stage_bound
        found = seconds(schedule, self.micro_batches, times[0], times[1], send, weight)
        return found, after / self.jitter

    def _seconds(
        self, cuts: IntArray, full: IntArray, selective: IntArray
    ) -> tuple[Array, Array, Array, Array]:
        """Forward, backward and weight seconds of chunks, and what follows the schedule.

        Shapes: ``(n, stages, chunks a stage)`` each; what follows ``(n, stages)``.
        """
        runs = self.runs
        blocks = blocks_of_cuts(runs.model, cuts, full, selective, runs.pp, folded=self.folded)
        held, mix = blocks.sum(axis=2), runs.p.mix
        each = []
        for part in (runs.p,) if mix is None else mix.parts:
            seconds = (*block_seconds(part), weight_seconds(part))
            times = [blocks @ one[0] for one in seconds]
            busy = (times[0] + times[1]).sum(axis=2)
            each.append((*times, after_seconds(part, held, busy)))
        if mix is None:
            return each[0]
        forward, backward, weight, after = map(mix.slowest, zip(*each, strict=True))
        return forward, backward, weight, after

    def cut(self, layers: IntArray, again: IntArray | None = None) -> Cut:
        """A cut that fits, with what its layers recompute; ``again`` as in :class:`Settled`."""
        cut = layers[None]
        full, selective = self._again(cut) if again is None else self._spread(cut, *again[:, None])
        return Cut(layers, full[0], selective[0])

    def _again(self, cuts: IntArray) -> tuple[IntArray, IntArray]:
        """How many layers of every chunk run again as a whole, and in part; ``(n, chunks)`` each."""
        none, mode = np.zeros_like(cuts), int(self.runs.p.rows.recompute[0])
        if self.count is not None:
            return np.minimum(cuts, self.count), none
        if self.runs.mixing == "alike":
            return cuts if mode == FULL else none, cuts if mode == SELECTIVE else none
        numbers = self._numbers(cuts)
        full, part = self.again[:, np.arange(self.runs.pp), numbers]
        return self._spread(cuts, full, part)

    def _spread(self, cuts: IntArray, full: IntArray, part: IntArray) -> tuple[IntArray, IntArray]:
        """The same from the numbers of every stage; ``(n, stages)`` each to ``(n, chunks)``."""
        held = cuts[:, self.mine].reshape(full.size, -1).tolist()
        rows = zip(held, full.ravel().tolist(), part.ravel().tolist(), strict=True)
        table = np.array([_shares(tuple(sizes), *numbers) for sizes, *numbers in rows])
        again = np.zeros((2, *cuts.shape), dtype=np.int64)
        again[:, :, self.mine] = np.moveaxis(table.reshape(*full.shape, 2, -1), 2, 0)
        return again[0], again[1]

    def _numbers(self, cuts: IntArray) -> IntArray:
        """Numbers of the keys of stages, whose seconds and recompute are known then; ``(n, stages)``."""
        held = cuts[:, self.mine]
        if len(self.runs.model.blocks) > 1:
            held = np.concatenate([held, (np.cumsum(cuts, axis=1) - cuts)[:, self.mine]], axis=-1)
        rows = np.ascontiguousarray(held, np.int64).reshape(-1, held.shape[-1])
        whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
        names = list(map(bytes, whole.ravel().tolist()))
        if new := set(names) - self.numbers.keys():
            self._learn({name: self._key(np.frombuffer(name, np.int64).tolist()) for name in new})
        return np.array([*map(self.numbers.__getitem__, names)]).reshape(held.shape[:2])

    def _key(self, held: list[int]) -> Key:
        """Of a stage: layers of every chunk, then their first layers where layers differ in kind."""
        kinds, v = self.runs.model.layers, self.runs.vpp
        first = held[v:] or [0] * v
        run = tuple(kinds[first[place] + turn] for place, turn in _turns(held[:v]))
        return run, -1 if self.count is None else sum(min(n, self.count) for n in held[:v])

    def _learn(self, keys: dict[bytes, Key]) -> None:
        """Seconds and recompute of stages that were not met before."""
        if new := sorted(set(keys.values()) - self.keys.keys()):
            whole = None if self.count is None else np.array([count for _, count in new])
            found = self.runs.fastest(self.runs.held([run for run, _ in new]), whole)
            self.seconds = np.concatenate([self.seconds, found.seconds], axis=1)
            again = np.stack([found.full, found.selective])
            self.again = np.concatenate([self.again, again], axis=2)
            self.keys |= {key: len(self.keys) + turn for turn, key in enumerate(new)}
        self.numbers |= {name: self.keys[key] for name, key in keys.items()}


@lru_cache(maxsize=65536)
def _shares(sizes: tuple[int, ...], full: int, part: int) -> tuple[tuple[int, ...], ...]:
    """Of the chunks of a stage, how many layers run again as a whole and in part, taken in turn.

    >>> _shares((2, 3), 3, 1)
    ((2, 1), (0, 1))
    """
    chunks = [chunk for chunk, _ in _turns(list(sizes))]
    of = range(len(sizes))
    whole, some = chunks[:full], chunks[full : full + part]
    return tuple(map(whole.count, of)), tuple(map(some.count, of))


def _turns(sizes: list[int]) -> list[tuple[int, int]]:
    """Chunk and place in it of a stage's layers: the first of every chunk, then the second."""
    turns = range(max(sizes))
    return [(chunk, turn) for turn in turns for chunk, size in enumerate(sizes) if turn < size]
