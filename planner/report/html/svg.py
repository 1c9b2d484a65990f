"""Elements of drawings as text, and round numbers for their scales."""

from __future__ import annotations

import math
from html import escape

from markupsafe import Markup

NARROW = frozenset("iljtfrI.,:;'|!()[]· ")
"""Letters that take half the width of the others."""


def element(name: str, *children: str, **attributes: object) -> Markup:
    """One element; ``_`` in the names of attributes stands for ``-``, a trailing one is dropped.

    Text among the children is escaped unless it is markup already; attributes that are None are left out.

    >>> print(element("rect", x=1.25, class_="tp", stroke_width=2))
    <rect x="1.2" class="tp" stroke-width="2"/>
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(children)
    return Markup(f"<{name}{given}>{inside}</{name}>" if children else f"<{name}{given}/>")


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else escape(str(value))


def number(value: float) -> str:
    """A coordinate: tenths of a pixel.

    >>> number(3.04), number(-0.04)
    ('3', '0')
    """
    return f"{round(value, 1) + 0.0:g}" if abs(value) < 1e5 else f"{value:.0f}"


def text(x: float, y: float, words: str, class_: str = "", anchor: str | None = None) -> Markup:
    """Words at a place; ``anchor`` is ``middle`` or ``end``, the start where None."""
    return element("text", words, x=x, y=y, class_=class_ or None, text_anchor=anchor)


def drawing(name: str, width: float, height: float, title: str, *children: str) -> Markup:
    """A whole drawing with a title for those who cannot see it."""
    head = element("title", title)
    return element(
        "svg", head, *children, id=name, viewBox=f"0 0 {number(width)} {number(height)}", role="img",
        aria_label=title, style=f"min-width:{min(width, 640):.0f}px",
    )  # fmt: skip


def width_of(words: str, size: float = 12.0) -> float:
    """About how many pixels words take in a sans serif of that size.

    >>> width_of("mm") > width_of("ii")
    True
    """
    return sum(0.3 if letter in NARROW else 0.56 for letter in words) * size


def ticks(most: float, count: int = 5) -> list[float]:
    """Round numbers from 0 up to the most, about so many steps.

    >>> ticks(785.0), ticks(1.1)
    ([0.0, 200.0, 400.0, 600.0], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    if most <= 0:
        return [0.0]
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= 0.8 * rough)
    return [round(i * step, 12) for i in range(int(most / step * (1 + 1e-9)) + 1)]
