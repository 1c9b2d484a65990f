"""Where the executable begins: Ctrl-C is a word and an exit code from the first import on."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    try:
        from cli.program import main as run
    except KeyboardInterrupt:
        from cli import exits

        sys.stderr.write("Stopped before there was an answer.\n")
        return exits.INTERRUPTED
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
