"""How a question is asked on the command line: facts and flags, on top of those of an earlier plan if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import Plan, Question


def asked(
    model: str | None, cluster: str | None, earlier: Plan | None = None, **stated: object
) -> Question:
    """The question of an earlier plan with everything that is stated anew; what was not stated is None or empty.

    Raises:
        PlannerError: no model or no cluster, and no plan to take it from (A03).
    """
    from planner.api import Question
    from planner.errors import Fault, PlannerError

    given: dict[str, Any] = {"model": model, "cluster": cluster} | stated
    if earlier is not None:
        base = Question.again(earlier.asked)
        if isinstance(recipe := given.get("recipe_file"), Path):
            from planner.studies.again import recipe_states

            open_: dict[str, Any] = dict.fromkeys(recipe_states(recipe))
            base = replace(base, **open_)
        if given.get("global_batch") is not None:
            given["base_batch"] = earlier.recipe.global_batch
        given["overrides"] = {**base.overrides, **(given.get("overrides") or {})}
    else:
        like = "Or start from a plan: --like plan.json"
        missing = [("argument 'MODEL'", model), ("option '--cluster'", cluster)]
        faults = [Fault("A03", f"missing {name}.", (like,)) for name, value in missing if not value]
        if faults:
            raise PlannerError(*faults)
        base = Question(model=str(model), cluster=str(cluster))
    return replace(base, **{key: value for key, value in given.items() if _is_stated(value)})


def _is_stated(value: object) -> bool:
    return value is not None and value != () and value != {}


def earlier_plan(like: Path | None) -> Plan | None:
    """The plan of ``--like``.

    Raises:
        PlannerError: as :func:`planner.plan.read.parsed_plan`.
    """
    if like is None:
        return None
    from planner.plan.read import parsed_plan

    return parsed_plan(like)


def own_layout(text: str | None) -> Mapping[str, int | str]:
    """The layout of ``--warm-start``: a plan's file, or ``tp=8,pp=4``.

    Raises:
        PlannerError: the file is no plan; a key that no layout has (A04).
    """
    from cli.layout import divided
    from cli.options import settings
    from planner.errors import PlannerError

    if text is None:
        return {}
    if "=" not in text or Path(text).is_file():
        from planner.plan.layout import layout_of
        from planner.plan.read import parsed_plan

        plan = parsed_plan(Path(text))
        return layout_of(plan.degrees, plan.pins)
    layout, others = divided(settings([text], "--warm-start"))
    if others:
        raise PlannerError.of(
            "A04",
            f"no layout key {next(iter(others))!r} in --warm-start.",
            "Write it like tp=8,pp=4,mbs=1",
        )
    return layout
