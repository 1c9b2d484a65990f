"""The space: every candidate that a task allows, and what removed each of the others.

Columns are added in the order of :data:`planner.trainers.rules.STEPS`; a rule is applied as soon as its columns are
known, and counts every layout that it removes, those included that later columns would have made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import TypeAlias

import numpy as np

from planner.candidates import FOLDED, LOOPED, RECOMPUTE, SCHEDULES, Candidates, concatenate
from planner.graph.placement import Chosen
from planner.search.pins import ANY_CHUNKS, SOME_OFFLOAD, Pins
from planner.trainers.rules import STEPS, step_of
from planner.trainers.rules.pipeline import cut_places
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import divisors
from planner.units import BoolArray, IntArray

MOST_PADDED = 8
"""Virtual stages up to which any number is tried where empty layers fill them."""
MOST_MICRO_BATCH = 32
"""Largest micro-batch that is looked at unless a pin asks for more."""
DEGREES = 3
"""The step at which the four degrees are known; they come together, since their product is the number of chips."""
ALTERNATING, INTERLEAVED = (SCHEDULES.index(s) for s in ("1f1b", "interleaved"))
_Values: TypeAlias = "Iterable[tuple[int, ...]]"
"""What the columns of a step may hold together."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Candidates that satisfy every rule and pin."""

    candidates: Candidates
    searched: int
    """Layouts of the space, removed ones included."""
    removed: dict[str, int] = field(default_factory=dict)
    """Layouts that each rule removed, by the rule's name."""
    operators: tuple[Mapping[str, Chosen], ...] = ({},)
    """Plans of operators that the candidates point to."""

    def take(self, index: IntArray) -> Space:
        """Some of the candidates, as if the others had never been looked at."""
        searched = self.searched - len(self.candidates) + len(index)
        return replace(self, candidates=self.candidates.take(index), searched=searched)


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """What the columns of one step may hold, for every mesh: a run of ``values`` each."""

    names: tuple[str, ...]
    values: IntArray
    """Runs under one another; ``(entries, names)``."""
    first: IntArray
    """Where the run of a mesh starts; ``(meshes,)``."""
    count: IntArray
    """How long it is; ``(meshes,)``."""


@dataclass(slots=True)
class _Table:
    """Columns so far; ``mesh`` is the row of the degrees that a row was made of."""

    columns: dict[str, IntArray]

    def __len__(self) -> int:
        return len(self.columns["mesh"])

    def cross(self, choices: _Choices) -> None:
        """Every row once with each of its choices."""
        mesh = self.columns["mesh"]
        counts = choices.count[mesh]
        values = choices.values[np.repeat(choices.first[mesh], counts) + ramp(counts)]
        added = dict(zip(choices.names, np.ascontiguousarray(values.T), strict=True))
        if (counts != 1).any():
            row = np.repeat(np.arange(len(self)), counts)
            self.columns = {name: column.take(row) for name, column in self.columns.items()}
        self.columns |= added

    def keep(self, mask: BoolArray) -> None:
        self.columns = {name: column[mask] for name, column in self.columns.items()}

    def view(self) -> Candidates:
        """As candidates; columns that are not known yet read as ones."""
        ones = np.ones(len(self), dtype=np.int64)
        known = {f.name: self.columns.get(f.name, ones) for f in fields(Candidates)}
        sp = known.pop("sp").astype(bool)
        return Candidates(**known | {"operators": ones - 1}, sp=sp)


def build_space(task: Task, pins: Pins) -> Space:
    """Every candidate that the rules and pins allow, with counts of what was removed.

    Pins say what the space is, rules what is removed from it: ``searched`` is what is left and what was removed.
    """
    task = replace(task, uneven_chunks=task.uneven_chunks or ANY_CHUNKS in pins.pins)
    options = _Options(task, pins)
    degrees = options.degrees()
    table = _Table(degrees | {"mesh": np.arange(len(degrees["tp"]))})
    choices = options.choices(degrees)
    removed: dict[str, int] = {}
    later = _later(choices, len(table))
    table.keep(later[0] > 0)
    for step in range(DEGREES, len(STEPS)):
        if step > DEGREES:
            table.cross(choices[step - DEGREES - 1])
        _apply_rules(task, table, step, later[step - DEGREES], removed)
    searched, rows = int(later[0].sum()), table.view()
    if not pins.semi_automatic:
        return Space(rows, searched, removed)
    from planner.search.semi_automatic import plan_operators

    planned = plan_operators(task, pins.operators, rows)
    lost = int((~planned.kept).sum())
    return Space(planned.rows, searched - lost, removed, planned.task.operators)


