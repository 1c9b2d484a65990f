"""Exit codes: what a script can tell from them."""

ANSWER = 0
"""An answer was found and shown."""
BUG = 1
"""An unexpected failure."""
WRONG_INPUT = 2
"""Wrong usage, a wrong file, an unknown name."""
NO_PLAN = 3
"""Nothing fits; a full explanation was shown."""
STOPPED = 4
"""A time limit, Ctrl-C or SIGTERM stopped the search, and there is an answer."""
CHECK_FAILED = 5
"""A check did not hold: an error above ``--max-error``."""
INTERRUPTED = 130
"""Ctrl-C or SIGTERM before there was an answer (128 + SIGINT, as shells have it)."""
