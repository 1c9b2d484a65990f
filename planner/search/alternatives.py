"""The rows of an answer: the best layouts, the user's own, and why each of them lost."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.prices import Prices
from planner.plan.degrees import Degrees
from planner.plan.schema import Alternative, Term
from planner.search.breakdown import Breakdown, breakdown, degrees_of
from planner.search.engine import SAME, Outcome
from planner.search.trust import noise
from planner.trainers.trainer import Task
from planner.trainers.trust import room
from planner.units import show_bytes, show_seconds


def alternatives(
    task: Task, outcome: Outcome, own: Prices | None = None
) -> tuple[Alternative, ...]:
    """The best layouts, best first, and the user's own: marked where it is one of them, else below them."""
    rows = [outcome.row(row) for row in range(len(outcome.step))]
    winner = breakdown(rows[0], 0)
    most = winner.step * (1 + noise(task))
    mine = None if own is None else _key(own, 0)
    found = [
        _row(
            breakdown(row, 0),
            winner,
            rank=index + 1,
            memory=float(outcome.memory[index]),
            most=most,
            own=_key(row, 0) == mine,
        )
        for index, row in enumerate(rows)
    ]
    if outcome.front:
        found = [_saving(row, found[0]) for row in found]
    if own is None or any(row.own for row in found):
        return tuple(found)
    return (*found, _below(breakdown(own, 0), winner, most))


def _saving(row: Alternative, winner: Alternative) -> Alternative:
    """A row of the front, with the memory that it saves."""
    less = winner.memory - row.memory
    said = f"{show_bytes(less)} less; {row.reason}" if row is not winner else row.reason
    return row.model_copy(update={"reason": said})


def _below(b: Breakdown, winner: Breakdown, most: float) -> Alternative:
    """The user's own layout where it is not one of the best, which may not fit."""
    task = b.prices.at(b.fullest).task
    memory = float(b.memory.total[0, b.fullest])
    last = _row(b, winner, rank=0, memory=memory, most=most, own=True)
    if memory <= room(task):
        return last
    short = f"does not fit: {show_bytes(memory)} of {show_bytes(task.memory_limit)}"
    return last.model_copy(update={"fits": False, "within_noise": False, "reason": short})


def rows_of(found: Sequence[Prices], own: Prices | None = None) -> tuple[Alternative, ...]:
    """Layouts on pools as rows of an answer, best first, and the user's own as :func:`alternatives` has it."""
    each = [breakdown(row, 0) for row in found]
    most = each[0].step * (1 + noise(each[0].prices.task))
    mine = None if own is None else seated(own)
    rows = [
        _row(
            b,
            each[0],
            rank=index + 1,
            memory=float(b.memory.total[0, b.fullest]),
            most=most,
            own=seated(found[index]) == mine,
        )
        for index, b in enumerate(each)
    ]
    places = list(found)
    if own is not None and not any(row.own for row in rows):
        rows.append(_below(breakdown(own, 0), each[0], most))
        places.append(own)
    return tuple(
        row.model_copy(update={"degrees": seated(place)})
        for row, place in zip(rows, places, strict=True)
    )


def seated(p: Prices) -> Degrees:
    """A layout on pools, with the pool of every stage where one trains alone."""
    degrees = degrees_of(p)
    if p.mix is not None:
        return degrees
    return degrees.model_copy(update={"pools": (p.task.cluster.name,) * degrees.pp})


def _key(p: Prices, row: int) -> tuple[int, ...]:
    """What makes layouts one row of the answer."""
    return tuple(int(getattr(p.rows, name)[row]) for name in SAME)


def _row(
    b: Breakdown, winner: Breakdown, *, rank: int, memory: float, most: float, own: bool
) -> Alternative:
    difference = _difference(b, winner)
    return Alternative(
        rank=rank,
        degrees=degrees_of(b.prices),
        step=b.step,
        memory=memory,
        fits=True,
        own=own,
        within_noise=rank != 1 and b.step <= most,
        reason=_reason(b, winner, difference) if rank != 1 else "",
        difference=difference if rank != 1 else (),
    )


def _difference(b: Breakdown, winner: Breakdown) -> tuple[Term, ...]:
    mine = {term.name: term for term in b.terms}
    theirs = {term.name: term for term in winner.terms}
    names = dict.fromkeys([*theirs, *mine])
    return tuple(
        Term(
            name=name,
            label=(mine.get(name) or theirs[name]).label,
            value=_value(mine, name) - _value(theirs, name),
        )
        for name in names
    )


def _value(terms: dict[str, Term], name: str) -> float:
    return terms[name].value if name in terms else 0.0


def _reason(b: Breakdown, winner: Breakdown, difference: tuple[Term, ...]) -> str:
    """One clause: the term that grew most, and what it was; equal steps lose by the order of ties."""
    if b.step <= winner.step * (1 + 1e-9):
        return "as fast; the winner has fewer axes, or smaller degrees"
    worst = max(difference, key=lambda term: term.value)
    if worst.value <= 0:
        return "a little of everything"
    before = next((t.value for t in winner.terms if t.name == worst.name), 0.0)
    now = before + worst.value
    part = _launches(b, winner, worst)
    if before < 0.05 * now:
        return f"{worst.label} {show_seconds(now)}{part}"
    if show_seconds(now) == show_seconds(before):
        return f"{worst.label} {show_seconds(worst.value)} more{part}"
    return f"{worst.label} {show_seconds(now)}, not {show_seconds(before)}{part}"


def _launches(b: Breakdown, winner: Breakdown, worst: Term) -> str:
    """That compute grew by launches, where most of it did."""
    more = b.launches - winner.launches if worst.name == "step.compute" else 0.0
    return f" (launches +{show_seconds(more)})" if more > 0.5 * worst.value else ""
