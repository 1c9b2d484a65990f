"""Semi-automatic mode: some operators' strategies are pinned, all others follow at least cost, on every mesh at once.

A pin is a filter. Meshes on which an operator cannot be cut as its pins ask go; where the trainer takes a strategy for
every operator, the rest of the block is chosen anew for each mesh that stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.candidates import Candidates, distinct
from planner.cost.partition import distinct_blocks
from planner.cost.setting import setting
from planner.graph.operator import Block
from planner.graph.placement import AxisName, Chosen
from planner.search.operator_pins import OperatorPin, Wanted
from planner.search.role_choices import Options, cheapest, options
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
    kept = np.zeros(len(rows), dtype=np.bool_)
    plan = np.zeros(len(rows), dtype=np.int64)
    plans: dict[tuple[tuple[str, Chosen], ...], int] = {(): 0}
    for sp in (False, True):
        index = np.flatnonzero(rows.sp == sp)
        if not len(index):
            continue
        found = [
            _block_choices(task, asked, block, rows.take(index), sp=sp)
            for block in distinct_blocks(task.model)
        ]
        kept[index] = np.logical_and.reduce([one.possible for one in found])
        first, same = distinct([one.number for one in found])
        numbers = [
            plans.setdefault(
                tuple((o.name, o.chosen[o.number[row]]) for o in found if o.chosen[o.number[row]]),
                len(plans),
            )
            for row in first.tolist()
        ]
        plan[index] = np.array(numbers, dtype=np.int64)[same]
    found_plans = tuple(dict(some) for some in plans)
    return Planned(
        task=replace(task, operators=found_plans),
        rows=replace(rows, operators=plan).take(kept),
        kept=kept,
    )


def _together(pins: Sequence[OperatorPin]) -> dict[tuple[str, str], tuple[Wanted, ...]]:
    """All that is asked of every operator."""
    asked: dict[tuple[str, str], tuple[Wanted, ...]] = {}
    for pin in pins:
        for key, wanted in pin.wanted.items():
            asked[key] = (*asked.get(key, ()), *wanted)
    return asked


@dataclass(frozen=True, slots=True, eq=False)
class _BlockChoices:
    """A block under many candidates."""

    name: str
    possible: BoolArray
    number: IntArray
    """For every candidate which of ``chosen`` it takes."""
    chosen: tuple[Chosen, ...]


def _block_choices(
    task: Task, asked: _Asked, block: Block, rows: Candidates, *, sp: bool
) -> _BlockChoices:
    pinned = {name for owner, name in asked if owner == block.name}
    every = options(task.trainer, block, pinned, sp=sp)
    masks = _masks(asked, block, every, rows)
    possible = np.ones(len(rows), dtype=np.bool_)
    for mask in masks.values():
        possible &= mask.any(axis=1)
    number = np.zeros(len(rows), dtype=np.int64)
    if all(len(some) == 1 for some in every) or not possible.any():
        return _BlockChoices(block.name, possible, number, ((),))
    index = np.flatnonzero(possible)
    expert = any(op.view == "expert" for op in block.operators)
    columns = [getattr(rows, name)[index] for name in (EXPERT_KEY if expert else DENSE_KEY)]
    columns += [column for mask in masks.values() for column in mask[index].T.astype(np.int64)]
    first, same = distinct(columns)
    s = setting(task, rows.take(index[first]))
    allowed = [masks[op.name][index[first]] if op.name in masks else None for op in block.operators]
    best = cheapest(s, block, every, allowed, sp=sp)
    choices, which = np.unique(best.chosen, axis=0, return_inverse=True)
    number[index] = which.ravel()[same]
    possible[index] &= np.isfinite(best.seconds)[same]
    chosen = tuple(_named(block, every, choice) for choice in choices.tolist())
    return _BlockChoices(block.name, possible, number, chosen)


def _named(block: Block, every: Options, choice: Sequence[int]) -> Chosen:
    """The strategies that are not what the roles give, which stand first."""
    return tuple(
        (op.name, tuple(splits[k].items()))
        for op, splits, k in zip(block.operators, every, choice, strict=True)
        if k
    )


def _masks(asked: _Asked, block: Block, every: Options, rows: Candidates) -> dict[str, BoolArray]:
    """For every pinned operator, which of its options each candidate may take. Shapes: (n, options)."""
    first, same = distinct([getattr(rows, axis) for axis in MESH])
    degrees = degrees_of(rows.take(first))
    return {
        op.name: np.stack(
            [
                np.logical_and.reduce([one.met(split, degrees) for one in wanted])
                for split in splits
            ],
            axis=1,
        )[same]
        for op, splits in zip(block.operators, every, strict=True)
        if (wanted := asked.get((block.name, op.name)))
    }


def degrees_of(rows: Candidates) -> dict[AxisName, IntArray]:
    """Degrees of the axes that cut operators. Shapes: (n,) each."""
    return {axis: rows.degree(axis) for axis in (*MESH, "edp")}
