"""Lines, tables and running text of a terminal report: styled words that are complete without their style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Style: TypeAlias = Literal["", "good", "caution", "bad", "dim", "head"]
"""What a colour means: chosen, caution, over the limit; less or more weight. Nothing is said by style alone."""
INDENT = 2
LEAST = 8
"""Characters that a column of words keeps."""


@dataclass(frozen=True, slots=True)
class Span:
    """Words in one style."""

    text: str
    style: Style = ""


Line: TypeAlias = tuple[Span, ...]
"""One line of a report."""
BLANK: Line = ()


def plain(lines: Iterable[Line]) -> str:
    """Lines without their styles."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)


def styled(texts: Iterable[str], style: Style = "") -> list[Line]:
    """Lines in one style each."""
    return [(Span(text, style),) for text in texts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    heading: str
    cells: Sequence[str]
    left: bool = False
    """Flush left; numbers stand flush right."""
    drop: int = 0
    """The place in the order in which columns go when the table is too wide; 0 stays."""
    styles: Sequence[Style] = ()

    @property
    def width(self) -> int:
        """Characters of its widest cell."""
        return max(map(len, (self.heading, *self.cells)))

    def cell(self, row: int, default: Style) -> Span:
        """A cell with its padding; row -1 is the heading."""
        text = self.heading if row < 0 else self.cells[row]
        style = (self.styles[row] if self.styles and row >= 0 else "") or default
        padded = text.ljust(self.width) if self.left else text.rjust(self.width)
        return Span(padded, style)


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that a width has room for: too wide a table loses columns in their order."""
    kept = list(columns)
    for victim in sorted((c for c in columns if c.drop), key=lambda column: column.drop):
        if table_width(kept) <= width:
            break
        kept.remove(victim)
    return kept


def table_width(columns: Sequence[Column]) -> int:
    """Characters of a table's widest line."""
    return INDENT + sum(column.width for column in columns) + 2 * (len(columns) - 1)


def named_whole(columns: Sequence[Column], width: int) -> list[Column]:
    """The first columns of a list, as many as leave its first one, the names, whole."""
    kept = list(columns)

    def least(column: Column) -> int:
        return min(column.width, LEAST) if column.left and column is not kept[0] else column.width

    while len(kept) > 1 and INDENT + sum(map(least, kept)) + 2 * (len(kept) - 1) > width:
        kept.pop()
    return kept


def table(columns: Sequence[Column], width: int, styles: Sequence[Style] = ()) -> list[Line]:
    """A table with its headings, without wrapped cells.

    Args:
        columns: all of equal length.
        width: of the page.
        styles: of whole rows; cells with a style of their own keep it.
    """
    kept = shortened(fitting(columns, width), width)
    rows = range(-1, len(kept[0].cells) if kept else 0)
    return [
        _joined([column.cell(row, styles[row] if styles and row >= 0 else "") for column in kept])
        for row in rows
    ]


def shortened(columns: Sequence[Column], width: int) -> list[Column]:
    """Columns whose words are cut where even the last of them are too wide; numbers stay whole."""
    kept = list(columns)
    while table_width(kept) > width:
        words = [column for column in kept if column.left and column.width > LEAST]
        if not words:
            break
        widest = max(words, key=lambda column: column.width)
        room = max(LEAST, widest.width - (table_width(kept) - width))
        cells = [_cut(cell, room) for cell in widest.cells]
        cut = replace(widest, heading=_cut(widest.heading, room), cells=cells)
        kept[kept.index(widest)] = cut
    return kept


def _cut(text: str, room: int) -> str:
    text = text.rstrip()
    return text if len(text) <= room else text[: room - 1].rstrip() + "…"


def _joined(cells: Sequence[Span]) -> Line:
    line = [Span(" " * INDENT)]
    for index, cell in enumerate(cells):
        line += [Span("  "), cell] if index else [cell]
    return tuple(line)


def flow(
    pieces: Sequence[str], separator: str, width: int, first: str = "", hang: int = 0
) -> list[str]:
    """Pieces one after another; a piece that does not fit begins a line, one longer than a line wraps.

    It wraps at blanks that do not part a number from its unit.

    Args:
        pieces: kept whole where they fit on a line.
        separator: between pieces of one line; of its trailing blanks none stays at the end of a line.
        width: of the page.
        first: what the first line begins with.
        hang: blanks that the other lines begin with.
    """
    lines, current, start = [], first, len(first)
    tail = len(separator.rstrip(" ·"))
    for index, piece in enumerate(pieces):
        room = width - tail * (index < len(pieces) - 1)
        joined = current + (separator if len(current) > start else "") + piece
        if len(joined) <= room:
            current = joined
            continue
        if len(current) > start:
            lines.append(current + separator.rstrip(" ·"))
            current, start = " " * hang, hang
        *full, current = _wrapped(current + piece, room, hang)
        lines += full
        start = hang if full else start
    return [*lines, current]


def _wrapped(text: str, width: int, hang: int) -> list[str]:
    lines = []
    while len(text) > width:
        start = len(text) - len(text[hang:].lstrip()) + 1
        blanks = [i for i in range(start, len(text)) if text[i] == " "]
        if not blanks:
            break
        fit = [i for i in blanks if i <= width] or blanks[:1]
        whole = [i for i in fit if not (text[i - 1].isdigit() or text[i + 1 : i + 2].isdigit())]
        cut = max(whole or fit)
        lines.append(text[:cut])
        text = " " * hang + text[cut + 1 :]
    return [*lines, text]


def labelled(
    label: str, pieces: Sequence[str], width: int, style: Style = "", separator: str = " · "
) -> list[Line]:
    """A word at the margin and text beside it."""
    return styled(flow(pieces, separator, width, f"  {label + ' ':<9}", 11), style)
