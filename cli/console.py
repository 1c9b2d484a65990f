"""What the screen looks like: answers on standard output, talk on standard error.

Colour only where a person looks and nobody asked for none; the words are complete without it.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from planner.report.tables import Line

WIDTH_OF_FILES = 100
"""Columns where no terminal says otherwise."""
STYLES = {
    "": "",
    "good": "bold green",
    "caution": "yellow",
    "bad": "red",
    "dim": "dim",
    "head": "bold",
}
CLOSED = "the output cannot be written: it is closed."
EVERY_TERMINAL, EVERY_FILE = 0.1, 5.0
"""Seconds between two progress lines."""


class Progress(Protocol):
    """How far a search is, as :class:`planner.search.engine.Progress` tells it."""

    @property
    def done(self) -> int:
        """Layouts that are dealt with."""

    @property
    def total(self) -> int:
        """All layouts."""

    @property
    def best(self) -> float | None:
        """Seconds of the best step so far."""

    @property
    def bound(self) -> float | None:
        """Seconds that no step is shorter than."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at a stream whose lines can be redrawn."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Screen:
    """Both streams of one command."""

    def __init__(
        self, *, quiet: bool = False, verbose: bool = False, no_color: bool = False
    ) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.color = not no_color and not os.environ.get("NO_COLOR") and is_terminal(sys.stdout)

    @property
    def width(self) -> int:
        """Columns for an answer."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_FILES

    def show(self, lines: Iterable[Line]) -> None:
        """An answer for people."""
        if not self.color:
            from planner.report.tables import plain

            self.write("\n" + plain(lines) if sys.stdout.isatty() else plain(lines))
            return
        from rich.console import Console
        from rich.text import Text

        console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        console.print()
        for line in lines:
            text = Text.assemble(*((span.text, STYLES[span.style]) for span in line))
            text.rstrip()
            console.print(text, soft_wrap=True)

    def write(self, text: str) -> None:
        """An answer for programs, as it is; one who stopped reading it has had enough."""
        put(text, sys.stdout)

    def note(self, text: str) -> None:
        """Talk that nobody needs."""
        if not self.quiet:
            self.say(text)

    def say(self, text: str) -> None:
        """Talk, whole words on a line where a person reads it."""
        if sys.stderr.isatty():
            from textwrap import fill

            lines = (fill(line, self.width, break_on_hyphens=False) for line in text.split("\n"))
            text = "\n".join(lines)
        put(text + "\n", sys.stderr)


def put(text: str, stream: TextIO) -> None:
    """Writes to a stream; where nobody reads it any more (``2>&1 | head``), the rest goes nowhere.

    Raises:
        PlannerError: the stream is a file that cannot be written, a full disk for one (O03).
    """
    try:
        stream.write(text)
        stream.flush()
    except io.UnsupportedOperation:
        from planner.errors import PlannerError

        raise PlannerError.of("O03", CLOSED) from None
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            from planner.errors import PlannerError

            why = error.strerror or error
            raise PlannerError.of("O03", f"the output cannot be written: {why}.") from None


class ProgressLine:
    """Progress of a search on standard error: a line that is redrawn and erased, or a line every five seconds."""

    def __init__(self, screen: Screen) -> None:
        self._silent = screen.quiet
        self._redraws = is_terminal(sys.stderr)
        self._started = self._shown = time.monotonic()
        self._drawn = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, progress: Progress) -> None:
        """Shows the state of the search, if the last time is long enough ago."""
        if self._due():
            self._draw(progress_text(progress, time.monotonic() - self._started))

    def count(self, done: int, total: int) -> None:
        """Shows how many of several questions are answered."""
        if self._due():
            shown = elapsed(time.monotonic() - self._started)
            self._draw(f"  {done:,} of {total:,} plans {bar_of(done / total)}   {shown}")

    def _due(self) -> bool:
        now = time.monotonic()
        if self._silent or now - self._shown < (EVERY_TERMINAL if self._redraws else EVERY_FILE):
            return False
        self._shown = now
        return True

    def _draw(self, text: str) -> None:
        if not self._redraws:
            put(text + "\n", sys.stderr)
            return
        self._drawn = True
        room = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{text[:room]}\x1b[K")
        sys.stderr.flush()


def progress_text(progress: Progress, seconds: float) -> str:
    """One line: what is done, the best so far, how much better it can get, the time."""
    from planner.units import show_seconds

    share = min(1.0, progress.done / progress.total) if progress.total else 0.0
    parts = [
        f"  pricing {progress.total:,} layouts {bar_of(share)}",
        f"{100 * share:.0f} %",
    ]
    if progress.best is not None:
        parts.append(f"best {show_seconds(progress.best)}")
        if progress.bound is not None and progress.best > 0:
            gap = max(0.0, 1 - progress.bound / progress.best)
            parts.append(f"gap ≤ {100 * gap:.0f} %")
    return "   ".join([*parts, elapsed(seconds)])


def bar_of(share: float) -> str:
    """A bar of fixed width."""
    full = round(24 * share)
    return f"{'━' * full}{'╸' * (full < 24)}{' ' * (23 - full)}"


def elapsed(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
