"""Hashes of what a plan was made from: they change when the numbers do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

WORDS = frozenset({"source", "sources", "measured", "note", "assumed"})
"""Fields of descriptions that say where numbers come from, and change none."""


def fingerprint(data: object) -> str:
    """Sixteen digits that change when the data do; not when what is said of their sources does."""
    text = json.dumps(_without_words(data), sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_words(data: object) -> object:
    if isinstance(data, Mapping):
        return {key: _without_words(value) for key, value in data.items() if key not in WORDS}
    return [_without_words(each) for each in data] if isinstance(data, list | tuple) else data


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset | set) else str(value)
