"""How an answer leaves: on standard output in the form that was asked for, and into files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli import exits
from cli.console import Screen
from cli.options import FORMATS, WIDEST, chosen, details
from planner.output.files import REPORT, check_outputs, is_trace, write_no_plan, write_output
from planner.plan.schema import NoPlan, Plan
from planner.plan.write import write_plan
from planner.report.numbers import TOLD
from planner.report.text import render
from planner.units import show_seconds

if TYPE_CHECKING:
    from planner.api import Question
    from planner.plan.findings import Comparison, Largest, Sizing


@dataclass(frozen=True, slots=True)
class Output:
    """What a person asked to see and keep."""

    format: str
    detail: tuple[str, ...]
    paths: tuple[Path, ...]

    @property
    def figures(self) -> bool:
        """Whether a report or a timeline is among the files, which draw more than the answer."""
        return self.report or any(is_trace(path) for path in self.paths)

    @property
    def report(self) -> bool:
        """Whether a report is among the files."""
        return any(path.suffix == REPORT for path in self.paths)

    @classmethod
    def asked(cls, form: str, detail: str | None, paths: Sequence[Path] | None) -> Output:
        """Checked before the work begins.

        Raises:
            PlannerError: a word that is not known, a file that could not be written.
        """
        output = cls(chosen(form, FORMATS, "--format"), details(detail), tuple(paths or ()))
        check_outputs(output.paths)
        return output


def deliver_study(
    found: Comparison | Sizing | Largest,
    question: Question,
    screen: Screen,
    form: str,
    paths: Sequence[Path],
) -> None:
    """Shows a study and writes its files; a report is that of its best plan, which is made again with its figures."""
    from planner.api import plan, write
    from planner.output import studied
    from planner.studies.best import best_question

    if form == "table":
        steps = () if screen.quiet else _asking(found, paths)
        screen.show(studied.page(found, min(screen.width, WIDEST), steps))
    else:
        screen.write(studied.text(found, form))
    best = best_question(found, question)
    for path in paths:
        if path.suffix != REPORT:
            write(found, path)
        else:
            answer = None if best is None else plan(best)
            if not isinstance(answer, Plan):
                screen.note(f"No plan, so {path} was not written.")
                continue
            write(answer, path, beside=found)
        screen.note(f"Wrote {path}.")


def _asking(
    found: Comparison | Sizing | Largest, paths: Sequence[Path]
) -> Sequence[tuple[str, str]]:
    """How to see the plan of a row, in the file that is written or in one that has to be."""
    from planner.studies.best import best_row
    from planner.studies.rows import known_rows

    best = best_row(found)
    if best is None:
        return ()
    id = next(id for id, row in known_rows(found).items() if row == best)
    kept = next((str(path) for path in paths if path.suffix == ".json"), "")
    name = shlex.quote(kept or "rows.json")
    return (
        *(() if kept else [("… --out rows.json", "keep it")]),
        (f"shardwright explain {name} {shlex.quote(id)}", "the plan of a row"),
        (f"shardwright explain {name} '{id} mfu'", "any of its numbers"),
    )


def deliver(
    answer: Plan | NoPlan,
    screen: Screen,
    output: Output,
    next_steps: Sequence[tuple[str, str]],
    beside: Callable[[Plan], Comparison] | None = None,
) -> int:
    """Shows an answer, writes its files, and says how the command ends.

    Args:
        answer: what was found.
        screen: where it is shown.
        output: in which form, and into which files.
        next_steps: commands to type next.
        beside: finds the clusters that a report shows beside the answer.
    """
    if output.format == "json":
        screen.write(write_plan(answer))
    elif output.format == "yaml":
        from planner.report.data import render_yaml

        screen.write(render_yaml(answer))
    elif output.format == "markdown":
        from planner.report.markdown import render_markdown

        screen.write(render_markdown(answer))
    else:
        steps = [] if screen.quiet else next_steps
        screen.show(render(answer, width=screen.width, detail=output.detail, next_steps=steps))
    if isinstance(answer, NoPlan):
        for path in output.paths:
            told = write_no_plan(path, answer)
            screen.note(f"Wrote {path}." if told else f"No plan, so {path} was not written.")
        return exits.NO_PLAN
    for warning in answer.warnings:
        screen.note(f"Warning: {warning}")
    if not _written(answer, screen, output, beside):
        return exits.STOPPED
    proof = answer.proof
    if proof.stopped and proof.optimal and proof.cut_gap < TOLD:
        screen.note("Stopped after the plan was proven, before all alternatives were compared.")
    elif proof.stopped:
        least = min(proof.bound, answer.step * (1.0 - proof.cut_gap))
        best, bound = show_seconds(answer.step), show_seconds(least)
        screen.note(f"Stopped. Best so far {best}; nothing can be better than {bound}.")
        return exits.STOPPED
    return exits.ANSWER if answer.fits else exits.NO_PLAN


def _written(
    answer: Plan,
    screen: Screen,
    output: Output,
    beside: Callable[[Plan], Comparison] | None,
) -> bool:
    """Writes the files of a plan; False where Ctrl-C while figures were made left some out."""
    undrawn = output.figures and answer.figures is None
    others: Comparison | None = None
    if beside is not None and output.report and not undrawn:
        with suppress(KeyboardInterrupt):  # the answer is there already
            others = beside(answer)
    for path in output.paths:
        if undrawn and (path.suffix == REPORT or is_trace(path)):
            screen.say(f"Stopped before it was drawn, so {path} was not written.")
            continue
        write_output(path, answer, others)
        screen.note(f"Wrote {path}.")
    return not undrawn
