"""The question as it was asked: with it a plan can be priced again, searched again, and found stale."""

from __future__ import annotations

from pydantic import Field

from planner.plan.part import Part


class Asked(Part):
    """What the user stated, in their own words; None and empty where they left it open."""

    model: str
    """A catalogue name, or a path."""
    cluster: str
    trainer: str = "megatron"
    global_batch: int | str | None = None
    seq_len: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    recipe_file: str | None = None
    memory_limit: str | None = None
    pins: tuple[str, ...] = ()
    objective: str = "step-time"
    overrides: dict[str, str] = Field(default_factory=dict)
    """Keys of the model's configuration that were replaced."""
    warm_start: dict[str, int | str] = Field(default_factory=dict)
    """The user's own layout, which stands among the rows."""
    base_batch: int | None = None
    """Sequences in the batch for which the learning rate was tuned."""
    what_if: tuple[str, ...] = ()
    """Numbers of the hardware that were to be others."""
    folders: tuple[str, ...] = ()
    """The user's own models and profiles."""
    layout: dict[str, int | str] | None = None
    """The layout that was priced; None where one was searched for."""
