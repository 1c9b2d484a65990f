"""Answers into files: the form is said by the ending, trainers' files by the trainer's name."""

from __future__ import annotations

from pathlib import Path

from planner.errors import PlannerError
from planner.export.files import File
from planner.export.like import export_like
from planner.export.targets import export as exported
from planner.export.targets import target
from planner.output.files import write_files, write_no_plan, write_output
from planner.output.studied import write_study
from planner.plan.findings import Comparison, Largest, Sizing
from planner.plan.schema import NoPlan, Plan


def write(
    found: Plan | NoPlan | Comparison | Sizing | Largest,
    path: Path | str,
    *,
    beside: Comparison | Sizing | Largest | None = None,
) -> None:
    """Writes an answer whole, never over something of another kind.

    Args:
        found: a plan as ``.json``, ``.html`` (a report, if the question asked for figures), ``.md``, ``.csv`` or
            ``.trace.json``; why there is none as ``.html`` or ``.md``; everything else as
            ``.json``, ``.md`` or ``.csv``.
        path: where to; folders are made.
        beside: what a report shows among its what-ifs: clusters compared, or a curve of sizes.

    Raises:
        PlannerError: an ending that nothing is written for (O01), something else in its place (O02), a place that
            cannot be written (O03).
    """
    if isinstance(found, Plan):
        write_output(Path(path), found, beside)
    elif isinstance(found, NoPlan):
        if not write_no_plan(Path(path), found):
            what = f"cannot write {path}: there is no plan."
            raise PlannerError.of("O01", what, "Why there is none goes into .html or .md.")
    else:
        write_study(Path(path), found)


def export(
    plan: Plan, to: str, folder: Path | str, *, like: Path | str | None = None
) -> list[Path]:
    """Writes a plan as a trainer's own files.

    Args:
        plan: what is to be run.
        to: a format's name, such as ``megatron``.
        folder: where the files go.
        like: a configuration of your own, of which only what the plan decides is changed.

    Returns:
        The files.

    Raises:
        PlannerError: an unknown format (W02), what it cannot hold (W01), a file that cannot be read (F01) or written
            (O02, O03).
    """
    files = exported(plan, to) if like is None else [_edited(plan, to, Path(like))]
    return write_files(Path(folder), files, anything=like is not None)


def _edited(plan: Plan, to: str, like: Path) -> File:
    """The file that a person has, with the plan's settings."""
    try:
        text = like.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no text"
        raise PlannerError.of("F01", f"cannot read {str(like)!r}: {why}.") from None
    return export_like(plan, target(to).name, str(like), text)
