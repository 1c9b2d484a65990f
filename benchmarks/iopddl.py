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
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import BEGAN
from planner.search.solver.compiled import HAVE_NUMBA
from planner.search.solver.problem import Memory, Problem, build
from planner.search.solver.solve import Answer, solve
from planner.search.solver.weighted import HAVE_TOULBAR2

RESERVE = 0.02
"""Part of the limit, and ten times that of the time to read, that is left for checking and writing."""
PROVED = 1e-9
"""Gap at which rounding is all that is left of it."""
FORBIDDEN = 1e17
"""Costs from here on mean that a pair or strategy is not allowed."""

EXTRA = [name for name, here in (("numba", HAVE_NUMBA), ("toulbar2", HAVE_TOULBAR2)) if here]
"""What of the extra `fast` is installed."""
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


class InstanceError(ValueError):
    """A file that is not an instance: what is wrong, where, and what would be right."""


def read(path: Path) -> dict[str, Any]:
    """The `problem` object of an instance file, gzipped or not.

    Raises:
        InstanceError: the file cannot be read or holds no such object.
    """
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        found = json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InstanceError(f"not a JSON file, plain or gzipped: {error}") from None
    problem = found.get("problem") if isinstance(found, dict) else None
    if not isinstance(problem, dict):
        raise InstanceError('no object "problem" at the top (format: github.com/google/iopddl)')
    return problem


def to_problem(raw: dict[str, Any]) -> Problem:
    """The instance as numbers for the solver.

    Raises:
        InstanceError: a list is missing or too short, or a number is none; says which.
    """
    intervals, costs, usages = (
        _list(raw, "nodes", key) for key in ("intervals", "costs", "usages")
    )
    ends, tables = (_list(raw, "edges", key) for key in ("nodes", "costs"))
    if not len(intervals) == len(costs) == len(usages):
        raise InstanceError(
            f"nodes has {len(intervals)} intervals, {len(costs)} costs and {len(usages)} usages: "
            "one of each a node is needed"
        )
    if len(ends) != len(tables):
        raise InstanceError(f"edges has {len(ends)} pairs of nodes but {len(tables)} costs")
    vectors = [_allowed(c, f"nodes.costs[{i}]", None) for i, c in enumerate(costs)]
    pairs, matrices = [], []
    for e, (pair, table) in enumerate(zip(ends, tables, strict=True)):
        i, j = _whole_pair(pair, f"edges.nodes[{e}]")
        if not (0 <= i < len(costs) and 0 <= j < len(costs)):
            raise InstanceError(f"edges.nodes[{e}] is {pair}: nodes go from 0 to {len(costs) - 1}")
        pairs.append((i, j))
        matrices.append(_allowed(table, f"edges.costs[{e}]", len(costs[i]) * len(costs[j])))
    limit = raw.get("usage_limit")
    memory = None if limit is None else _memory(intervals, usages, vectors, limit)
    return build(vectors, pairs, matrices, memory)


def _memory(
    intervals: list[Any], usages: list[Any], costs: list[np.ndarray], limit: float
) -> Memory:
    spans = [_whole_pair(span, f"nodes.intervals[{i}]") for i, span in enumerate(intervals)]
    used = [_numbers(u, f"nodes.usages[{i}]", len(costs[i])) for i, u in enumerate(usages)]
    flat = np.concatenate(used) if used else np.zeros(0)
    if len(flat) and flat.min() < 0:
        raise InstanceError(f"nodes.usages has {flat.min():g}: memory in use cannot be negative")
    times = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return Memory(
        nodes=np.arange(len(spans)),
        lo=times[:, 0].copy(),
        hi=times[:, 1].copy(),
        usages=flat,
        limit=float(_numbers([limit], "usage_limit", 1)[0]),
    )


def _list(raw: dict[str, Any], part: str, key: str) -> list[Any]:
    found = raw.get(part)
    values = found.get(key) if isinstance(found, dict) else None
    if not isinstance(values, list):
        raise InstanceError(f'the list "{key}" of "{part}" is missing')
    return values


def _whole_pair(pair: Any, where: str) -> tuple[int, int]:
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(v, int) for v in pair):
        raise InstanceError(f"{where} is {pair!r}: two whole numbers are needed")
    return pair[0], pair[1]


