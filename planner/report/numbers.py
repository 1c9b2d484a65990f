"""Numbers as a report shows them: three significant digits, one unit a column, parts that sum to their total."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.units import GIB, MS, US, three_digits

TOLD = 5e-4
"""Share of a step from which on it is told that other stages might gain it."""


def gib(size: float) -> str:
    """Bytes as GiB with one decimal, without the unit."""
    return f"{size / GIB:,.1f}"


def gib_parts(sizes: Sequence[float], total: float) -> list[str]:
    """Parts of a memory total as GiB, rounded so that they sum to the total as it is shown."""
    shown = round(10 * float(gib(total).replace(",", "")))
    return [f"{tenths / 10:,.1f}" for tenths in apportion(sizes, total, 10 / GIB, shown)]


def percents(parts: Sequence[float], total: float) -> list[str]:
    """Shares of a total, rounded so that they sum to 100."""
    shares = apportion(parts, total, 100 / total if total else 0.0, 100 if total else 0)
    return [
        "<1 %" if share == 0 < part else f"{share} %"
        for share, part in zip(shares, parts, strict=True)
    ]


def apportion(parts: Sequence[float], total: float, scale: float, shown: int) -> list[int]:
    """Parts times ``scale`` as integers that sum to the total as it is shown (largest remainder).

    Parts that do not sum to the total are rounded one by one: a report does not hide that.
    """
    exact = [part * scale for part in parts]
    if not math.isclose(sum(parts), total, rel_tol=1e-6) or min(exact, default=0.0) < 0:
        return [round(value) for value in exact]
    whole = [math.floor(value) for value in exact]
    missing = shown - sum(whole)
    by_remainder = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for index in by_remainder[: max(0, missing)]:
        whole[index] += 1
    return whole


def seconds_parts(parts: Sequence[float], total: float) -> list[str]:
    """Seconds of the parts of a total, in the total's unit.

    Three significant digits, at most one decimal more than the total has; the parts that are shown as coarsely as the
    total are rounded so that all parts sum to it.
    """
    scale, unit = time_unit(total)
    coarse = _decimals(total / scale)
    places = [min(_decimals(part / scale), coarse + 1) for part in parts]
    shown = [round(part / scale, place) for part, place in zip(parts, places, strict=True)]
    large = [i for i, place in enumerate(places) if place <= coarse]
    fine = [i for i, place in enumerate(places) if place > coarse]
    if math.isclose(sum(parts), total, rel_tol=1e-6):
        left = round(total / scale, coarse) - sum(shown[i] for i in fine)
        steps = _nudged([parts[i] / scale for i in large], left, 10**coarse)
        for index, value in zip(large, steps, strict=True):
            shown[index] = value / 10**coarse
    return [f"{value:,.{place}f} {unit}" for value, place in zip(shown, places, strict=True)]


def _nudged(values: Sequence[float], target: float, scale: float) -> list[int]:
    """Values times ``scale`` as integers that sum to the rounded target, each within one of its value."""
    whole = [round(value * scale) for value in values]
    missing = round(target * scale) - sum(whole)
    sign = 1 if missing > 0 else -1
    order = sorted(range(len(whole)), key=lambda i: sign * (whole[i] - values[i] * scale))
    for index in order[: abs(missing)]:
        whole[index] += sign
    return whole


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a time is shown."""
    for scale, unit in ((1.0, "s"), (MS, "ms")):
        if abs(seconds) >= 0.9995 * scale:
            return scale, unit
    return (US, "us") if seconds else (1.0, "s")


def _decimals(value: float) -> int:
    text = three_digits(value)
    return len(text.partition(".")[2]) if value else 0


def slower(step: float, best: float) -> str:
    """How much slower than the best: ``+ 2 %``, ``+12 %``, ``+0.3 %``."""
    percent = 100 * (step / best - 1) if best else 0.0
    if abs(percent) < 0.05:
        return "same"
    sign = "+" if percent > 0 else "-"
    return f"{sign}{abs(percent):.1f} %" if abs(percent) < 0.95 else f"{sign}{abs(percent):2.0f} %"


def dollars(price: float) -> str:
    """Money: two decimals, three significant digits below ten cents."""
    return f"${price:,.2f}" if price >= 0.1 else f"${three_digits(price)}"


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage."""
    return f"{100 * share:.{digits}f} %"


_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def bar(value: float, largest: float, width: int) -> str:
    """A bar, scaled to the largest entry; what is not nothing shows at least a line."""
    eighths = round(8 * width * value / largest) if largest > 0 else 0
    eighths = max(eighths, 1) if value > 0 else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
