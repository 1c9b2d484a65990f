"""The space: every candidate that a task allows, and what removed each of the others.

Columns are added in the order of :data:`planner.trainers.rules.STEPS`; a rule is applied as soon as its columns are
known, and counts every layout that it removes, those included that later columns would have made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np

from planner.candidates import SCHEDULES, Candidates
from planner.search.pins import Pins
from planner.trainers.rules import STEPS, step_of
from planner.trainers.rules.pipeline import cut_places
from planner.trainers.trainer import Rule, Task
from planner.trainers.wording import divisors
from planner.units import BoolArray, IntArray

MOST_MICRO_BATCH = 32
"""Largest micro-batch that is looked at unless a pin asks for more."""
DEGREES = 3
"""The step at which the four degrees are known; they come together, since their product is the number of chips."""
GPIPE, ALTERNATING, INTERLEAVED = (SCHEDULES.index(s) for s in ("gpipe", "1f1b", "interleaved"))


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Candidates that satisfy every rule and pin."""

    candidates: Candidates
    searched: int
    """Layouts of the space, removed ones included."""
    removed: dict[str, int] = field(default_factory=dict)
    """Layouts that each rule removed, by the rule's name."""


@dataclass(slots=True)
class _Table:
    """Columns so far, and for every row how many layouts the columns to come will make of it."""

    columns: dict[str, IntArray]

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def cross(self, counts: IntArray, new: dict[str, IntArray]) -> None:
        """Repeat every row ``counts`` times and add columns that are already of that length."""
        self.columns = {name: np.repeat(col, counts) for name, col in self.columns.items()} | new

    def keep(self, mask: BoolArray) -> None:
        self.columns = {name: column[mask] for name, column in self.columns.items()}

    def view(self) -> Candidates:
        """As candidates; columns that are not known yet read as ones."""
        ones = np.ones(len(self), dtype=np.int64)
        known = {f.name: self.columns.get(f.name, ones) for f in fields(Candidates)}
        sp = known.pop("sp").astype(bool)
        return Candidates(**known, sp=sp)


def build_space(task: Task, pins: Pins) -> Space:
    """Every candidate that the rules and pins allow, with counts of what was removed."""
    options = _Options(task, pins)
    table = _Table(options.degrees())
    removed: dict[str, int] = {}
    searched = 0
    for step in range(len(STEPS)):
        if not len(table):
            break
        options.extend(table, step)
        if step > DEGREES:
            for pin in pins.on(STEPS[step]):
                table.keep(pin.keeps(table.columns[pin.column]))
        if step == DEGREES:
            searched = int(options.later(table, step).sum())
        if step >= DEGREES:
            _apply_rules(task, options, table, step, removed)
    return Space(table.view(), searched, removed)


