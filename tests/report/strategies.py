"""Plans made at random from the schema itself: every field, any value that its type allows."""

from __future__ import annotations

import types
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(10**15), 10**15),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(st.characters(codec="utf-8"), max_size=12),
    types.NoneType: st.none(),
}


def from_schema(kind: Any) -> st.SearchStrategy[Any]:
    if kind in LEAVES:
        return LEAVES[kind]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return st.builds(kind, **{n: from_schema(f.annotation) for n, f in kind.model_fields.items()})
    args = get_args(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(args)
    if get_origin(kind) is dict:
        return st.dictionaries(from_schema(args[0]), from_schema(args[1]), max_size=2)
    if get_origin(kind) is tuple:
        return st.lists(from_schema(args[0]), max_size=2).map(tuple)
    return st.one_of([from_schema(arg) for arg in args])
