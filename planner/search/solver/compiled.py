"""Loops compiled by numba where it is installed; the same code runs as plain Python, slowly, where it is not.

Import this module, and those that decorate with `compiled`, only where a large problem is being solved: the import of
numba costs half a second.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

HAVE_NUMBA = importlib.util.find_spec("numba") is not None
"""Whether loops are compiled."""


def compiled(function: Function) -> Function:
    """The function compiled on first use and cached on disk; itself without numba."""
    if not HAVE_NUMBA:
        return function
    import numba  # type: ignore[import-untyped,import-not-found,unused-ignore]

    fast = {"nsz", "nnan", "contract"}
    return cast(Function, numba.njit(cache=True, fastmath=fast, nogil=True)(function))
