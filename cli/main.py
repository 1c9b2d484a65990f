"""Where the executable begins: Ctrl-C is a word and an exit code from the first import on."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence

YOUNG = 100_000
"""Objects made between two searches for garbage in cycles: loading makes many that stay, and looking at them takes a
tenth of a short command's time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; where it is the process's own, SIGTERM is Ctrl-C."""
    if arguments is None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    gc.set_threshold(YOUNG)
    try:
        from cli.program import main as run
    except KeyboardInterrupt:
        from cli import exits

        sys.stderr.write("Stopped before there was an answer.\n")
        return exits.INTERRUPTED
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
