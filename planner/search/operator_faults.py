"""Why pins on operators cannot be had: what was asked, and the nearest that is possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from planner.candidates import Candidates
from planner.errors import Fault, listed
from planner.graph.operator import FOLLOWS, PER_SEQUENCE, Block
from planner.graph.placement import Split
from planner.search.operator_pins import OperatorPin, Wanted
from planner.search.role_choices import options
from planner.search.semi_automatic import degrees_of, plan_operators
from planner.trainers.registry import TRAINERS
from planner.trainers.trainer import Task, Trainer
from planner.trainers.wording import closest, divisors


def impossible(task: Task, pins: Sequence[OperatorPin]) -> tuple[Fault, ...]:
    """Pins that ask of an operator what no degrees of the trainer's axes can give it; one fault a pin."""
    return tuple(fault for pin in pins if (fault := next(_never(task, pin), None)) is not None)


def _never(task: Task, pin: OperatorPin) -> Iterator[Fault]:
    for (owner, name), wanted in pin.wanted.items():
        block = next(block for block in task.model.all_blocks() if block.name == owner)
        for one in wanted:
            if not _able(task.trainer, block, name, one):
                yield _not_by_this_trainer(task, pin, block, name, one)
            dim = one.dims[0]
            fixed = PER_SEQUENCE | task.trainer.uneven | set(FOLLOWS)
            size = int(block.sizes[dim])
            if (
                one.parts is not None
                and one.dims == (dim,)
                and dim not in fixed
                and size % one.parts
            ):
                near = listed([f"{n:,}" for n in closest(divisors(size), one.parts, 4)])
                yield Fault(
                    "N02",
                    f"pin '{pin.text}': {dim} of {name} is {size:,}, which has no {one.parts:,} equal parts.",
                    (f"Nearest: {near}.",),
                )


def _able(trainer: Trainer, block: Block, name: str, one: Wanted) -> bool:
    """Whether a trainer can cut an operator so under some degrees."""
    cuts = [
        {axis for axis, dim in split.items() if dim in one.dims}
        for split in strategies_of(trainer, block, name)
    ]
    if one.parts is not None:
        return one.parts == 1 or any(cuts)
    return any(set(one.axes or ()) <= cut for cut in cuts)


def _not_by_this_trainer(
    task: Task, pin: OperatorPin, block: Block, name: str, one: Wanted
) -> Fault:
    what = f"cuts {' × '.join(one.dims)} of {name}"
    what += f" by {listed(one.axes, 'and')}" if one.axes else ""
    pairs = dict.fromkeys(
        f"{dim} by {axis}"
        for split in strategies_of(task.trainer, block, name)
        for axis, dim in split.items()
    )
    others = [t.name for t in TRAINERS if t != task.trainer and _able(t, block, name, one)]
    able = (f"Trainers that can: {listed(others, 'and')}.",) if others else ()
    return Fault(
        "N02",
        f"pin '{pin.text}': {task.trainer.name} never {what}.",
        (f"It cuts {listed(list(pairs), 'and')}.", *able),
    )


def strategies_of(trainer: Trainer, block: Block, name: str) -> list[Split]:
    """Every strategy that a trainer can give an operator, with or without sequence parallelism."""
    number = next(n for n, op in enumerate(block.operators) if op.name == name)
    found = [
        split
        for sp in trainer.sequence_parallel
        for split in options(trainer, block, {name}, sp=sp)[number]
    ]
    return [split for n, split in enumerate(found) if split not in found[:n]]


def unsatisfied(task: Task, pins: Sequence[OperatorPin], rows: Candidates) -> tuple[Fault, ...]:
    """Why pins leave none of some candidates: pins that none can satisfy, else pairs that exclude each other."""
    alone = [pin for pin in pins if not plan_operators(task, [pin], rows).kept.any()]
    if alone:
        return tuple(_nowhere(task, pin, rows) for pin in alone)
    pairs: list[tuple[OperatorPin, ...]] = [
        pair for pair in combinations(pins, 2) if not plan_operators(task, pair, rows).kept.any()
    ]
    return tuple(
        Fault(
            "N03",
            f"pins {listed([repr(pin.text) for pin in some], 'and')} exclude each other here.",
            (
                *_beside(task, some, rows),
                f"No layout that {task.trainer.name} can run satisfies them together: drop one.",
            ),
        )
        for some in pairs or [tuple(pins)]
    )


def _beside(task: Task, some: Sequence[OperatorPin], rows: Candidates) -> Iterator[str]:
    """What the last of some pins could be beside the others."""
    *others, last = some
    left = rows.take(plan_operators(task, others, rows).kept)
    if others and len(left):
        near = _nowhere(task, last, left).fix[0]
        yield f"Beside {listed([repr(pin.text) for pin in others], 'and')}: {near}"


def _nowhere(task: Task, pin: OperatorPin, rows: Candidates) -> Fault:
    """What a pin asks that no candidate has, and what they have."""
    for (owner, name), wanted in pin.wanted.items():
        for one in wanted:
            alone = replace(pin, wanted={(owner, name): (one,)}, layers={owner: None})
            if plan_operators(task, [alone], rows).kept.any():
                continue
            near = listed(
                [f"{n:,}" for n in closest(_parts(task, owner, name, one, rows), one.parts or 1, 6)]
            )
            return Fault(
                "N02",
                f"pin '{pin.text}': no layout here has {name} with {one}.",
                (
                    f"{' × '.join(one.dims)} of {name} can be cut into {near} part{'s' * (near != '1')}.",
                ),
            )
    return Fault(
        "N02",
        f"pin '{pin.text}': each part of it is possible here, but not all of it together.",
        ("Pin fewer dims, or fewer operators: what is left out follows.",),
    )


def _parts(task: Task, owner: str, name: str, one: Wanted, rows: Candidates) -> list[int]:
    """Into how many parts candidates can cut some dims of an operator."""
    block = next(block for block in task.model.all_blocks() if block.name == owner)
    degrees, ones = degrees_of(rows), np.ones_like(rows.dp)
    found: set[int] = set()
    for split in strategies_of(task.trainer, block, name):
        cutting = [degrees[axis] for axis, dim in split.items() if dim in one.dims]
        found |= set(np.prod([ones, *cutting], axis=0).tolist())
    return sorted(found)
