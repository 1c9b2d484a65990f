"""What the screen looks like: answers on standard output, talk on standard error.

Colour only where a person looks and nobody asked for none; the words are complete without it.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
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
WIDEST_BAR = 24


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
    """Progress of a search on standard error: a line that is redrawn and erased, or a line every five seconds.

    A clock of its own draws it, so that time goes on where the search says nothing for a while.
    """

    def __init__(self, screen: Screen) -> None:
        self._redraws = is_terminal(sys.stderr)
        self._started = time.monotonic()
        self._drawn = False
        self._line: Callable[[float, int], str] | None = None
        self._ended = threading.Event()
        self._clock = None if screen.quiet else threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> ProgressLine:
        if self._clock is not None:
            self._clock.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._clock is not None:
            self._clock.join()
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, progress: Progress) -> None:
        """Takes the state of a search."""
        self._line = partial(progress_text, progress)

    def count(self, done: int, total: int) -> None:
        """Takes how many of several questions are answered."""
        self._line = partial(count_text, done, total)

    def _tick(self) -> None:
        from planner.errors import PlannerError

        with suppress(PlannerError, ValueError, OSError):  # nobody reads it any more
            while not self._ended.wait(EVERY_TERMINAL if self._redraws else EVERY_FILE):
                if self._line is not None:
                    self._draw(self._line)

    def _draw(self, line: Callable[[float, int], str]) -> None:
        seconds = time.monotonic() - self._started
        if not self._redraws:
            put(line(seconds, WIDTH_OF_FILES) + "\n", sys.stderr)
            return
        self._drawn = True
        room = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{line(seconds, room)[:room]}\x1b[K")
        sys.stderr.flush()


def progress_text(progress: Progress, seconds: float, room: int = WIDTH_OF_FILES) -> str:
    """One line: what is done, the best so far, how much better it can get, the time."""
    from planner.units import show_seconds

    share = min(1.0, progress.done / progress.total) if progress.total else 0.0
    parts = [f"{100 * share:.0f} %"]
    if progress.best is not None:
        parts.append(f"best {show_seconds(progress.best)}")
        if progress.bound is not None and progress.best > 0:
            gap = max(0.0, 1 - progress.bound / progress.best)
            parts.append(f"gap ≤ {100 * gap:.0f} %")
    return _with_bar(f"pricing {progress.total:,} layouts", share, [*parts, elapsed(seconds)], room)


def count_text(done: int, total: int, seconds: float, room: int = WIDTH_OF_FILES) -> str:
    """One line: how many of several questions are answered."""
    return _with_bar(f"{done:,} of {total:,} plans", done / total, [elapsed(seconds)], room)


def _with_bar(what: str, share: float, parts: list[str], room: int) -> str:
    """A line whose bar takes what the words leave of the room."""
    rest = "   ".join(["", *parts])
    return f"  {what} {bar_of(share, room - len(what) - len(rest) - 3)}{rest}"


def bar_of(share: float, width: int) -> str:
    """A bar of a width, within reason."""
    width = max(4, min(width, WIDEST_BAR))
    full = round(width * share)
    return f"{'━' * full}{'╸' * (full < width)}{' ' * (width - 1 - full)}"


def elapsed(seconds: float) -> str:
    """Minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
