"""Answers that rest on several plans: the price of a rule, clusters compared, sizes, sensitivities."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from planner.plan.asked import Asked
from planner.plan.cluster import kind_of
from planner.plan.figures import Sensitivity
from planner.plan.part import Part, Positive
from planner.plan.schema import Degrees, ModelFacts, RecipeFacts


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
    stopped: bool = False
    """Time ran out: there may be a better one."""

    @property
    def gain(self) -> float:
        """Share of the step that would be saved without the rule; 0 where it costs nothing."""
        return 0.0 if self.best is None else max(0.0, 1.0 - self.best / self.step)


class Compared(Part):
    """The best plan on one cluster, or why there is none."""

    cluster: str
    """As it was asked for."""
    chips: int
    """0 where it was not understood."""
    trainer: str
    what_if: str = ""
    """What is changed of the cluster's numbers, as it was asked for."""
    fits: bool
    note: str = ""
    """Why there is no plan; empty where there is one."""
    degrees: Degrees | None = None
    step: Positive | None = None
    """Seconds."""
    tokens_per_second: Positive | None = None
    mfu: float | None = None
    memory: float | None = None
    """Bytes on the fullest chip, the median; of the closest miss where nothing fits."""
    memory_limit: float | None = None
    price: float | None = None
    """Dollars a chip-hour; None where pools differ."""
    pool_prices: dict[str, float] = Field(default_factory=dict)
    """Dollars a chip-hour of each chip of pools; empty where all chips are alike."""
    price_per_million_tokens: Positive | None = None
    energy_per_million_tokens: float | None = None
    """Kilowatt-hours of the chips at their power limit."""
    bound_by: str = ""
    """What the step waits for besides computing, if anything."""
    gap: float = 0.0
    """How much faster a plan could still be, as a share; 0 where the plan is proven best."""
    asked: Asked
    """The row's own question, with which its plan can be made again."""
    sensitivities: tuple[Sensitivity, ...] = ()

    @property
    def kind(self) -> str:
        """The cluster without its number of chips; pools are named whole."""
        return kind_of(self.cluster)


class Crossover(Part):
    """A value at which the order of two rows turns."""

    by: Literal["rate", "price"]
    """Tokens a second, or dollars for a token."""
    number: str
    """Which number changes: ``network.bandwidth``, or ``chip.price``."""
    value: str
    """Where the order turns, as it can be asked for: ``0.62x``, ``240 Gb/s``, ``$2.31``."""
    below: str
    """The row that is better below."""
    above: str
    """The row that is better above."""


class Comparison(Part):
    """One question on several clusters."""

    model: ModelFacts
    recipe: RecipeFacts
    rows: tuple[Compared, ...] = Field(min_length=1)
    fastest: int | None
    """Its place among the rows; None where nothing fits anywhere."""
    cheapest: int | None
    """The one with the cheapest token; None where no price is known."""
    crossovers: tuple[Crossover, ...]
    left_out: int = 0
    """Rows that were asked for and not looked at, since the user stopped."""


class Target(Part):
    """What a size must meet besides fitting; None where it need not."""

    model_config = ConfigDict(allow_inf_nan=True)  # as a person asks, before it is judged
    step: float | None = None
    """Seconds of a step at most."""
    tokens: float | None = None
    """Tokens to train on."""
    days: float | None = None
    """In so many days at most."""
    dollars: float | None = None
    """For so much at most."""


class Sizing(Part):
    """The fewest chips that fit and meet a target, and what other numbers of chips would do."""

    model: ModelFacts
    recipe: RecipeFacts
    cluster: str
    target: Target
    answer: Compared | None
    """None where no number of chips that was looked at meets the target."""
    below: Compared | None
    """The largest number of chips below the answer that was looked at and does not meet it."""
    grain: int
    """Between so many chips nothing was looked at below the answer."""
    note: str = ""
    """Why the search for more chips ended, where there is no answer."""
    stopped: bool = False
    """The user stopped: fewer chips may do it."""
    curve: tuple[Compared, ...]
    """Rising numbers of chips."""


class Largest(Part):
    """The largest batch or sequence that fits on a cluster."""

    model: ModelFacts
    recipe: RecipeFacts
    what: Literal["global-batch", "seq-len"]
    target: Target
    value: int | None
    """None where not even the smallest does."""
    answer: Compared | None
    above: Compared | None
    """The next larger one that was looked at, which does not fit or meet the target; None where none was."""
    above_value: int | None = None
    stopped: bool = False
    """The user stopped: larger ones may do it."""
    curve: tuple[tuple[int, Compared], ...]
