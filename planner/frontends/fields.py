"""Fields of description files: numbers with units, and what to say when one is wrong.

A key names its unit (``memory_gib: 80``) and any such number may be text with a unit of its own instead
(``memory_gib: 81920 MiB``). A bare number outside any plausible range is taken for a slip of unit, and the
message names the unit that it looks like.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from planner.documented import Documented, wanted
from planner.errors import Fault, PlannerError, listed
from planner.units import GB, GIB, MIB, TERA, US, Json, parse_quantity

if TYPE_CHECKING:
    from planner.frontends.yaml_source import KeyPath, YamlSource

UNIT_SUFFIXES = ("_gib", "_mib", "_gbps", "_tflops", "_us")


def typed(value: Json) -> Json:
    """An override as typed on a command line: JSON where it is JSON, text otherwise."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


class Description(Documented):
    """What every mapping in a description file has in common: no unknown keys, nothing converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit that a key's bare number is in, and what such a number plausibly is."""

    name: str
    """The unit as ``parse_quantity`` reads it."""
    kind: str
    """``bytes``, ``bandwidth``, ``time`` or ``flops``."""
    scale: float
    """Bytes, bytes/s, seconds or FLOP/s in one of it."""
    low: float
    """Smallest plausible number, in this unit."""
    high: float
    """Largest plausible number, in this unit."""
    meaning: str = ""
    """What the number counts, when the unit does not say it all."""


_OTHERS = {
    "bytes": ("MiB", "TiB", "KiB", "B"),
    "bandwidth": ("Gb/s", "TB/s", "MB/s", "Tb/s"),
    "time": ("s", "ms", "ns"),
    "flops": ("PFLOPS", "GFLOPS"),
}


def _read(unit: Unit, value: Json) -> float:
    if isinstance(value, str):
        try:
            number = parse_quantity(value, unit.kind)
        except ValueError as error:
            raise slip("U02", f" '{value}'", " cannot be read", str(error)) from None
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise slip("U02", "", f" must be a number of {unit.name}, or text with its unit")
    else:
        number = as_float(value) * unit.scale
    if not 0 < number < math.inf:
        bound = f"at most {unit.high:g} {unit.name}" if number > 0 else "more than zero"
        raise slip("U02", f" {value}", f" must be {bound}")
    if not isinstance(value, str) and not unit.low <= value <= unit.high:
        raise _unit_slip(unit, float(value))
    return number


def _unit_slip(unit: Unit, value: float) -> PydanticCustomError:
    what = f"; the field is {unit.name}{unit.meaning}"
    for other in _OTHERS[unit.kind]:
        meant = value * parse_quantity(f"1 {other}", unit.kind) / unit.scale
        if unit.low <= meant <= unit.high:
            fix = f"Write {meant:g}, or '{value:g} {other}' with its unit."
            return slip("U01", f" {value:g}", f" looks like {other}{what}", fix)
    fix = f"Plausible is {unit.low:g} to {unit.high:g}; text such as '{value:g} {unit.name}' is taken as it is."
    return slip("U01", f" {value:g}", f" cannot be right{what}", fix)