def with_offload(task: Task, pins: Pins, space: Space) -> Space:
    """A space without offload, and every layout that keeps something in host memory."""
    more = build_space(task, replace(pins, pins=(*pins.pins, SOME_OFFLOAD)))
    return joined(space, behind(space, more))


def behind(space: Space, more: Space) -> Space:
    """Another space with the plans of operators of one before its own."""
    plan = more.candidates.operators
    plan = np.where(plan > 0, plan + len(space.operators) - 1, plan)
    operators = (*space.operators, *more.operators[1:])
    return replace(more, candidates=replace(more.candidates, operators=plan), operators=operators)


def joined(space: Space, more: Space) -> Space:
    """A space with candidates of another behind its own, which has its plans of operators first."""
    names, rows = {*space.removed, *more.removed}, space.candidates
    return Space(
        concatenate([rows, more.candidates]) if len(more.candidates) else rows,
        space.searched + more.searched,
        {name: space.removed.get(name, 0) + more.removed.get(name, 0) for name in names},
        more.operators,
    )


def numbers_of_chunks(task: Task, pins: Pins) -> IntArray:
    """Numbers of virtual chunks that a pipeline is given, before any rule; of one chunk and of several."""
    return np.array(sorted({vpp for vpp, _ in _Options(task, pins).chunks(True)}), dtype=np.int64)


def _later(choices: list[_Choices], meshes: int) -> list[IntArray]:
    """For every step from the degrees on, the layouts that the columns after it make of one row of a mesh."""
    many = [np.ones(meshes, dtype=np.int64)]
    for step in reversed(choices):
        many.append(many[-1] * step.count)
    return many[::-1]


def degree_rows(task: Task, pins: Pins) -> list[dict[str, int]]:
    """The degrees (tp, cp, pp, dp) that multiply to the chips and satisfy the pins, before any rule."""
    columns = _Options(task, pins).degrees()
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _apply_rules(
    task: Task, table: _Table, step: int, later: IntArray, removed: dict[str, int]
) -> None:
    for rule in _rules_of(task, step):
        keeps = rule.keeps(task, table.view())
        if keeps.all():
            continue
        lost = int(later[table.columns["mesh"][~keeps]].sum())
        removed[rule.name] = removed.get(rule.name, 0) + lost
        table.keep(keeps)


def _rules_of(task: Task, step: int) -> Iterator[Rule]:
    """Rules whose columns are complete at a step; the four degrees come together, as step 3."""
    return (rule for rule in task.trainer.rules if max(step_of(rule), DEGREES) == step)


