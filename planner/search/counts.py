"""Numbers of chips that are tried where the fewest are asked for."""

from __future__ import annotations

from collections.abc import Callable

FINE = 16
"""Numbers of chips below the answer that are looked at one by one at the end."""


def doublings(first: int, last: int) -> list[int]:
    """``first``, twice that, …, and ``last``.

    >>> doublings(1, 6)
    [1, 2, 4, 6]
    """
    found = [first << n for n in range(max(1, last // first).bit_length())]
    return sorted({*(n for n in found if n <= last), last})


def narrowed(chips: int, host: int, meets: Callable[[int], bool]) -> tuple[list[int], int, int]:
    """Numbers of chips between half of these, which do not do it, and these, which do.

    Halves of the interval are judged by their upper end until few are left.

    Args:
        chips: the first doubling that does it.
        host: chips of a host; beyond it only whole hosts are looked at.
        meets: whether a number of chips does it.

    Returns:
        What is left below, ascending; the fewest that are known to do it; and how far apart those left are.
    """
    low, unit = chips // 2, host if chips > host else 1
    while (chips - low) // unit > FINE:
        middle = (low + chips) // 2 // unit * unit
        low, chips = (low, middle) if meets(middle) else (middle, chips)
    return list(range(low // unit * unit + unit, chips, unit)), chips, unit
