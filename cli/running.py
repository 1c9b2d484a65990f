"""A plan run on this computer, scaled down: what ``check --run`` shows."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cli import exits
from cli.console import Screen
from planner.errors import PlannerError
from planner.export.dtensor import settings
from planner.export.view import View
from planner.plan.read import is_plan, read_plan
from planner.runtime.predicted import Issued, predicted
from planner.runtime.program import Program, program
from planner.runtime.shrink import MOST_RANKS, shrink


def run_plan(path: Path, screen: Screen) -> int:
    """Runs a plan and says whether loss and gradients are those of one process.

    Raises:
        PlannerError: no plan in the file, parts that are not run yet, or torch is not installed (W06).
    """
    if path.is_file() and not is_plan(path):
        raise PlannerError.of(
            "W06",
            f"{path} is no plan, and --run runs plans.",
            f"A trainer's file gives one: shardwright plan {path} --cluster … --out plan.json",
        )
    plan = read_plan(path)
    small = shrink(program(settings(View(plan))))
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
    if small.ranks > 1:
        lines.append(_collectives(predicted(small), found.issued))
    screen.write("\n".join(lines) + "\n")
    return exits.ANSWER if found.equal else exits.CHECK_FAILED


def _collectives(wanted: Issued, issued: Issued) -> str:
    """What the plan has, and where the run differs in number or bytes."""
    words = [f"{' '.join(key)} {count}" for key, (count, _) in sorted(wanted.items())]
    other = [
        f"{' '.join(key)} {_many(issued.get(key))} instead of {_many(wanted.get(key))}"
        for key in sorted(wanted.keys() | issued.keys())
        if issued.get(key) != wanted.get(key)
    ]
    verdict = f"other than predicted ({'; '.join(other)})" if other else "as predicted"
    return f"  collectives {verdict}: {', '.join(words) or 'none'}"


def _many(found: tuple[int, float] | None) -> str:
    return f"{found[0]} of {found[1]:,.0f} bytes" if found else "none"


def _words(small: Program) -> str:
    """The small plan in a line."""
    sizes = {"dp": small.axes["dp"], "cp": small.axes["cp"], "tp": small.axes["tp"], "pp": small.pp}
    degrees = " × ".join(
        f"{axis} {size}" for axis, size in sizes.items() if axis != "cp" or size > 1
    )
    experts = f", ep {small.axes['ep']}" if small.axes["ep"] > 1 else ""
    states = (
        f", ZeRO-{small.level} over {small.shard} of {small.data}"
        if small.level and small.data > 1
        else ""
    )
    stages = (
        f" ({small.schedule}, layers {'-'.join(map(str, small.visits))})" if small.pp > 1 else ""
    )
    kinds = {layer.recomputed or any(op.recomputed for op in layer.ops) for layer in small.layers}
    words = [
        ("sequence parallel", small.sequence_parallel),
        ("recompute", True in kinds),
        ("multi-token prediction", bool(small.mtp)),
        ("tied tables", small.tied),
    ]
    more = "".join(f", {word}" for word, there in words if there)
    return f"{degrees}{stages}{experts}{more}{states}"
