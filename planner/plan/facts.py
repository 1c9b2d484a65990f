"""Whatever stands in a plan, by its place in the file: ``tokens_per_second``, ``proof.gap``, ``stages.0.forward``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from planner.documented import descriptions
from planner.plan.derivation import Derivation, Quantity, Unit
from planner.plan.diff import folded
from planner.plan.schema import Term

SHORT = ("", "degrees.", "proof.", "recipe.", "cluster.", "model.", "trust.", "figures.")
"""Where a place may stand without its beginning."""
UNITS: tuple[tuple[str, Unit], ...] = (
    ("bytes/s", "B/s"),
    ("flop/s", "FLOP/s"),
    ("dollars", "$"),
    ("tokens a second", "tokens/s"),
    ("seconds", "s"),
    ("bytes", "B"),
    ("flops", "FLOP"),
)
"""Words in the first clause of a field's description, and the unit that they say; the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of the plan."""

    place: str
    value: float | int | bool | str | None
    unit: Unit
    meaning: str
    """What the schema says of it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A value, or all values below a place."""

    id: str
    rows: tuple[Fact, ...]


def facts(part: BaseModel, asked: str) -> Facts | None:
    """What stands at a place, whose beginning may be left out; None where there is no such place."""
    word = re.sub(r"\[(\d+)\]", r".\1", asked)
    for start in SHORT if word else ():
        rows = tuple(_below(part, start + word, "", "", ""))
        if rows:
            return Facts(start + word, rows)
    return None


def _below(at: Any, rest: str, place: str, meaning: str, unit: Unit) -> Iterator[Fact]:  # noqa: ANN401
    """All values below a place along a path; none where the path leads nowhere."""
    inside = _inside(at, meaning, unit)
    if not inside:
        if not rest:
            yield Fact(place, "none" if inside is not None else at, unit, meaning)
        return
    if not rest and isinstance(at, tuple) and all(isinstance(value, int) for value in at):
        yield Fact(place, folded(at), "", meaning)
        return
    for key, (value, words, its) in inside.items():
        if not rest or rest == key or rest.startswith(f"{key}."):
            left = rest[len(key) + 1 :]
            yield from _below(value, left, f"{place}.{key}" if place else key, words, its)


def _inside(at: Any, meaning: str, unit: Unit) -> dict[str, tuple[Any, str, Unit]] | None:  # noqa: ANN401
    """What a part, a list or a mapping holds, with meaning and unit; None for a value."""
    if isinstance(at, BaseModel):
        said = _said(type(at))
        return {
            name: (getattr(at, name), said.get(name, ""), _unit(at, name, said.get(name, "")))
            for name in type(at).model_fields
        }
    if isinstance(at, tuple):
        return {str(index): (value, meaning, unit) for index, value in enumerate(at)}
    if isinstance(at, dict):
        return {str(key): (value, meaning, unit) for key, value in at.items()}
    return None


@cache
def _said(model: type[BaseModel]) -> dict[str, str]:
    return {name: text.replace("\n", " ") for name, text in descriptions(model).items()}


def _unit(at: BaseModel, name: str, words: str) -> Unit:
    """The unit of a field: that of the sum or quantity that it belongs to, or what its description says."""
    if isinstance(at, Term) and name in ("value", "hidden"):
        return "B" if at.name.startswith("memory.") else "s"
    if isinstance(at, Quantity | Derivation):
        return at.unit if name == "value" else ""
    first = re.split(r"[.;,]", words.lower(), maxsplit=1)[0]
    return next((unit for word, unit in UNITS if re.search(rf"\b{word}", first)), "")
