"""The same questions as on the command line, for a Python program.

>>> from planner.api import Question, plan
>>> answer = plan(Question(model="llama-3-8b", cluster="h100-sxm:8", global_batch=64))
>>> answer.fits
True
"""

from __future__ import annotations

from planner.errors import PlannerError as PlannerError
from planner.known import Shown as Shown
from planner.known import list_names as list_names
from planner.known import schema as schema
from planner.known import show as show
from planner.plan.diff import diff as diff
from planner.plan.findings import Target as Target
from planner.plan.read import read_plan as read_plan
from planner.plan.schema import NoPlan as NoPlan
from planner.plan.schema import Plan as Plan
from planner.plan.write import write_plan as write_plan
from planner.planning import plan as plan
from planner.planning import price as price
from planner.question import Question as Question
from planner.search.engine import Progress as Progress
from planner.studies.again import staleness as staleness
from planner.studies.check import Checked as Checked
from planner.studies.check import check as check
from planner.studies.compare import compare as compare
from planner.studies.explain import explain as explain
from planner.studies.largest import largest as largest
from planner.studies.size import size as size

__all__ = [
    "Checked",
    "NoPlan",
    "Plan",
    "PlannerError",
    "Progress",
    "Question",
    "Shown",
    "Target",
    "check",
    "compare",
    "diff",
    "explain",
    "largest",
    "list_names",
    "plan",
    "price",
    "read_plan",
    "schema",
    "show",
    "size",
    "staleness",
    "write_plan",
]
