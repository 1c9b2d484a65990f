"""A plan in the words of the trainers, for the report: what ``shardwright export`` would write."""

from __future__ import annotations

from itertools import accumulate

from planner.errors import PlannerError
from planner.export.targets import TARGETS
from planner.export.view import View
from planner.plan.schema import Plan
from planner.report.html.page import Refusal, Tab

MOST, NAMED = 12_000, 3
"""Characters of the files of a format that are shown, and how many of the others are named."""


def tabs(plan: Plan) -> tuple[list[Tab], list[Refusal]]:
    """Formats that hold the plan, its own trainer's first, and those that cannot, with the reason."""
    shown, refused = [], []
    for target in sorted(TARGETS, key=lambda t: not t.name.startswith(plan.trainer)):
        try:
            files = target.write(View(plan))
        except PlannerError as error:
            refused.append(Refusal(target.release, " ".join(f.what for f in error.faults)))
            continue
        ends = accumulate(len(file.text) for file in files)
        count = sum(end <= MOST for end in ends)
        short = tuple((file.name, file.text) for file in files[:count])
        note = f"{target.release}. shardwright export plan.json --to {target.name} --out FOLDER writes it"
        if left := [file.name for file in files[count:]]:
            more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
            note += f", and what is too long to be shown here: {', '.join(left[:NAMED])}{more}"
        shown.append(Tab(target.name, short, f"{note}."))
    return shown, refused
