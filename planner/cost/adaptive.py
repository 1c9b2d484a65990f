"""Zero-bubble orders made for the times of the stages, within a limit of activations.

Stages run one forward and one input's gradient in turn after a warm-up that is as long as the first gradient takes to
come back; gradients of weights go where a stage would wait, and where memory is short. Two choices are open: whether a
forward of the warm-up may delay the first gradient, and whether weights go into gaps that are shorter than they take.
All four orders are made, and the one with the shortest span of the busiest stage is taken.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from planner.cost.folded import Pass, tabled
from planner.cost.orders import FORWARD, INPUT, WEIGHT, Orders, Schedule, looped
from planner.units import Array, IntArray

ROUNDING = 1e-9


def adaptive_order(
    schedule: Schedule,
    m: int,
    forward: Array,
    gradient: Array,
    weight: Array,
    send: float = 0.0,
    kept: float = 0.0,
) -> Orders:
    """The order tables of ZB-1p or ZB-2p.

    Args:
        schedule: one of the two; a stage may hold as many activations as there are stages, or twice that.
        m: micro-batches.
        forward: of every stage.
        gradient: of every stage's input.
        weight: of every stage's weights.
        send: delay of every boundary.
        kept: what the gradients of weights still need once the input's is made, as a share of the activations.

    Shapes:
        times (stages,); tables (stages, 3 m).

    Units:
        seconds.

    Source:
        Qi et al. 2024, Zero Bubble Pipeline Parallelism, section 3.1; reproduces the bubble rates of its table 5.
    """
    key = tuple(np.round([forward, gradient, weight], 15).ravel().tolist())
    return _made(schedule, m, key, round(send, 15), round(kept, 9))


@lru_cache(maxsize=128)
def _made(schedule: Schedule, m: int, key: tuple[float, ...], send: float, kept: float) -> Orders:
    p = len(key) // 3
    times = (list(key[:p]), list(key[p : 2 * p]), list(key[2 * p :]))
    limit = p if schedule == Schedule.ZB_1P else 2 * p
    tries = (
        _Builder(m, times, send, kept, limit, eager=eager).build(late=late)
        for late, eager in product((False, True), repeat=2)
    )
    best = min(tries, key=lambda built: built.span)
    return tabled(best.rows, looped(p, 1))


class _Builder:
    """One order under construction: what every stage has done, until when it is busy and what it holds."""

    def __init__(
        self,
        m: int,
        times: tuple[list[float], list[float], list[float]],
        send: float,
        kept: float,
        limit: int,
        *,
        eager: bool,
    ) -> None:
        p = len(times[0])
        self.m, self.send, self.kept, self.limit, self.eager = m, send, kept, limit, eager
        self.times = dict(zip((FORWARD, INPUT, WEIGHT), times, strict=True))
        self.rows: list[list[Pass]] = [[] for _ in range(p)]
        self.done = {kind: [0] * p for kind in self.times}
        self.ends: dict[int, list[list[float]]] = {
            kind: [[] for _ in range(p)] for kind in self.times
        }
        self.start, self.end, self.waited, self.memory = ([0.0] * p for _ in range(4))

    @property
    def span(self) -> float:
        """Seconds from first start to last end of the stage where that is most."""
        return max(end - start for start, end in zip(self.start, self.end, strict=True))

    def build(self, *, late: bool) -> _Builder:
        """All passes of all stages."""
        p = len(self.rows)
        for stage, count in enumerate(self._warmup(late=late)):
            for _ in range(count):
                self._run(stage, FORWARD)
        for micro in range(self.m):
            for stage in range(p if micro else 0):
                if self.done[FORWARD][stage] < self.m:
                    self._fill(stage, FORWARD)
                    self._run(stage, FORWARD)
            for stage in reversed(range(p)):
                if micro:
                    self._fill(stage, INPUT)
                self._run(stage, INPUT)
        for stage in range(p):
            self._weights(stage, self.m)
        return self

    def _warmup(self, *, late: bool) -> IntArray:
        """Forwards of every stage before its first gradient: what fits before that, fewer on later stages."""
        forward, gradient = np.array(self.times[FORWARD]), self.times[INPUT]
        p = len(self.rows)
        begin = np.concatenate([[0.0], np.cumsum(forward[:-1] + self.send)])
        counts = np.ones(p, np.int64)
        turned = begin[-1] + forward[-1] + gradient[-1]
        for stage in reversed(range(p - 1)):
            arrives = turned + self.send
            room = (arrives - begin[stage]) / forward[stage]
            fits = int(np.ceil(room - ROUNDING) if late else np.floor(room + ROUNDING))
            counts[stage] = max(1, min(fits, self.m, self.limit))
            busy = begin[stage] + counts[stage] * forward[stage]
            turned = max(busy, arrives) + gradient[stage]
        for stage in range(1, p):
            if counts[stage - 1] < self.m:
                counts[stage] = max(1, min(counts[stage], counts[stage - 1] - 1))
        return counts

    def _ready(self, stage: int, kind: int) -> float:
        """When the input of a stage's next pass arrives."""
        source = stage - 1 if kind == FORWARD else stage + 1
        if not 0 <= source < len(self.rows):
            return 0.0
        return self.ends[kind][source][self.done[kind][stage]] + self.send

    def _run(self, stage: int, kind: int) -> None:
        last = self.end[stage]
        begin = last if kind == WEIGHT else max(last, self._ready(stage, kind))
        if self.rows[stage]:
            self.waited[stage] += begin - last
        else:
            self.start[stage] = begin
        self.end[stage] = begin + self.times[kind][stage]
        self.ends[kind][stage].append(self.end[stage])
        self.rows[stage].append((kind, 0, self.done[kind][stage]))
        self.done[kind][stage] += 1
        self.memory[stage] += {FORWARD: 1.0, INPUT: self.kept - 1.0, WEIGHT: -self.kept}[kind]

    def _fill(self, stage: int, kind: int) -> None:
        """Weights before a pass: what memory asks for, what fits into the wait, and one that does not quite fit."""
        more = 1.0 if kind == FORWARD else max(self.kept - 1.0, 0.0)
        while self._pending(stage) and self.memory[stage] + more > self.limit + ROUNDING:
            self._run(stage, WEIGHT)
        ready, length = self._ready(stage, kind), self.times[WEIGHT][stage]
        while self._pending(stage) and self.end[stage] + length <= ready:
            self._run(stage, WEIGHT)
        gap = ready - self.end[stage]
        if self._pending(stage) and gap > 0:
            worst = max(self.waited) - self.waited[stage]
            if self.eager or gap > worst:
                self._run(stage, WEIGHT)
        if kind == INPUT and stage == 0 and self.done[FORWARD][0] == self.m:
            self._weights(stage, self.done[INPUT][0])

    def _pending(self, stage: int) -> bool:
        return self.done[WEIGHT][stage] < self.done[INPUT][stage]

    def _weights(self, stage: int, count: int) -> None:
        """Weights of a stage up to a number of passes."""
        while self.done[WEIGHT][stage] < count:
            self._run(stage, WEIGHT)
