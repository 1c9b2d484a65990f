"""Contest instances changed at random: what the solver says of graphs that nobody has seen.

    python -m benchmarks.mutants DIRECTORY --seconds 20 --only KUV

An answer is a choice that keeps the limit, or a proof that there is none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.iopddl import read, to_problem
from planner.search.solver.problem import Memory, Problem, build, least_peak
from planner.search.solver.solve import Answer, solve
from planner.units import IntArray

ROOM = 1.1
"""Limit of the contest's instances, in the least that any choice takes."""
NOISE = 0.1
"""Share by which doubled strategies cost more and take less."""
SHIFT = 0.02
"""Share of all time by which spans are shifted at most."""
FORBIDDEN = 0.05
"""Share of pairs that are forbidden besides those of a known choice."""
LINKS = 400
"""Edges between an instance and its copy."""


def with_limit(problem: Problem, limit: float) -> Problem:
    assert problem.memory is not None
    return replace(problem, memory=replace(problem.memory, limit=float(np.floor(limit))))


def permuted(problem: Problem, rng: np.random.Generator) -> Problem:
    """Costs of every node's strategies dealt anew; what is forbidden stays so."""
    parts = []
    for costs in problem.node_costs():
        dealt, allowed = costs.copy(), np.isfinite(costs)
        dealt[allowed] = rng.permutation(costs[allowed])
        parts.append(dealt)
    return replace(problem, costs=np.concatenate(parts))


def shifted(problem: Problem, rng: np.random.Generator) -> Problem:
    """Spans earlier or later, with as much room as the contest gives."""
    memory = problem.memory
    assert memory is not None
    most = max(1, int(SHIFT * memory.hi.max()))
    by = rng.integers(-most, most + 1, len(memory.lo))
    lo = np.maximum(0, memory.lo + by)
    moved = replace(memory, lo=lo, hi=np.maximum(lo + 1, memory.hi + by))
    fresh = replace(problem, memory=moved)
    return with_limit(fresh, ROOM * least_peak(fresh))


def doubled(problem: Problem, rng: np.random.Generator) -> Problem:
    """Every strategy a second time, dearer and thriftier."""
    memory = problem.memory
    assert memory is not None
    costs = [
        np.concatenate([c, np.rint(c * (1 + NOISE * rng.random(len(c))))])
        for c in problem.node_costs()
    ]
    usages = [
        np.concatenate([u, np.rint(u * (1 - NOISE * rng.random(len(u))))])
        for u in np.split(memory.usages, memory.starts(problem.sizes)[1:-1])
    ]
    tables = [np.tile(table, (2, 2)) for table in problem.edge_tables()]
    pairs = [(int(i), int(j)) for i, j in problem.edges]
    return build(costs, pairs, tables, replace(memory, usages=np.concatenate(usages)))


def joined(problem: Problem, rng: np.random.Generator) -> Problem:
    """Beside a copy of itself, with edges between them."""
    memory, count = problem.memory, len(problem.sizes)
    assert memory is not None
    nodes = np.concatenate([memory.nodes, memory.nodes + count])
    pairs = [(int(i), int(j)) for i, j in problem.edges]
    links = [(int(i), count + int(j)) for i, j in rng.integers(0, count, (LINKS, 2))]
    top = float(np.median(problem.costs[np.isfinite(problem.costs)])) + 1.0
    sizes = problem.sizes
    between = [np.rint(top * rng.random((sizes[i], sizes[j - count]))) for i, j in links]
    every = pairs + [(i + count, j + count) for i, j in pairs] + links
    tables = problem.edge_tables() * 2 + between
    lo, hi, usages = np.tile(memory.lo, 2), np.tile(memory.hi, 2), np.tile(memory.usages, 2)
    twice = Memory(nodes, lo, hi, usages, 2 * memory.limit)
    return build(problem.node_costs() * 2, every, tables, twice)


def forbidden(problem: Problem, known: IntArray, rng: np.random.Generator) -> Problem:
    """Without some pairs that a known choice does not use, and with no more room than it takes."""
    tables = []
    for (i, j), table in zip(problem.edges.tolist(), problem.edge_tables(), strict=True):
        gone = rng.random(table.shape) < FORBIDDEN
        gone[known[i], known[j]] = False
        tables.append(np.where(gone, np.inf, table))
    pairs = [(int(i), int(j)) for i, j in problem.edges]
    fresh = build(problem.node_costs(), pairs, tables, problem.memory)
    return with_limit(fresh, np.ceil(problem.peak(known)))


def answers(problem: Problem, seconds: float, seed: int = 1) -> Iterator[tuple[str, Answer]]:
    """Every change and what the solver says of it."""
    rng, bare = np.random.default_rng(seed), least_peak(problem)
    yield "0.1 % less than the least", solve(with_limit(problem, 0.999 * bare), seconds=seconds)
    for room in (1.001, 1.03):
        tight = solve(with_limit(problem, room * bare), seconds=seconds)
        yield f"{room - 1:.1%} above the least", tight
    if tight.choice is not None:
        fewer = forbidden(problem, tight.choice, rng)
        yield "pairs forbidden, room of a known choice", solve(fewer, seconds=seconds)
    for name, change in (
        ("costs dealt anew", permuted),
        ("spans shifted", shifted),
        ("strategies doubled", doubled),
        ("beside a copy of itself", joined),
    ):
        yield name, solve(change(problem, rng), seconds=seconds)


def status(answer: Answer) -> str:
    if answer.choice is not None:
        return f"{100 * answer.gap:.2f} %"
    return "none, proved" if answer.bound == np.inf else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of every change")
    parser.add_argument("--only", help="letters of instances, such as KUV")
    given = parser.parse_args()
    print("| | change | gap | CPU s |\n| --- | --- | --- | --- |", flush=True)
    for path in sorted(given.directory.glob("*iopddl-?.json*")):
        letter = path.name.split("iopddl-")[1][0]
        if given.only and letter not in given.only:
            continue
        began = process_time()
        for change, answer in answers(to_problem(read(path)), given.seconds):
            taken, began = process_time() - began, process_time()
            print(f"| {letter} | {change} | {status(answer)} | {taken:.1f} |", flush=True)


if __name__ == "__main__":
    main()
