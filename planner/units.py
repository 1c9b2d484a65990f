"""Bytes, seconds and FLOPs inside; units with names only at the borders.

Everything in the engine is in bytes, seconds, bytes/s, FLOPs and FLOP/s. This module is where text such as
``'400 Gb/s'`` becomes such a number and where numbers become text again.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
"""Float array; a scalar is the 0-d case."""
IntArray: TypeAlias = npt.NDArray[np.int64]
"""Integer array, one entry a candidate unless said otherwise."""
Counts: TypeAlias = "IntArray | Array"
"""How often something is there: whole numbers, or fractions where many share it."""
BoolArray: TypeAlias = npt.NDArray[np.bool_]
"""Mask over candidates: True keeps."""
Number: TypeAlias = "float | Array | IntArray"
"""Anything a cost function takes: a scalar or an array that broadcasts."""
Json: TypeAlias = Any
"""A value as json or YAML parsers return it, before validation."""

_Kind = TypeVar("_Kind", np.int64, np.float64)

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
US, MS = 1e-6, 1e-3
TERA, PETA = 1e12, 1e15

_BYTES = {
    "b": 1.0,
    "kb": KB,
    "mb": MB,
    "gb": GB,
    "tb": TB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 2.0**40,
}
_BITS = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "tbit": 125e9}
_TIME = {"s": 1.0, "ms": MS, "us": US, "µs": US, "ns": 1e-9}
_FLOPS = {
    "gflops": 1e9,
    "tflops": TERA,
    "pflops": PETA,
    "gflop/s": 1e9,
    "tflop/s": TERA,
    "pflop/s": PETA,
}
_QUANTITY = re.compile(r"^\s*([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]+)\s*$")


def unique(values: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """Distinct rows, or numbers, in order: ``np.unique``, which loads masked arrays unless it returns indices too.

    >>> unique(np.array([2, 1, 2]))
    array([1, 2])
    """
    return np.unique(values, axis=0, return_index=True)[0]


def parse_quantity(text: str, kind: str) -> float:
    """A number with its unit as bytes, bytes/s, seconds or FLOP/s.

    Args:
        text: such as ``'400 Gb/s'``, ``'50 GB/s'``, ``'80 GiB'``, ``'5 us'``, ``'989 TFLOPS'``. A small ``b`` after
            the prefix is bits, a capital ``B`` bytes.
        kind: ``bytes``, ``bandwidth``, ``time`` or ``flops``.

    Raises:
        ValueError: the text is no number with a unit of that kind; the message says which units are.

    >>> parse_quantity("400 Gb/s", "bandwidth") == parse_quantity("50 GB/s", "bandwidth") == 50e9
    True
    """
    match = _QUANTITY.match(text)
    value, unit = (float(match[1].replace("_", "")), match[2]) if match else (0.0, "")
    scale = _scale(unit, kind)
    if scale is None:
        example = {
            "bytes": "80 GiB",
            "bandwidth": "50 GB/s or 400 Gb/s",
            "time": "5 us",
            "flops": "989 TFLOPS",
        }
        raise ValueError(f"'{text}' is not a {kind} quantity; write it like {example[kind]}")
    return value * scale


def _scale(unit: str, kind: str) -> float | None:
    if kind == "bytes":
        return None if unit.endswith("b") else _BYTES.get(unit.lower())
    if kind == "bandwidth":
        stem = unit.removesuffix("/s").removesuffix("ps")
        if stem == unit:
            return None
        if stem.endswith("b"):
            return _BITS.get(stem.lower() + "it")
        return _BITS.get(stem.lower()) or _BYTES.get(stem.lower())
    return (_TIME if kind == "time" else _FLOPS).get(unit.lower())


def show_seconds(seconds: float) -> str:
    """Seconds with three significant digits and a unit: ``18.1 s``, ``412 ms``, ``35.0 us``."""
    for scale, unit in ((1.0, "s"), (MS, "ms"), (US, "us")):
        if abs(seconds) >= 0.9995 * scale:
            return f"{three_digits(seconds / scale)} {unit}"
    return "0 s" if seconds == 0 else f"{three_digits(seconds / US)} us"


def show_bytes(size: float) -> str:
    """Bytes in GiB with one decimal, small ones in MiB or KiB."""
    for scale, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"


def show_count(count: float) -> str:
    """A count the way people say it: ``405.9 B``, ``8.03 B``, ``232 k``."""
    for scale, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(count) >= scale:
            return f"{three_digits(count / scale)}{unit}"
    return f"{count:.0f}"


def three_digits(value: float) -> str:
    """Three significant digits without an exponent; integers above 999 with a thousands separator."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value) * (1 + 5e-4)))))
    return f"{value:,.{digits}f}"
