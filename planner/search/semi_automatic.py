"""Semi-automatic mode: some operators' strategies are pinned, all others follow at least cost, on every mesh at once.

A pin is a filter. Meshes on which an operator cannot be cut as its pins ask go; where the trainer takes a strategy for
every operator, the rest of the block is chosen anew for each mesh that stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import Candidates, distinct
from planner.cost.partition import distinct_blocks
from planner.cost.setting import setting
from planner.graph.operator import Block
from planner.graph.placement import AxisName, Chosen
from planner.search.operator_pins import OperatorPin, Wanted
from planner.search.role_choices import Options, apart, cheapest, options
from planner.trainers.trainer import Task
from planner.units import BoolArray, IntArray

MESH = ("dp", "cp", "tp", "ep", "etp")
"""Columns that decide into how many parts a strategy cuts."""
DENSE_KEY = ("tp", "cp", "micro_batch")
EXPERT_KEY = (*DENSE_KEY, "ep", "etp")
"""What the choice of a block without and with experts depends on, besides sequence parallelism and pins."""
_Asked = Mapping[tuple[str, str], tuple[Wanted, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """Candidates with a plan of operators each."""

    task: Task
    """With the plans that the candidates point to."""
    rows: Candidates
    kept: BoolArray
    """Which of the candidates given can satisfy the pins. Shapes: (n,)."""


def plan_operators(task: Task, pins: Sequence[OperatorPin], rows: Candidates) -> Planned:
    """The candidates that satisfy the pins, each with the cheapest plan of operators given them.

    Args:
        task: the question, its model divided as the pins divide it.
        pins: what operators must do; with none the trainer's freedom alone is used.
        rows: candidates that the rules allow.
    """
    asked = _together(pins)
    names = (*EXPERT_KEY, *(("dp",) if asked else ()))
    first, same = distinct([rows.sp.astype(np.int64), *(getattr(rows, name) for name in names)])
    meshes = rows.take(first)
    kept = np.zeros(len(meshes), dtype=np.bool_)
    plan = np.zeros(len(meshes), dtype=np.int64)
    plans: dict[tuple[tuple[str, Chosen], ...], int] = {(): 0}
    for sp in (False, True):
        index = np.flatnonzero(meshes.sp == sp)
        if not len(index):
            continue
        some = meshes.take(index)
        found = [
            part
            for block in distinct_blocks(task.model)
            for part in _block_choices(task, asked, block, some, sp=sp)
        ]
        kept[index] = np.logical_and.reduce([part.possible for part in found])
        different, which = distinct([part.number for part in found])
        numbers = [plans.setdefault(_plan(found, row), len(plans)) for row in different.tolist()]
        plan[index] = np.array(numbers, dtype=np.int64)[which]
    return Planned(
        task=replace(task, operators=tuple(dict(some) for some in plans)),
        rows=replace(rows, operators=plan[same]).take(kept[same]),
        kept=kept[same],
    )


def _together(pins: Sequence[OperatorPin]) -> dict[tuple[str, str], tuple[Wanted, ...]]:
    """All that is asked of every operator."""
    asked: dict[tuple[str, str], tuple[Wanted, ...]] = {}
    for pin in pins:
        for key, wanted in pin.wanted.items():
            asked[key] = (*asked.get(key, ()), *wanted)
    return asked


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some operators of a block under many candidates."""

    block: str
    possible: BoolArray
    number: IntArray
    """For every candidate which of ``chosen`` it takes."""
    chosen: tuple[Chosen, ...]


def _plan(parts: Sequence[_Part], row: int) -> tuple[tuple[str, Chosen], ...]:
    """What one candidate's operators do that the roles do not say, by block."""
    found: dict[str, Chosen] = {}
    for part in parts:
        if some := part.chosen[part.number[row]]:
            found[part.block] = (*found.get(part.block, ()), *some)
    return tuple(found.items())


def _block_choices(
    task: Task, asked: _Asked, block: Block, rows: Candidates, *, sp: bool
) -> Iterator[_Part]:
    """The parts of a block that can be decided apart; first, where its pins can be satisfied."""
    pinned = {name for owner, name in asked if owner == block.name}
    every = options(task.trainer, block, pinned, sp=sp)
    masks = _masks(asked, block, every, rows)
    possible = np.ones(len(rows), dtype=np.bool_)
    for mask in masks.values():
        possible &= mask.any(axis=1)
    number = np.zeros(len(rows), dtype=np.int64)
    yield _Part(block.name, possible, number, ((),))
    index = np.flatnonzero(possible)
    for some in apart(block, every) if len(index) else ():
        expert = any(block.operators[n].view == "expert" for n in some)
        columns = [getattr(rows, name)[index] for name in (EXPERT_KEY if expert else DENSE_KEY)]
        for n in some:
            if n in masks:
                columns += [column.astype(np.int64) for column in masks[n][index].T]
        first, same = distinct(columns)
        s = setting(task, rows.take(index[first]))
        allowed = [masks[n][index[first]] if n in masks else None for n in range(len(every))]
        best = cheapest(s, block, every, allowed, some, sp=sp)
        different, which = distinct(list(best.chosen.T))
        number, able = np.zeros_like(number), possible.copy()
        number[index] = which[same]
        able[index] = np.isfinite(best.seconds)[same]
        chosen = tuple(
            _named(block, every, some, choice) for choice in best.chosen[different].tolist()
        )
        yield _Part(block.name, able, number, chosen)


def _named(block: Block, every: Options, some: Sequence[int], choice: Sequence[int]) -> Chosen:
    """The strategies that are not what the roles give, which stand first."""
    return tuple(
        (block.operators[n].name, tuple(every[n][k].items()))
        for n, k in zip(some, choice, strict=True)
        if k
    )


def _masks(asked: _Asked, block: Block, every: Options, rows: Candidates) -> dict[int, BoolArray]:
    """By its number, for every pinned operator, which of its options each candidate may take. Shapes: (n, options)."""
    first, same = distinct([getattr(rows, axis) for axis in MESH])
    degrees = degrees_of(rows.take(first))
    return {
        number: np.stack(
            [
                np.logical_and.reduce([one.met(split, degrees) for one in wanted])
                for split in splits
            ],
            axis=1,
        )[same]
        for number, (op, splits) in enumerate(zip(block.operators, every, strict=True))
        if (wanted := asked.get((block.name, op.name)))
    }


def degrees_of(rows: Candidates) -> dict[AxisName, IntArray]:
    """Degrees of the axes that cut operators. Shapes: (n,) each."""
    return {axis: rows.degree(axis) for axis in (*MESH, "edp")}