def degree_rows(task: Task, pins: Pins) -> list[dict[str, int]]:
    """The degrees (tp, cp, pp, dp) that multiply to the chips and satisfy the pins, before any rule."""
    columns = _Options(task, pins).degrees()
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _apply_rules(
    task: Task, options: _Options, table: _Table, step: int, removed: dict[str, int]
) -> None:
    for rule in _rules_of(task, step):
        keeps = rule.keeps(task, table.view())
        if keeps.all():
            continue
        lost = int(options.later(table, step)[~keeps].sum())
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
        """All (tp, cp, pp, dp) whose product is the number of chips; axes that the trainer lacks stay 1."""
        chips = self.task.cluster.num_chips
        rows = [
            (tp, cp, pp, chips // (tp * cp * pp))
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

    def extend(self, table: _Table, step: int) -> None:
        """Add the columns of a step."""
        makers = {
            4: self._experts,
            5: self._chunks,
            6: self._micro_batches,
            7: self._sequence_parallel,
            8: self._states,
            9: self._recompute,
        }
        if step in makers:
            makers[step](table)

    def later(self, table: _Table, step: int) -> IntArray:
        """For every row, the layouts that the columns after ``step`` would make of it."""
        columns = table.columns
        many = np.ones(len(table), dtype=np.int64)
        if step < 4:
            many = many * len(self._expert_choices())
        if step < 5:
            many = many * np.where(columns["pp"] > 1, len(self._chunk_choices()), 1)
        if step < 6:
            many = many * len(self._micro_batch_choices())
        if step < 7:
            many = many * np.where(columns["tp"] > 1, len(self.task.trainer.sequence_parallel), 1)
        if step < 8:
            orders = np.where(self._ordered(columns), len(self.task.trainer.orders), 1)
            many = many * orders * self._num_shardings(columns)
        if step < 9:
            many = many * len(self.task.trainer.recompute)
        return many

    def _expert_choices(self) -> list[tuple[int, bool]]:
        """(ep, whether experts are split as tp splits the rest)."""
        sizes = self.task.model.sizes("experts")
        if not sizes:
            return [(1, False)]
        eps = sorted({ep for size in sizes for ep in divisors(int(size))})
        if "ep" not in self.task.trainer.axes:
            eps = [1]
        pinned = self.pins.fixed("ep")
        if pinned is not None:
            eps = [pinned]
        return [(ep, split) for ep in eps for split in self._expert_splits()]

    def _expert_splits(self) -> list[bool]:
        return [False, True] if self.task.trainer.expert_tp else [False]

    def _experts(self, table: _Table) -> None:
        choices = self._expert_choices()
        count = len(table)
        pinned = self.pins.fixed("etp")
        table.cross(np.full(count, len(choices)), {"ep": np.tile([ep for ep, _ in choices], count)})
        split = np.tile([both for _, both in choices], count)
        etp = np.where(split, table.columns["tp"], 1 if pinned is None else pinned)
        table.columns["etp"] = etp
        table.keep(~split | (table.columns["tp"] > 1))

    def _chunk_choices(self) -> list[int]:
        pinned = self.pins.fixed("vpp")
        if pinned is not None:
            return [pinned]
        if "interleaved" not in self.task.trainer.schedules:
            return [1]
        return sorted({v for places in cut_places(self.task) for v in divisors(places)})

    def _chunks(self, table: _Table) -> None:
        """Virtual chunks and their schedule; GPipe only on request, since 1F1B is as fast with less memory."""
        choices = np.array(self._chunk_choices(), dtype=np.int64)
        counts = np.where(table.columns["pp"] > 1, len(choices), 1)
        if self.pins.fixed("vpp") is not None:
            counts = np.ones_like(counts)
        vpp = choices[_ramp(counts)]
        plain = self.pins.fixed("schedule")
        plain = plain if plain in (GPIPE, ALTERNATING) else ALTERNATING
        table.cross(counts, {"vpp": vpp})
        table.columns["schedule"] = np.where(vpp > 1, INTERLEAVED, plain)

    def _micro_batch_choices(self) -> list[int]:
        pinned = self.pins.fixed("micro_batch")
        if pinned is not None:
            return [pinned]
        return [b for b in divisors(self.task.recipe.global_batch) if b <= MOST_MICRO_BATCH]

    def _micro_batches(self, table: _Table) -> None:
        choices, count = self._micro_batch_choices(), len(table)
        table.cross(np.full(count, len(choices)), {"micro_batch": np.tile(choices, count)})

    def _sequence_parallel(self, table: _Table) -> None:
        values = np.array(sorted(self.task.trainer.sequence_parallel), dtype=np.int64)
        counts = np.where(table.columns["tp"] > 1, len(values), 1)
        single = table.columns["tp"] == 1
        sp = np.where(np.repeat(single, counts), 0, values[_ramp(counts)])
        table.cross(counts, {"sp": sp})

    def _shard_groups(self, data: int) -> list[int]:
        """Groups over which weights may be sharded: all data ranks, and for HSDP their divisors."""
        pinned = self.pins.fixed("shard_group")
        if pinned is not None:
            return [pinned]
        return [g for g in divisors(data) if g > 1] or [1] if self.task.trainer.hsdp else [data]

    def _num_shardings(self, columns: dict[str, IntArray]) -> IntArray:
        data = columns["dp"] * columns["cp"]
        unique, index = np.unique(data, return_inverse=True)
        counts = [len(self._shardings(int(value))) for value in unique]
        return np.asarray(np.array(counts, dtype=np.int64)[index.ravel()])

    def _shardings(self, data: int) -> list[tuple[int, int]]:
        """(level, group): a part of the data ranks only where weights are sharded, which is what it is for."""
        found = []
        for level in self.task.trainer.shardings:
            groups = self._shard_groups(data) if level == 3 else [data]
            if self.pins.fixed("shard_group") is not None:
                groups = self._shard_groups(data)
            found += [(level, group) for group in groups]
        return found

    def _ordered(self, columns: dict[str, IntArray]) -> BoolArray:
        """Where the axis order makes a difference: with both a pipeline and data ranks."""
        return np.asarray((columns["pp"] > 1) & (columns["dp"] > 1))

    def _states(self, table: _Table) -> None:
        data = table.columns["dp"] * table.columns["cp"]
        unique, index = np.unique(data, return_inverse=True)
        lists = [np.array(self._shardings(int(value)), dtype=np.int64) for value in unique]
        counts = np.array([len(entry) for entry in lists])[index.ravel()]
        offset = np.concatenate([[0], np.cumsum([len(entry) for entry in lists])])[index.ravel()]
        flat = np.concatenate(lists)[np.repeat(offset, counts) + _ramp(counts)]
        table.cross(counts, {"sharding": flat[:, 0], "shard_group": flat[:, 1]})
        orders = np.where(self._ordered(table.columns), len(self.task.trainer.orders), 1)
        table.cross(orders, {"order": _ramp(orders)})

    def _recompute(self, table: _Table) -> None:
        modes = np.array(
            sorted(("none", "selective", "full").index(m) for m in self.task.trainer.recompute)
        )
        count = len(table)
        table.cross(np.full(count, len(modes)), {"recompute": np.tile(modes, count)})


def _ramp(counts: IntArray) -> IntArray:
    """0, 1, … for every count in turn: ``[2, 3]`` gives ``[0, 1, 0, 1, 2]``."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
