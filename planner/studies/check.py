"""A configuration that somebody runs: what it costs, what is wrong with it, and what would be better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import Fault, PlannerError
from planner.frontends.catalog import find
from planner.frontends.launch.found import TrainerFile
from planner.frontends.launch.read import read_trainer_file
from planner.plan.schema import NoPlan, Plan
from planner.planning import plan, price
from planner.question import Question
from planner.search.engine import Progress
from planner.units import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found."""

    file: TrainerFile
    plan: Plan | None
    """The configuration, priced; None where rules of its trainer rule it out."""
    broken: tuple[Fault, ...]
    """Rules of the trainer that it breaks."""
    better: Plan | NoPlan | None
    """The best plan for the same model, chips and recipe; None where nothing was searched."""

    @property
    def gain(self) -> float:
        """Share of the step that the best plan saves; 0 where there is nothing to compare or to gain."""
        if self.plan is None or not isinstance(self.better, Plan):
            return 0.0
        return max(0.0, 1.0 - self.better.step / self.plan.step)

    @property
    def holds(self) -> bool:
        """It runs, fits, and says nothing that its trainer ignores."""
        return self.plan is not None and self.plan.fits and not self.file.faults


def check(
    path: Path,
    question: Question,
    *,
    program: str | None = None,
    search: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Checked:
    """Reads a trainer's configuration back and prices it.

    Args:
        path: the configuration.
        question: cluster, and what the file leaves open; an empty ``model`` stands for the file's.
        program: whose file it is; None to know it by its keys.
        search: whether to look for a better plan.
        progress: called between batches of the search.

    Raises:
        PlannerError: a file that cannot be read, or a fact that neither it nor the question states.
    """
    file = read_trainer_file(path, program)
    if not question.cluster:
        raise PlannerError.of(
            "A03", "missing option '--cluster'.", "Help: shardwright check --help"
        )
    question = _completed(question, file)
    priced: Plan | None = None
    broken: tuple[Fault, ...] = ()
    try:
        priced = price(question, file.divided)
    except PlannerError as error:
        if any(fault.code not in RULES for fault in error.faults):
            raise
        broken = error.faults
    better = plan(question, progress) if search else None
    return Checked(file=file, plan=priced, broken=broken, better=better)


RULES = frozenset(
    ["B01", "B02", "D01", "D02", "D03", "D04", "E01", "E02", "P01", "P02", "S01", "S02", "T01"]
)
"""Codes of what a layout may break; anything else is wrong with the question itself."""


def _completed(question: Question, file: TrainerFile) -> Question:
    """The question with what the file says in the places that a person left open."""
    says = {
        "global_batch": file.global_batch,
        "seq_len": file.seq_len,
        "precision": file.precision,
        "optimizer": file.optimizer,
    }
    left_open: dict[str, Json] = {
        key: value
        for key, value in says.items()
        if value is not None and getattr(question, key) is None
    }
    spec = question.cluster
    if ":" not in spec and find("chip", spec, question.folders) and file.chips is not None:
        spec = f"{spec}:{file.chips}"
    return replace(
        question,
        model=question.model or file.model or file.path,
        cluster=spec,
        trainer=file.trainer,
        **left_open,
    )
