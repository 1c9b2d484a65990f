"""What-ifs over several values: ``network.bandwidth=0.25x..4x``, ``chip.memory=80 GiB,141 GiB``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import PlannerError

POINTS = 5
"""Values of a range without ``/N``."""
MOST_POINTS = 1000
_VALUE = re.compile(r"\s*\$?\s*(\d{1,12}(?:\.\d{0,9})?|\.\d{1,9})\s*([A-Za-zµ/×]*)\s*")
_RANGE = re.compile(r"(.+?)\.\.([^/]+?(?:/s)?)(?:/(\d{1,4}))?\s*")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One number over one or more values."""

    number: str
    """Its id; empty where several numbers change together."""
    texts: tuple[str, ...]
    """What to ask for, one after another."""
    values: tuple[float, ...] = ()
    """The values of a range, rising, in ``unit``; none where it is no range."""
    unit: str = ""

    def at(self, value: float) -> str:
        """What to ask for at a value of the range."""
        return f"{self.number}={value:.6g}{self.unit}"


def expanded(text: str) -> WhatIf:
    """A what-if with all its values. Values of a range have equal ratios.

    Raises:
        PlannerError: a range that is none (C05).

    >>> expanded("node.bandwidth=1x..4x/3").texts
    ('node.bandwidth=1x', 'node.bandwidth=2x', 'node.bandwidth=4x')
    """
    number, equals, values = (part.strip() for part in text.partition("="))
    if " and " in text or not equals:
        return WhatIf("", (text.strip(),))
    if ".." in values:
        return _range(text, number, values)
    return WhatIf(number, tuple(f"{number}={value.strip()}" for value in values.split(",")))


def _range(text: str, number: str, values: str) -> WhatIf:
    match = _RANGE.fullmatch(values)
    ends = [_VALUE.fullmatch(end) for end in match.groups()[:2]] if match else []
    first, last = ends if len(ends) == 2 else (None, None)
    count = int(match[3] or POINTS) if match else 0
    if match is None or first is None or last is None or not 2 <= count <= MOST_POINTS:
        raise PlannerError.of(
            "C05",
            f"--what-if '{text}' is no range of values.",
            "Write it like network.bandwidth=0.25x..4x, with /9 behind it for nine values",
        )
    low, high = float(first[1]), float(last[1])
    unit = last[2] or first[2]
    if not 0 < low < high or (first[2] and first[2] != unit):
        raise PlannerError.of(
            "C05", f"--what-if '{text}' must rise from more than nothing, in one unit."
        )
    ratio = (high / low) ** (1.0 / (count - 1))
    steps = tuple(low * ratio**index for index in range(count))
    gap = unit if unit in ("x", "×") else f" {unit}" if unit else ""
    found = WhatIf(number, (), steps, gap)
    return WhatIf(number, tuple(found.at(value) for value in steps), steps, gap)


def counts(text: str) -> tuple[int, ...]:
    """Numbers of chips: ``64,128,256``, or a range whose numbers double.

    Raises:
        PlannerError: what is no number of chips (C02).

    >>> counts("64..512"), counts("8,12")
    ((64, 128, 256, 512), (8, 12))
    """
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = (word.strip() for word in part.partition(".."))
        ends = [first, last] if dots else [first]
        if not all(
            end.isascii() and end.isdecimal() and int(end[:9]) > 0 and len(end) < 9 for end in ends
        ):
            raise PlannerError.of(
                "C02",
                f"--chips {text!r} holds no numbers of chips.",
                "Write them like 64,128 or 64..1024",
            )
        low, high = int(first), int(ends[-1])
        if high < low:
            raise PlannerError.of("C02", f"--chips {text!r} must rise.")
        while low <= high:
            found.append(low)
            low *= 2
    return tuple(dict.fromkeys(found))
