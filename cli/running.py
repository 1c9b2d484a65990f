"""A plan run on this computer, scaled down: what ``check --run`` shows."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cli import exits
from cli.console import Screen
from planner.errors import PlannerError
from planner.export.dtensor import settings
from planner.export.view import View
from planner.plan.read import read_plan
from planner.runtime.shrink import MOST_RANKS, Small, shrink


def run_plan(path: Path, screen: Screen) -> int:
    """Runs a plan and says whether loss and gradients are those of one process.

    Raises:
        PlannerError: no plan in the file, parts that are not run yet, or torch is not installed (W06).
    """
    plan = read_plan(path)
    small = shrink(settings(View(plan)))
    if find_spec("torch") is None:
        raise PlannerError.of(
            "W06", "torch is not installed.", "Install it: pip install 'shardwright[torch]'"
        )
    from planner.runtime.run import run

    assert small.ranks <= MOST_RANKS
    screen.note(f"Running {_words(small)} on {small.ranks} processes …")
    found = run([small])[0]
    if found.fault:
        screen.write(f"  Did not run: {found.fault}\n")
        return exits.CHECK_FAILED
    verdict = "Equal" if found.equal else "Not equal"
    lines = [
        f"  {verdict}. Loss {found.loss:.7f}, one process {found.expected:.7f}",
        f"  gradients differ by {found.worst:.1e} of their largest entry at most ({found.worst_name or 'none'})",
        f"  {_words(small)}: {found.ranks} processes, {found.seconds:.1f} s",
    ]
    if found.counts and small.tp > 1 and small.dp == 1 and not small.recompute:
        same = found.counts == small.collectives
        counts = ", ".join(f"{key} {count}" for key, count in sorted(found.counts.items()))
        lines.append(
            f"  collectives {'as predicted' if same else 'other than predicted'}: {counts}"
        )
    screen.write("\n".join(lines) + "\n")
    return exits.ANSWER if found.equal else exits.CHECK_FAILED


def _words(small: Small) -> str:
    """The small plan in a line."""
    states = (
        f", ZeRO-{small.level} over {small.shard} of {small.dp}"
        if small.level and small.dp > 1
        else ""
    )
    stages = (
        f" ({small.schedule}, layers {'-'.join(map(str, small.visits))})" if small.pp > 1 else ""
    )
    sequence = " with sequence parallelism" if small.sequence_parallel else ""
    return f"dp {small.dp} × tp {small.tp}{sequence} × pp {small.pp}{stages}{states}"
