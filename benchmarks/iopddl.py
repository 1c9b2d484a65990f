"""The IOPDDL contest instances: our solver's cost, bound and time against the best values known.

    python -m benchmarks.iopddl INSTANCE.json.gz --time-limit 60 --out solution.json
    python -m benchmarks.iopddl --all DIRECTORY

The second form runs every instance found at its contest limit and prints the table of benchmarks/README.md.
Source of instances and format: github.com/google/iopddl; of best values: the contest's results.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from planner.search.solver.problem import Memory, Problem, build
from planner.search.solver.solve import solve

FORBIDDEN = 1e17
"""Costs from here on mean that a pair or strategy is not allowed."""

KNOWN = {
    "A": (60, 6548641531), "B": (60, 532843), "C": (60, 84102445260), "D": (60, 313613524736),
    "E": (60, 338965335230), "F": (120, 364364563561), "G": (120, 217039), "H": (120, 527715404257),
    "I": (120, 583706456444), "J": (120, 1360981630371), "K": (180, 2274276676), "L": (180, 1970993742),
    "M": (180, 49928460991), "N": (180, 202739586553), "O": (180, 222880199765), "P": (240, 662197407330),
    "Q": (240, 526776842042), "R": (240, 371899551572), "S": (240, 1534613444), "T": (240, 682895254913),
    "U": (300, 2569342178), "V": (300, 1632051), "W": (300, 11818845467155), "X": (300, 280461191177),
    "Y": (300, 621176568278),
}  # fmt: skip
"""Contest time limit in seconds and best value of any contest team."""


def read(path: Path) -> dict[str, Any]:
    """The `problem` object of an instance file, gzipped or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as stream:
        return json.load(stream)["problem"]


def to_problem(raw: dict[str, Any]) -> Problem:
    """The instance as numbers for the solver."""
    nodes, edges = raw["nodes"], raw["edges"]
    intervals = np.array(nodes["intervals"], dtype=np.int64).reshape(-1, 2)
    memory = None
    if raw.get("usage_limit") is not None:
        memory = Memory(
            nodes=np.arange(len(intervals)),
            lo=intervals[:, 0].copy(),
            hi=intervals[:, 1].copy(),
            usages=np.concatenate([np.asarray(u, dtype=np.float64) for u in nodes["usages"]]),
            limit=float(raw["usage_limit"]),
        )
    costs = [_allowed(c) for c in nodes["costs"]]
    pairs = [(int(i), int(j)) for i, j in edges["nodes"]]
    return build(costs, pairs, [_allowed(c) for c in edges["costs"]], memory)


def _allowed(values: list[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    return np.where(array >= FORBIDDEN, np.inf, array)


def check(raw: dict[str, Any], solution: list[int]) -> tuple[int, bool]:
    """Cost of a solution and whether memory holds, straight from the file's lists: shares nothing with the solver."""
    nodes, edges = raw["nodes"], raw["edges"]
    cost = sum(costs[s] for costs, s in zip(nodes["costs"], solution, strict=True))
    for (i, j), costs in zip(edges["nodes"], edges["costs"], strict=True):
        cost += costs[solution[i] * len(nodes["costs"][j]) + solution[j]]
    change: dict[int, int] = {}
    for (lo, hi), usages, s in zip(nodes["intervals"], nodes["usages"], solution, strict=True):
        if lo < hi:
            change[lo] = change.get(lo, 0) + usages[s]
            change[hi] = change.get(hi, 0) - usages[s]
    used, most = 0, 0
    for _, step in sorted(change.items()):
        used += step
        most = max(most, used)
    limit = raw.get("usage_limit")
    return cost, limit is None or most <= limit


def run(path: Path, limit: float) -> dict[str, Any]:
    """Solves one instance within the limit, reading included, and checks the answer."""
    begin, cpu = time.perf_counter(), time.process_time()
    raw = read(path)
    problem = to_problem(raw)
    answer = solve(problem, seconds=limit - 1.5 * (time.perf_counter() - begin) - 0.02 * limit)
    found = {
        "name": raw.get("name", path.name.split(".")[0]),
        "cost": None,
        "lower_bound": answer.bound,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu,
        "feasible": False,
        "solution": None,
    }
    if answer.choice is not None:
        found["solution"] = [int(s) for s in answer.choice]
        found["cost"], found["feasible"] = check(raw, found["solution"])
        if found["cost"] != round(answer.cost):
            raise SystemExit(f"the solver says {answer.cost}, the file says {found['cost']}")
    return found


def table(directory: Path, limits: float | None, letters: str | None) -> None:
    """Runs all instances of a directory and prints one row each."""
    print("| | limit s | best known | ours | best/ours | lower bound | gap % | seconds | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    total, count = 0.0, 0
    for path in sorted(directory.glob("*iopddl-?.json*")):
        letter = path.name.split("iopddl-")[1][0]
        if letters and letter not in letters:
            continue
        limit, best = KNOWN[letter]
        got = run(path, limits or limit)
        score = best / got["cost"] if got["feasible"] else 0.0
        gap = 100 * (1 - got["lower_bound"] / got["cost"]) if got["feasible"] else np.inf
        total, count = total + score, count + 1
        print(
            f"| {letter} | {limits or limit:g} | {best:,} | {got['cost'] or 0:,} | {score:.4f} "
            f"| {got['lower_bound']:,.0f} | {gap:.3f} | {got['seconds']:.1f} | {got['cpu_seconds']:.1f} |",
            flush=True,
        )
    print(f"\nSum of best/ours: {total:.4f} of {count}")


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 if every answer is feasible."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("instance", type=Path, nargs="?", help="an instance file")
    parser.add_argument("--time-limit", type=float, help="seconds (default: the contest's, or 60)")
    parser.add_argument("--out", type=Path, help="where the solution is written")
    parser.add_argument("--all", type=Path, metavar="DIRECTORY", help="run all instances there")
    parser.add_argument("--only", help="letters of --all to run, such as BGV")
    given = parser.parse_args(arguments)
    if given.all:
        table(given.all, given.time_limit, given.only)
        return 0
    if given.instance is None:
        parser.error("an instance, or --all DIRECTORY")
    got = run(given.instance, given.time_limit or 60.0)
    if given.out:
        given.out.write_text(json.dumps(got))
    print(json.dumps({k: v for k, v in got.items() if k != "solution"}))
    return 0 if got["feasible"] else 1


if __name__ == "__main__":
    sys.exit(main())