def _numbers(values: list[float], where: str, count: int | None) -> np.ndarray:
    """The values, as many as there must be; None asks for at least one."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.full(1, np.nan)
    if array.ndim != 1 or np.isnan(array).any():
        raise InstanceError(f"{where} has something that is not a number")
    if len(array) != count and (count is not None or not len(array)):
        raise InstanceError(f"{where} has {len(array)} numbers, {count or 'at least one'} needed")
    return array


def _allowed(values: list[float], where: str, count: int | None) -> np.ndarray:
    array = _numbers(values, where, count)
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


def run(path: Path, limit: float, began: float) -> dict[str, Any]:
    """Solves one instance within the limit, reading and checking included.

    Args:
        path: of the instance.
        limit: seconds.
        began: when they began to count, as of `time.perf_counter`.
    """
    cpu = time.process_time()
    raw = read(path)
    problem = to_problem(raw)
    spent = time.perf_counter() - began
    answer = solve(problem, seconds=limit - spent - RESERVE * (limit + 10 * spent))
    found = {
        "name": raw.get("name", path.name.split(".")[0]),
        "status": _status(answer),
        "cost": None,
        "lower_bound": answer.bound if np.isfinite(answer.bound) else None,
        "seconds": time.perf_counter() - began,
        "found_after_seconds": None,
        "cpu_seconds": time.process_time() - cpu,
        "feasible": False,
        "with": EXTRA,
        "solution": None,
    }
    if answer.choice is not None:
        found["found_after_seconds"] = spent + answer.found
        found["solution"] = [int(s) for s in answer.choice]
        found["cost"], found["feasible"] = check(raw, found["solution"])
        if abs(found["cost"] - answer.cost) > 1e-9 * max(1.0, abs(answer.cost)):
            raise SystemExit(f"the solver says {answer.cost}, the file says {found['cost']}")
    return found


def _status(answer: Answer) -> str:
    """What is known: the optimum, a choice that may not be it, that there is none, or nothing."""
    if answer.choice is None:
        return "infeasible" if answer.bound == np.inf else "unknown"
    return "optimal" if answer.gap <= PROVED else "feasible"


def table(directory: Path, limits: float | None, letters: str | None, began: float) -> None:
    """Runs all instances of a directory and prints one row each."""
    print("| | limit s | best known | ours | best/ours | lower bound | gap % | seconds | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    total, count = 0.0, 0
    for path in sorted(directory.glob("*iopddl-?.json*")):
        letter = path.name.split("iopddl-")[1][0]
        if letters and letter not in letters:
            continue
        limit, best = KNOWN[letter]
        got = run(path, limits or limit, began)
        began = time.perf_counter()
        score = best / got["cost"] if got["feasible"] else 0.0
        bound = -np.inf if got["lower_bound"] is None else got["lower_bound"]
        gap = 100 * (1 - bound / got["cost"]) if got["feasible"] else np.inf
        total, count = total + score, count + 1
        print(
            f"| {letter} | {limits or limit:g} | {best:,} | {got['cost'] or 0:,} | {score:.4f} "
            f"| {bound:,.0f} | {gap:.3f} | {got['seconds']:.1f} | {got['cpu_seconds']:.1f} |",
            flush=True,
        )
    print(
        f"\nSum of best/ours: {total:.4f} of {count}, with {' and '.join(EXTRA) or 'numpy and scipy alone'}"
    )


def main(arguments: list[str] | None = None, began: float | None = None) -> int:
    """Command line; 0 if every answer is feasible. Time counts from `began`, or from now."""
    began = time.perf_counter() if began is None else began
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("instance", type=Path, nargs="?", help="an instance file")
    parser.add_argument("--time-limit", type=float, help="seconds (default: the contest's, or 60)")
    parser.add_argument("--out", type=Path, help="where the solution is written")
    parser.add_argument("--all", type=Path, metavar="DIRECTORY", help="run all instances there")
    parser.add_argument("--only", help="letters of --all to run, such as BGV")
    given = parser.parse_args(arguments)
    if given.all:
        table(given.all, given.time_limit, given.only, began)
        return 0
    if given.instance is None:
        parser.error("an instance, or --all DIRECTORY")
    if given.time_limit is not None and not given.time_limit > 0:
        parser.error("--time-limit: seconds, more than 0")
    if given.out and not given.out.parent.is_dir():
        parser.error(f"--out: there is no folder {given.out.parent}")
    try:
        got = run(given.instance, given.time_limit or 60.0, began)
    except InstanceError as error:
        parser.exit(2, f"{given.instance}: error: {error}\n")
    if given.out:
        given.out.write_text(json.dumps(got, allow_nan=False))
    print(json.dumps({k: v for k, v in got.items() if k != "solution"}, allow_nan=False))
    return 0 if got["feasible"] else 1


if __name__ == "__main__":
    sys.exit(main(began=BEGAN))