@dataclass(frozen=True, slots=True)
class _Options:
    """The values that each column may take, for a task and its pins."""

    task: Task
    pins: Pins

    def degrees(self) -> dict[str, IntArray]:
        """All (tp, cp, pp, dp) whose product is a number of chips to use; axes that the trainer lacks stay 1."""
        rows = [
            (tp, cp, pp, chips // (tp * cp * pp))
            for chips in self.task.chips or (self.task.cluster.num_chips,)
            for tp in self._degrees_of("tp", chips)
            for cp in self._degrees_of("cp", chips // tp)
            for pp in self._degrees_of("pp", chips // (tp * cp))
        ]
        table = np.array(rows, dtype=np.int64).T
        names = ("tp", "cp", "pp", "dp")
        columns = dict(zip(names, table, strict=True))
        for pin in self.pins.on(names):
            keeps = pin.keeps(columns[pin.column])
            columns = {name: column[keeps] for name, column in columns.items()}
        return columns

    def _degrees_of(self, axis: str, chips: int) -> list[int]:
        return divisors(chips) if axis in self.task.trainer.axes else [1]

    def choices(self, degrees: dict[str, IntArray]) -> list[_Choices]:
        """What every step after the degrees adds, for every mesh."""
        tp, pp, dp = degrees["tp"], degrees["pp"], degrees["dp"]
        alike = np.zeros_like(tp)
        states = np.stack([dp * degrees["cp"], (pp > 1) & (dp > 1)])
        return [
            self._choices(("ep", "etp"), tp, self._experts),
            self._choices(("vpp", "schedule"), pp > 1, self.chunks),
            self._choices(("micro_batch",), alike, self._micro_batches),
            self._choices(("sp",), tp > 1, self._sequence_parallel),
            self._choices(("sharding", "shard_group", "order"), states, self._states),
            self._choices(("recompute",), alike, self._recompute),
            self._choices(("offload",), alike, self._offload),
        ]

    def _choices(
        self, names: tuple[str, ...], keys: IntArray | BoolArray, values: Callable[..., _Values]
    ) -> _Choices:
        """Choices that depend on the degrees through a key, or several; those that pins leave."""
        unique, index = np.unique(np.atleast_2d(keys), axis=1, return_inverse=True)
        runs = [np.zeros((0, len(names)), dtype=np.int64)]
        for key in unique.T.tolist():
            run = np.array(list(values(*key)), dtype=np.int64).reshape(-1, len(names))
            for pin in self.pins.on(names):
                run = run[pin.keeps(run[:, names.index(pin.column)])]
            runs.append(run)
        counts = np.array([len(run) for run in runs[1:]], dtype=np.int64)
        index = index.ravel()
        return _Choices(
            names, np.concatenate(runs), (np.cumsum(counts) - counts)[index], counts[index]
        )

    def _experts(self, tp: int) -> _Values:
        """Experts whole, or split as tp splits the rest."""
        etps = self._pinned("etp", {1, tp} if self.task.trainer.expert_tp else {1})
        eps = {ep for size in self.task.model.sizes("experts") for ep in divisors(int(size))}
        if "ep" not in self.task.trainer.axes or not eps:
            eps = {1}
        if not self.task.model.sizes("experts"):
            etps = self._pinned("etp", {1})
        return product(self._pinned("ep", eps), etps)

    def _pinned(self, column: str, values: Iterable[int]) -> list[int]:
        """The value that a pin gives a column, whatever the values are: rules say what is wrong with it."""
        pinned = self.pins.fixed(column)
        return sorted(values) if pinned is None else [pinned]

    def chunks(self, piped: bool) -> _Values:
        """Virtual chunks and their schedule: 1F1B, or interleaved; every other only on request.

        1F1B is as fast as GPipe with less memory; torch runs split backwards only without its compiler.
        """
        many = piped and "interleaved" in self.task.trainer.schedules
        places = cut_places(self.task) if many else (1,)
        asked = self.pins.fixed("schedule")
        several = asked in (*LOOPED, *FOLDED)
        plain = ALTERNATING if asked is None or several else asked
        chunked = asked if asked is not None and several else INTERLEAVED
        counts = {v for number in places for v in divisors(number)}
        if many and ANY_CHUNKS in self.pins.pins:
            counts |= set(range(1, self.task.model.num_layers + 1))
        elif many and self.task.trainer.pads_layers:
            counts |= set(range(1, MOST_PADDED + 1))
        for vpp in self._pinned("vpp", counts):
            yield vpp, chunked if vpp > 1 else plain

    def _micro_batches(self, _: int) -> _Values:
        asked = any(
            pin.compare in (">", ">=") and pin.value >= MOST_MICRO_BATCH
            for pin in self.pins.on(("micro_batch",))
        )
        batch = self.task.recipe.global_batch
        most = batch if asked else MOST_MICRO_BATCH
        return (
            (b,) for b in self._pinned("micro_batch", (b for b in divisors(batch) if b <= most))
        )

    def _sequence_parallel(self, split: bool) -> _Values:
        return ((int(sp),) for sp in (self.task.trainer.sequence_parallel if split else (False,)))

    def _states(self, data: int, ordered: int) -> _Values:
        """State sharding, its group, and the axis order where that makes a difference: with a pipeline and dp.

        A part of the data ranks only where weights are sharded, which is what it is for.
        """
        orders = range(len(self.task.trainer.orders) if ordered else 1)
        parts = [g for g in divisors(data) if g > 1] or [1]
        for level in self.task.trainer.shardings:
            groups = parts if level == 3 and self.task.trainer.hsdp else [data]
            yield from product([level], self._pinned("shard_group", groups), orders)

    def _recompute(self, _: int) -> _Values:
        return ((RECOMPUTE.index(mode),) for mode in self.task.trainer.recompute)

    def _offload(self, _: int) -> _Values:
        """What is kept in host memory; nothing, unless a pin speaks of it."""
        kinds = self.task.trainer.offload.kinds if self.pins.on(("offload",)) else (0,)
        return ((kind,) for kind in self._pinned("offload", kinds))


def ramp(counts: IntArray) -> IntArray:
    """0, 1, … for every count in turn: ``[2, 3]`` gives ``[0, 1, 0, 1, 2]``."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
