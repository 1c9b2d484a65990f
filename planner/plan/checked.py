"""What a check of a configuration or a plan found."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import Fault
from planner.plan.schema import NoPlan, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A trainer's configuration or a plan as it would run now, what is wrong with it, and what would be better."""

    name: str
    """The file."""
    program: str
    """Whose file it is: a trainer's format such as ``megatron``, or ``shardwright`` for a plan."""
    chips: int | None = None
    """As the file has them; None where it leaves them open."""
    stages: tuple[int, ...] | None = None
    """Layers of every chunk as the file has them; None where the trainer divides them equally."""
    notes: tuple[str, ...] = ()
    silent: tuple[Fault, ...] = ()
    """What the trainer takes without a word although it is wrong or does nothing."""
    broken: tuple[Fault, ...] = ()
    """Rules of the trainer that it breaks."""
    stale: str = ""
    """Why the numbers of a plan's file do not hold any more, in a sentence."""
    plan: Plan | None
    """What it says, priced; None where rules of its trainer rule it out."""
    before: Plan | None = None
    """A plan as its file has it; None for a trainer's configuration."""
    better: Plan | NoPlan | None
    """The best plan for the same model, chips and recipe; None where nothing was searched."""

    @property
    def gain(self) -> float:
        """Share of the step that the best plan saves; 0 where there is nothing to compare or to gain."""
        if self.plan is None or not isinstance(self.better, Plan):
            return 0.0
        return max(0.0, 1.0 - self.better.step / self.plan.step)

    @property
    def holds(self) -> bool:
        """It runs, fits, says nothing that its trainer ignores, and is what it says."""
        return self.plan is not None and self.plan.fits and not self.silent and not self.stale
