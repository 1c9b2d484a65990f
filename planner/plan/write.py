"""A plan as text: the same plan gives the same bytes, so that plans can be compared and kept."""

from __future__ import annotations

import json

from planner.plan.schema import NoPlan, Plan


def write_plan(plan: Plan | NoPlan) -> str:
    """The plan as JSON: sorted keys, numbers in full, infinities as strings, a newline at the end."""
    return write_json(plan.model_dump(mode="json"))


def write_json(value: object) -> str:
    """Any JSON value the way plans are written."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
