"""What is measured about the project, and against what."""

import time

BEGAN = time.perf_counter()
"""When the process began, as near as Python can say: before numpy and compiled loops are imported."""
