"""The plan as a command of our own."""

from __future__ import annotations

import shlex

from planner.plan.layout import layout_of
from planner.plan.schema import Plan


def price_command(plan: Plan) -> str:
    """What to type so that this layout is priced again, with everything that was asked."""
    asked, recipe = plan.asked, plan.recipe
    layout = layout_of(plan.degrees, plan.pins)
    options = {
        "--cluster": asked.cluster,
        "--trainer": plan.trainer,
        "--global-batch": str(recipe.global_batch),
        "--seq-len": str(recipe.seq),
        "--precision": recipe.precision,
        "--optimizer": recipe.optimizer,
        "--recipe": asked.recipe_file,
        "--memory-limit": asked.memory_limit,
        "--set": ",".join(f"{key}={value}" for key, value in layout.items()),
    }
    words = [(flag, value) for flag, value in options.items() if value is not None]
    words += [("--set", f"{key}={value}") for key, value in asked.overrides.items()]
    words += [("--what-if", change) for change in asked.what_if]
    words += [("--pin", pin) for pin in plan.pins if "." in pin.partition("=")[0]]
    lines = [f"shardwright price {shlex.quote(asked.model)}"]
    lines += [f"{flag} {shlex.quote(value)}" for flag, value in words]
    return " \\\n  ".join(lines) + "\n"
