"""A plan read back from its file; whatever is wrong with the file is said with its place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from planner.documented import wanted
from planner.errors import Fault, PlannerError, listed, nearest
from planner.plan.agreement import require_agreement, require_best_rows
from planner.plan.findings import Comparison, Largest, Sizing
from planner.plan.schema import SCHEMA_VERSION, Plan

Kept = TypeVar("Kept", bound=BaseModel)
MOST_FAULTS = 8
"""Faults shown of one file; a file with more is not a plan with typing errors in it."""


def read_plan(path: Path | str) -> Plan:
    """The plan in a file, whose parts agree.

    Raises:
        PlannerError: the file cannot be read (F01), was made by another version (V02), is no JSON (V03), does not
            have the shape of a plan or contradicts itself (V04), or says that there is no plan (V05).
    """
    plan = parsed_plan(path)
    require_agreement(plan, str(path), ends=False)
    return plan


def parsed_plan(path: Path | str) -> Plan:
    """The plan in a file for its question and its layout, whatever it says of their price.

    Raises:
        PlannerError: as :func:`read_plan`, but for parts that disagree.
    """
    path = Path(path)
    data = _parsed(_text(path), str(path))
    _check_version(data, str(path))
    if "degrees" not in data and "closest" in data:
        what = f"{path} is the record of a search that found no plan."
        raise PlannerError.of("V05", what, "Make one that fits: shardwright plan")
    return _validated(Plan, data, path)


def read_kept(path: Path | str) -> Plan | Comparison | Sizing | Largest:
    """What ``plan``, ``price``, ``compare`` or ``size`` kept in a JSON file.

    Raises:
        PlannerError: as :func:`read_plan`.
    """
    data = _parsed(_text(Path(path)), str(path))
    if "schema_version" in data or not {"rows", "curve"} & data.keys():
        return read_plan(path)
    kind: type[Comparison | Sizing | Largest]
    kind = Comparison if "rows" in data else Largest if "what" in data else Sizing
    found = _validated(kind, data, Path(path))
    if isinstance(found, Comparison):
        require_best_rows(found, str(path))
    return found


def _validated(kind: type[Kept], data: dict[str, Any], path: Path) -> Kept:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        faults = [
            _fault(kind, detail, str(path))
            for detail in error.errors(include_url=False)
            if detail["type"] != "too_short" or not detail["input"]  # else its entries are wrong
        ]
    more = len(faults) - MOST_FAULTS
    if more > 0:
        faults = [
            *faults[:MOST_FAULTS],
            Fault("V04", f"and {more} more like these.", where=str(path)),
        ]
    raise PlannerError(*faults)


def is_plan(path: Path) -> bool:
    """Whether a file is a plan, or the record that there is none, of whatever version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "schema_version" in data


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlannerError.of(
            "V03", f"is not text: byte {error.start} is not UTF-8.", where=str(path)
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no such path"
        raise PlannerError.of("F01", f"cannot read plan {str(path)!r}: {why}.") from None


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}"
        raise PlannerError.of("V03", f"is not JSON: {error.msg}.", where=place) from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise PlannerError.of(
            "V03", f"is not JSON that a plan is made of: {why}.", where=where
        ) from None
    if not isinstance(data, dict):
        what = f"holds a JSON {_kind(data)}; a plan is an object."
        raise PlannerError.of("V04", what, where=where)
    return data


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return result


def _check_version(data: dict[str, Any], where: str) -> None:
    version = data.get("schema_version")
    if version == SCHEMA_VERSION:
        return
    if "schema_version" not in data:
        what = "has no key 'schema_version', so it is not a plan."
        raise PlannerError.of(
            "V04", what, "Plans are made by: shardwright plan --out plan.json", where=where
        )
    made_by = data.get("made_by")
    maker = f" by {made_by}" if isinstance(made_by, str) and made_by else ""
    raise PlannerError.of(
        "V02",
        f"was made{maker} with plan schema {version!r}; this shardwright reads schema {SCHEMA_VERSION!r}.",
        "A plan made by a newer shardwright needs the newer one; or make the plan again.",
        where=where,
    )


def _fault(kind: type[BaseModel], detail: ErrorDetails, where: str) -> Fault:
    path = key_path(detail["loc"])
    if detail["type"] == "extra_forbidden":
        close = nearest(str(detail["loc"][-1]), _keys_at(kind, detail["loc"][:-1]))
        fix = (f"Nearest: {listed(close)}.",) if close else ()
        return Fault("V04", f"unknown key '{path}'.", fix, where)
    if detail["type"] == "missing":
        return Fault("V04", f"key '{path}' is missing.", (), where)
    right = wanted(detail["type"], detail)
    return Fault("V04", f"'{path}' is {_shown(detail['input'])}; it should be {right}.", (), where)


def key_path(loc: Iterable[int | str]) -> str:
    """Where a value stands in a plan, as a person writes it: ``stages[2].memory[0].value``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".")


def _keys_at(kind: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Keys that the schema knows at a place."""
    model = kind
    for part in loc:
        field = model.model_fields.get(str(part))
        inner: Any = field.annotation if field else model
        while get_args(inner):
            inner = get_args(inner)[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return list(model.model_fields)


def _kind(value: object) -> str:
    names = {
        "dict": "object",
        "str": "string",
        "int": "number",
        "float": "number",
        "NoneType": "null",
    }
    kind = type(value).__name__
    return names.get(kind, kind)


def _shown(value: object) -> str:
    if isinstance(value, (list, dict)):
        return f"a JSON {_kind(value)}"
    text = repr(value)
    return text if len(text) <= 40 else text[:36] + " …'"
