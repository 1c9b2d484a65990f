"""Answers that rest on several plans: the price of a rule, clusters compared, sizes, sensitivities."""

from __future__ import annotations

from planner.plan.part import Part
from planner.plan.schema import Degrees


class RulePrice(Part):
    """What a rule costs: the best time among what it alone removes, had it not applied."""

    rule: str
    family: str
    sentence: str
    source: str
    removed: int
    """Layouts that it removed, those included that another rule would have removed after it."""
    alone: int
    """Layouts that only this rule keeps out."""
    step: float
    """Of the plan, seconds."""
    best: float | None
    """Step of the best layout that only this rule keeps out, if it fits; None where none does."""
    degrees: Degrees | None = None
    """That layout."""
    memory: float | None = None
    """Its bytes on the fullest chip."""
    note: str = ""
    """Why there is no such layout, where there is none."""

    @property
    def gain(self) -> float:
        """Share of the step that would be saved without the rule; 0 where it costs nothing."""
        return 0.0 if self.best is None else max(0.0, 1.0 - self.best / self.step)