def _fraction(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise slip("U02", "", " must be a fraction between 0 and 1")
    number = as_float(value)
    if 1.5 < number <= 100:
        fix = f"Write {number / 100:g}."
        raise slip("U01", f" {value}", " looks like per cent; the field is a fraction", fix)
    if not 0 < number <= 1.5:
        raise slip("U02", f" {value}", " must be a fraction between 0 and 1")
    return number


def as_float(value: float) -> float:
    """An int or float of a file as float; infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def slip(code: str, value: str, rest: str, *fix: str) -> PydanticCustomError:
    """An error of a validator, to become the sentence KEY VALUE of level 'node' REST."""
    return PydanticCustomError(code, "{rest}", {"value": value, "rest": rest, "fix": fix})


def _number(unit: Unit) -> BeforeValidator:
    return BeforeValidator(partial(_read, unit))


_QUANTITY = WithJsonSchema(
    {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
)
_SHARE = WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5})

Gibibytes: TypeAlias = Annotated[float, _number(Unit("GiB", "bytes", GIB, 0.5, 16384)), _QUANTITY]
"""Bytes; a bare number is GiB."""
Mebibytes: TypeAlias = Annotated[float, _number(Unit("MiB", "bytes", MIB, 1e-3, 4096)), _QUANTITY]
"""Bytes; a bare number is MiB."""
MemoryRate: TypeAlias = Annotated[float, _number(Unit("GB/s", "bandwidth", GB, 50, 4e4)), _QUANTITY]
"""Bytes/s of a chip's own memory; a bare number is GB/s."""
HostRate: TypeAlias = Annotated[float, _number(Unit("GB/s", "bandwidth", GB, 1, 4e3)), _QUANTITY]
"""Bytes/s of a host's memory, one chip's share; a bare number is GB/s."""
LinkRate: TypeAlias = Annotated[
    float,
    _number(Unit("GB/s", "bandwidth", GB, 0.01, 2000, " for one chip and direction")),
    _QUANTITY,
]
"""Bytes/s of a link; a bare number is GB/s."""
Microseconds: TypeAlias = Annotated[float, _number(Unit("us", "time", US, 1e-3, 2e4)), _QUANTITY]
"""Seconds; a bare number is microseconds."""
Teraflops: TypeAlias = Annotated[float, _number(Unit("TFLOPS", "flops", TERA, 1, 5e4)), _QUANTITY]
"""FLOP/s; a bare number is TFLOPS."""
Fraction: TypeAlias = Annotated[float, BeforeValidator(_fraction), _SHARE]
"""A share; in-network reduction may pass 1."""

Described = TypeVar("Described", bound=BaseModel)


def checked(
    source: YamlSource,
    model: type[Described],
    noun: str,
    *,
    data: Json = None,
    at: KeyPath = (),
) -> Described:
    """The data of a source, or of one place in it, as a model.

    Args:
        source: where the data stands, for the positions in messages.
        model: what it must be.
        noun: what a person calls the whole, such as ``chip``.
        data: the data, where it is not simply what the source holds.
        at: the place of the data in the source.

    Raises:
        PlannerError: every fault that it has, in the order of the file.
    """
    try:
        return model.model_validate(source.data if data is None else data)
    except ValidationError as error:
        whole = source.data if data is None else data
        items = error.errors(include_url=False)
        misspelt = {
            (*item["loc"][:-1], *_meant(model, item["loc"]))
            for item in items
            if item["type"] == "extra_forbidden"
        }
        faults = [
            _fault(source, model, noun, whole, at, item)
            for item in items
            if item["type"] != "missing" or item["loc"] not in misspelt
        ]
        raise PlannerError(*faults) from None


def _meant(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The key that an unknown one is like; none where none is."""
    valid = _keys(model, path[:-1])
    return get_close_matches(str(path[-1]).lower(), valid, n=1, cutoff=0.5)


def _fault(
    source: YamlSource,
    model: type[BaseModel],
    noun: str,
    whole: Json,
    at: KeyPath,
    item: Mapping[str, Any],
) -> Fault:
    path, kind = tuple(item["loc"]), item["type"]
    key = str(path[-1]) if path else noun
    inside = _inside(whole, path[:-1]) or noun
    place = (*at, *path)
    if kind == "extra_forbidden":
        valid = _keys(model, path[:-1])
        close = _meant(model, path)
        hint = f" Possible: {listed(valid)}." if valid else ""
        hint = f" Did you mean '{close[0]}'?" if close else hint
        hint = getattr(model, "MEANT", {}).get(key, hint) if len(path) == 1 else hint
        return Fault("Y01", f"unknown key '{key}' in {inside}.{hint}", where=source.where(place))
    if kind == "missing":
        return Fault("Y04", f"{inside} has no '{key}'.", where=source.where(place))
    where = source.where(place, value=True)
    if kind in ("U01", "U02"):
        context = item["ctx"]
        what = f"{_subject(path, noun)}{context['value']}{_of(inside, path)}{context['rest']}."
        return Fault(kind, what, tuple(context["fix"]), where)
    given = f" {item['input']!r}" if kind == "literal_error" and path else ""
    what = f"{_subject(path, noun)}{given}{_of(inside, path)} must be {wanted(kind, item)}."
    return Fault("U02", what, where=where)


def _of(inside: str, path: KeyPath) -> str:
    return f" of {inside}" if len(path) > 1 else ""


def _subject(path: KeyPath, noun: str) -> str:
    """The key of a value without its unit: ``bandwidth``, ``peak bf16``."""
    words = [str(part) for part in path if isinstance(part, str)][-1:] or [noun]
    for suffix in UNIT_SUFFIXES:
        words = [word.removesuffix(suffix) for word in words]
    return words[0]


def _inside(whole: Json, path: KeyPath) -> str:
    """What a person calls the mapping at a place: ``level 'node'``, ``peak_tflops``; empty for the whole."""
    if not path:
        return ""
    if isinstance(path[-1], str):
        return path[-1]
    node = whole
    for part in path:
        node = node[part]
    singular = str(path[-2]).removesuffix("s") if len(path) > 1 else "item"
    name = node.get("name") if isinstance(node, dict) else None
    return f"{singular} '{name}'" if isinstance(name, str) else f"{singular} {int(path[-1]) + 1}"


def _keys(model: type[BaseModel], path: Iterable[str | int]) -> list[str]:
    """The keys that a mapping inside a model may have; none where any will do."""
    for part in path:
        if isinstance(part, int):
            continue
        found = part in model.model_fields and _model_in(model.model_fields[part].annotation)
        if not found:
            return []
        model = found
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - any annotation
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)
