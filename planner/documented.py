"""Fields that are described in a JSON Schema by the docstrings below them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from itertools import pairwise
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Documented(BaseModel):
    """Base of models whose sources are read for descriptions, when a schema is asked for and not at every start."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in descriptions(cls).items():
            properties[cls.model_fields[name].alias or name]["description"] = text
        return schema


WORDS = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "too_short": "a list of at least one entry",
}


def wanted(kind: str, item: Mapping[str, Any]) -> str:
    """What a value should have been that a model refuses, in plain words: ``at least 1``, ``a whole number``.

    Args:
        kind: the type of pydantic's error.
        item: the error.
    """
    if kind == "greater_than_equal":
        return f"at least {item['ctx']['ge']:g}"
    if kind == "greater_than":
        return f"more than {item['ctx']['gt']:g}"
    if kind == "less_than_equal":
        return f"at most {item['ctx']['le']:g}"
    if kind == "string_pattern_mismatch":
        return f"text of the form {item['ctx']['pattern']}"
    plain = str(item["msg"]).removeprefix("Input should be ")
    return next((word for start, word in WORDS.items() if kind.startswith(start)), plain)


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a model's fields say, those of its bases included."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            (tree,) = ast.parse(dedent(inspect.getsource(each))).body
            assert isinstance(tree, ast.ClassDef)
            found |= dict(_documented(tree.body, model))
    return found


def _documented(body: list[ast.stmt], model: type[BaseModel]) -> list[tuple[str, str]]:
    return [
        (field.target.id, inspect.cleandoc(text.value.value))
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and field.target.id in model.model_fields
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]
