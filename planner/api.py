"""The questions of the command line for a Python program: a function for each command, and what they take and give.

>>> from planner.api import Question, plan
>>> answer = plan(Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=64))
>>> answer.fits
True

A name loads its part of the planner when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.asking import plan as plan
    from planner.asking import price as price
    from planner.calibrate.calibrate import calibrate as calibrate
    from planner.calibrate.evaluate import evaluate as evaluate
    from planner.errors import PlannerError as PlannerError
    from planner.known import show as show
    from planner.output.pages import text as text
    from planner.output.write import export as export
    from planner.output.write import write as write
    from planner.plan.read import read_plan as read_plan
    from planner.plan.schema import Plan as Plan
    from planner.question import Question as Question
    from planner.studies.check import check as check
    from planner.studies.compare import compare as compare
    from planner.studies.explain import explain as explain
    from planner.studies.size import size as size

HOMES = {
    "Plan": "plan.schema",
    "PlannerError": "errors",
    "Question": "question",
    "calibrate": "calibrate.calibrate",
    "check": "studies.check",
    "compare": "studies.compare",
    "evaluate": "calibrate.evaluate",
    "explain": "studies.explain",
    "export": "output.write",
    "plan": "asking",
    "price": "asking",
    "read_plan": "plan.read",
    "show": "known",
    "size": "studies.size",
    "text": "output.pages",
    "write": "output.write",
}
"""Where each name lives."""
__all__ = list(HOMES)


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"planner.{HOMES[name]}")
    found: object = getattr(home, name)
    return found


def __dir__() -> list[str]:
    return list(HOMES)
