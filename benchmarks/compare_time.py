"""How long comparing many clusters takes: one model under a range of what-ifs, a plan each.

    python -m benchmarks.compare_time [--points 100 300] [--jobs 1]

Prints CPU seconds of whole processes, workers included, since machines are shared; of Llama-3 70B on 256 H100.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ASKED = ("llama-3-70b", "--cluster", "h100-sxm:256", "-b", "512", "-s", "4096", "--quiet")


def measured(points: int, jobs: int | None) -> tuple[float, float]:
    """CPU seconds of the process and its workers, and wall seconds."""
    command = [sys.executable, "-m", "cli.main", "compare", *ASKED]
    command += ["--what-if", f"network.bandwidth=0.25x..4x/{points}"]
    command += [] if jobs is None else ["--jobs", str(jobs)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--points", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--jobs", type=int, help="processes; all cores without")
    given = parser.parse_args()
    for points in given.points:
        cpu, wall = measured(points, given.jobs)
        each = cpu / (points + 1)
        jobs = given.jobs or os.cpu_count()
        print(
            f"{points} points, {jobs} processes: {cpu:.1f} CPU s, {each:.2f} a point, {wall:.1f} s"
        )


if __name__ == "__main__":
    main()
