"""A configuration that somebody runs, or a plan: what it costs, what is wrong with it, and what would be better."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.asking import plan, price
from planner.errors import Fault, PlannerError
from planner.frontends.catalog import find
from planner.frontends.launch.found import TrainerFile
from planner.frontends.launch.read import read_trainer_file
from planner.plan.checked import Checked
from planner.plan.layout import elsewhere, layout_of
from planner.plan.read import is_plan, read_plan
from planner.plan.schema import Plan
from planner.question import Question
from planner.search.engine import Progress
from planner.studies.again import staleness
from planner.units import Json

STATED = ("model", "cluster", "global_batch", "seq_len", "precision", "optimizer", "memory_limit")
"""What a person may state instead of what a plan has."""
RULES = frozenset(
    ["B01", "B02", "D01", "D02", "D03", "D04", "E01", "E02", "P01", "P02", "S01", "S02", "T01"]
)
"""Codes of what a layout may break; anything else is wrong with the question itself."""


def check(
    what: Path | str | Plan,
    question: Question,
    *,
    program: str | None = None,
    search: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> Checked:
    """Reads a trainer's configuration or a plan and prices it as it would run now.

    Args:
        what: the file of either, or a plan.
        question: of a configuration the cluster, and what the file leaves open; of a plan what is to be otherwise. An
            empty ``model`` or ``cluster`` stands for the file's.
        program: whose configuration it is, None to know it by its keys; of a plan another trainer to run it.
        search: whether to look for a better plan.
        progress: called between batches of the search.

    Raises:
        PlannerError: a file that cannot be read, or a fact that neither it nor the question states.
    """
    path = Path("The plan") if isinstance(what, Plan) else Path(what)
    if isinstance(what, Plan) or is_plan(path):
        before = what if isinstance(what, Plan) else read_plan(path)
        stated = {key: value for key in STATED if (value := getattr(question, key))}
        if "cluster" in stated:
            chips = before.degrees.chips_used
            stated["cluster"] = _counted(question.cluster, chips, question.folders)
        stated |= {} if program is None else {"trainer": program}
        asked = replace(Question.again(before.asked), **stated, time_limit=question.time_limit)
        return _of_plan(before, str(path), asked, stated.keys(), search, progress)
    file = read_trainer_file(path, program)
    if not question.cluster:
        raise PlannerError.of(
            "A03", "missing option '--cluster'.", "Help: shardwright check --help"
        )
    question = _completed(question, file)
    priced, broken = _priced(question, file.divided)
    return Checked(
        name=file.path,
        program=file.trainer if file.program == "megatron" else file.program,
        chips=file.chips,
        stages=file.stages,
        notes=file.notes,
        silent=file.faults,
        broken=broken,
        plan=priced,
        better=plan(question, progress) if search else None,
    )


def _of_plan(
    before: Plan,
    name: str,
    question: Question,
    stated: Collection[str],
    search: bool,
    progress: Callable[[Progress], None] | None,
) -> Checked:
    """The layout of a plan under its own question, some of which is stated anew."""
    layout = layout_of(before.degrees, before.pins)
    priced, broken = _priced(question, elsewhere(layout) if "cluster" in stated else layout)
    stale = "" if stated else staleness(before, name)
    return Checked(
        name=name,
        program="shardwright",
        chips=before.degrees.chips_used,
        broken=broken,
        stale=stale,
        plan=priced,
        before=before,
        better=plan(replace(question, warm_start={}), progress) if search else None,
    )


def _priced(
    question: Question, layout: Mapping[str, int | str]
) -> tuple[Plan | None, tuple[Fault, ...]]:
    """A layout as a plan, or the rules that it breaks."""
    try:
        return price(question, layout, usual=True), ()
    except PlannerError as error:
        if any(fault.code not in RULES for fault in error.faults):
            raise
        return None, error.faults


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
    return replace(
        question,
        model=question.model or file.model or file.path,
        cluster=_counted(question.cluster, file.chips, question.folders),
        trainer=file.trainer,
        **left_open,
    )


def _counted(spec: str, chips: int | None, folders: Sequence[Path]) -> str:
    """A chip's name with the number of chips that the file has; any other cluster as it is."""
    if chips is None or ":" in spec or not find("chip", spec, folders):
        return spec
    return f"{spec}:{chips}"
