"""The page of a checked configuration: what it costs, what is wrong with it, what would be better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from planner.plan.checked import Checked
from planner.plan.schema import NoPlan, Plan
from planner.report.degrees import described
from planner.report.numbers import gib
from planner.report.tables import BLANK, Line, Style, flow, labelled, styled
from planner.units import Json, show_seconds


def verdict(found: Checked) -> tuple[str, Style]:
    """The first words."""
    if found.plan is None:
        return "Cannot run", "bad"
    return ("Fits", "good") if found.plan.fits else ("Does not fit", "bad")


def page(found: Checked, *, width: int) -> list[Line]:
    """All of it, the verdict first."""
    word, style = verdict(found)
    what = f"{found.name}, {_read_as(found)}"
    lines: list[Line] = []
    if found.plan is None:
        lines += styled([f"  {word}: {what}."], style)
    else:
        p = found.plan
        rates = [
            f"{show_seconds(p.step)} a step: {p.tokens_per_second_per_chip:,.0f} tokens/s/chip",
            f"{100 * p.mfu:.1f} % MFU",
        ]
        fullest = f"{gib(p.memory)} of {gib(p.memory_limit)} GiB on the fullest chip (stage {p.memory_stage})"
        lines += styled(flow(rates, ", ", width, f"  {word}. ", 2), style)
        lines += styled(flow(described(p.degrees), ", ", width, "  ", 2))
        lines += styled(flow([fullest], " ", width, "  ", 2))
        lines += styled(flow([what], " ", width, "  ", 2), "dim")
    if found.before is not None and found.stale:
        said = f"It says {show_seconds(found.before.step)} and {gib(found.before.memory)} GiB."
        lines += [BLANK, *labelled("Stale", [found.stale, said], width, "bad", " ")]
    for label, faults in (("Broken", found.broken), ("Silent", found.silent)):
        for fault in faults:
            lines += [BLANK, *labelled(label, [fault.what, *fault.fix], width, "bad", " ")]
    if found.silent:
        lines += styled(
            ["           The trainer takes what is marked silent without a word."], "dim"
        )
    notes = list(found.notes)
    if found.stages and found.plan is not None and found.stages != _stages(found.plan):
        notes.append(
            f"its stages of {_listed(found.stages)} layers are priced as {_listed(_stages(found.plan))}"
        )
    if notes:
        lines += [BLANK, *labelled("Note", notes, width, "dim", "\n")]
    return [*lines, *_better(found, width)]


def _read_as(found: Checked) -> str:
    if found.before is None:
        return f"read as {found.program}"
    return f"a plan for {found.before.trainer} made by {found.before.made_by}"


def _better(found: Checked, width: int) -> list[Line]:
    """The best plan beside the file's own."""
    if found.better is None:
        return []
    if isinstance(found.better, NoPlan):
        return [
            BLANK,
            *labelled("Better", ["no layout of this model fits these chips"], width, "bad"),
        ]
    b = found.better
    if found.plan is not None and found.plan.fits and b.step >= found.plan.step * (1 - 1e-9):
        return [
            BLANK,
            *labelled("Better", ["nothing is faster: this is the best plan"], width, "good"),
        ]
    pieces = [f"{show_seconds(b.step)} a step"]
    if found.plan is not None:
        saved = 100 * (1 - b.step / found.plan.step)
        word = "faster" if saved >= 0 else "slower, but it fits"
        pieces[0] += (
            f" ({abs(saved):.1f} % less time)" if saved >= 0 else f" ({-saved:.1f} % {word})"
        )
    pieces += described(b.degrees)
    pieces.append(f"{gib(b.memory)} of {gib(b.memory_limit)} GiB")
    return [BLANK, *labelled("Better", pieces, width, "good")]


def _stages(plan: Plan) -> tuple[int, ...]:
    """Layers of every chunk of a plan in the order of visits, schedules in a V left aside."""
    turns = max(len(stage.layers) for stage in plan.stages)
    return tuple(_count(stage.layers[turn]) for turn in range(turns) for stage in plan.stages)


def _count(folded: str) -> int:
    total = 0
    for part in filter(None, folded.split(", ")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _listed(sizes: Sequence[int]) -> str:
    shown = ", ".join(map(str, sizes[:12]))
    return f"{shown}, …" if len(sizes) > 12 else shown


def as_data(found: Checked) -> dict[str, Json]:
    """The same for programs."""
    return {
        "file": found.name,
        "program": found.program,
        "verdict": verdict(found)[0].lower(),
        "notes": list(found.notes),
        "silent": [asdict(fault) for fault in found.silent],
        "broken": [asdict(fault) for fault in found.broken],
        "stale": found.stale,
        "before": None if found.before is None else found.before.model_dump(mode="json"),
        "plan": None if found.plan is None else found.plan.model_dump(mode="json"),
        "better": None if found.better is None else found.better.model_dump(mode="json"),
    }
