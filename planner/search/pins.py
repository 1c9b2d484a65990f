"""Pins: what the user fixes. One mechanism for a fixed degree, a range, and a wholly fixed layout."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from planner.candidates import OFFLOAD, RECOMPUTE, SCHEDULES, SHARDING
from planner.errors import Fault, PlannerError, alike, listed
from planner.graph.model import Model
from planner.plan.layout import DIVISION, plain
from planner.search.operator_pins import (
    OperatorPin,
    contradictions,
    is_operator,
    read_operator_pin,
)
from planner.trainers.trainer import Trainer
from planner.units import BoolArray, IntArray

NAMES: dict[str, str] = {
    **{name: name for name in ("dp", "tp", "pp", "cp", "ep", "etp", "vpp")},
    "micro-batch": "micro_batch",
    "mbs": "micro_batch",
    "zero": "sharding",
    "sharding": "sharding",
    "shard-group": "shard_group",
    "recompute": "recompute",
    "sp": "sp",
    "sequence-parallel": "sp",
    "order": "order",
    "schedule": "schedule",
    "offload": "offload",
}
"""From the word of a pin to the column of the candidates' table."""
OTHER = ("kv-heads",)
"""Pins that are no column: ``kv-heads=copy`` lets key/value heads be copied."""
_COMPARE: dict[str, Callable[[IntArray, int], BoolArray]] = {
    "=": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"^\s*([A-Za-z][A-Za-z0-9_.*-]*?)\s*(<=|>=|=|<|>)\s*(\S.*?)\s*$")
_CHOICES: dict[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "sharding": SHARDING,
    "offload": OFFLOAD,
    "sp": ("off", "on"),
}


@dataclass(frozen=True, slots=True)
class Pin:
    """One restriction of the space: a column compared with a value."""

    text: str
    """As the user wrote it."""
    column: str
    compare: str
    """``=``, ``<=``, ``>=``, ``<`` or ``>``."""
    value: int

    def keeps(self, column: IntArray) -> BoolArray:
        """True where a column's values satisfy the pin."""
        return _COMPARE[self.compare](column, self.value)


ANY_OFFLOAD = Pin("offload=any", "offload", ">=", 0)
"""Opens the space to everything that a trainer can keep in host memory."""
SOME_OFFLOAD = Pin("offload>none", "offload", ">", 0)
"""The same without the layouts that keep nothing there."""
NO_OFFLOAD = Pin("offload=none", "offload", "=", 0)
ANY_CHUNKS = Pin("vpp=any", "vpp", ">=", 1)
"""Opens the space to every number of virtual chunks, where the trainer can divide layers unequally."""
TWO_CHUNKS = Pin("vpp=2", "vpp", "=", 2)


@dataclass(frozen=True, slots=True)
class Pins:
    """All restrictions of one question."""

    pins: tuple[Pin, ...] = ()
    copy_kv: bool = False
    operators: tuple[OperatorPin, ...] = ()
    free: bool = False
    """Operators are free as in semi-automatic mode, although none may be pinned."""

    @property
    def restrict(self) -> bool:
        """Whether there are any."""
        return bool(self.pins or self.operators)

    @property
    def semi_automatic(self) -> bool:
        """Whether strategies of operators are part of the search."""
        return self.free or bool(self.operators)

    def on(self, columns: Iterable[str]) -> tuple[Pin, ...]:
        """The pins on any of these columns."""
        wanted = set(columns)
        return tuple(pin for pin in self.pins if pin.column in wanted)

    def fixed(self, column: str) -> int | None:
        """The value that an ``=`` pin gives a column; None without one."""
        return next((p.value for p in self.pins if p.column == column and p.compare == "="), None)

    def texts(self) -> tuple[str, ...]:
        """As the user wrote them."""
        copy = ("kv-heads=copy",) if self.copy_kv else ()
        operators = (pin.text for pin in self.operators)
        return (*(pin.text for pin in self.pins), *copy, *operators)


def parse_pins(texts: Iterable[str], trainer: Trainer, model: Model | None = None) -> Pins:
    """Read pins such as ``tp=8``, ``pp<=4``, ``recompute=none``, ``zero=1``, ``order=tp-cp-dp-pp``.

    Args:
        texts: as they were written; one may hold several, as ``tp=8,pp<=4``.
        trainer: whose settings they are.
        model: whose operators may be pinned, as in ``attn.q.heads=tp``; without one no operator can.

    Raises:
        PlannerError: a pin that is not understood (N01), a value that it cannot have (N02), two that contradict each
            other (N03); all at once.
    """
    pins: list[Pin] = []
    operators: list[OperatorPin] = []
    faults: list[Fault] = []
    copy = False
    for text in (part for written in texts for part in separate(written)):
        try:
            pin = _parse(text, trainer, model)
        except PlannerError as error:
            faults += error.faults
            continue
        if pin is None:
            copy = True
        elif isinstance(pin, OperatorPin):
            operators.append(pin)
        else:
            pins.append(pin)
    faults += _contradictions(pins)
    faults += [
        Fault("N03", f"pins '{one.text}' and '{other.text}' contradict each other: {what}.")
        for one, other, what in contradictions(operators)
    ]
    if faults:
        raise PlannerError(*faults)
    return Pins(tuple(pins), copy, tuple(operators))


def separate(text: str) -> list[str]:
    """The pins of a comma list; commas in parentheses belong to a strategy.

    >>> separate("tp=8, pp<=4,attn.qkv=((1,1),(1,8))")
    ['tp=8', 'pp<=4', 'attn.qkv=((1,1),(1,8))']
    """
    parts, depth = [""], 0
    for letter in text:
        depth = max(0, depth + (letter == "(") - (letter == ")"))
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def from_layout(layout: Mapping[str, int | str], trainer: Trainer) -> Pins:
    """A layout that the user states, as pins: ``{"tp": 8, "recompute": "full"}``; how it divides layers is no pin.

    Nor is sequence parallelism of a single tp rank, which trainers turn off.
    """
    pinned = [f"{key}={value}" for key, value in layout.items() if plain(key) not in DIVISION]
    found = parse_pins(pinned, trainer)
    if found.fixed("tp") != 1 or not found.fixed("sp"):
        return found
    return replace(found, pins=tuple(pin for pin in found.pins if pin.column != "sp"))


def _parse(text: str, trainer: Trainer, model: Model | None) -> Pin | OperatorPin | None:
    match = _FORM.match(text)
    if match is None:
        raise PlannerError.of(
            "N01", f"pin '{text}' is not KEY=VALUE.", "Write it like tp=8, or tp=8,pp<=4 for two."
        )
    word, compare, value = match[1].lower().replace("_", "-"), match[2], match[3]
    if model is not None and is_operator(word, value):
        if compare != "=":
            raise PlannerError.of("N02", f"pin '{text}': only = makes sense for an operator.")
        return read_operator_pin(text.strip(), match[1].lower(), value, model)
    if word == "kv-heads":
        if (compare, value.lower()) != ("=", "copy"):
            raise PlannerError.of("N02", f"pin '{text}': kv-heads can only be copy.")
        return None
    if word not in NAMES:
        if is_operator(word, value):
            raise PlannerError.of(
                "N01",
                f"pin '{text}' is on an operator; a stated layout has degrees and settings.",
                f"Pins: {listed(sorted({*NAMES, *OTHER}), 'and')}.",
            )
        close = listed(alike(word, [*NAMES, *OTHER]))
        meant = f" Did you mean {close}?" if close else ""
        raise PlannerError.of(
            "N01",
            f"no pin named '{match[1]}'.{meant}",
            f"Pins: {listed(sorted({*NAMES, *OTHER}), 'and')}.",
        )
    column = NAMES[word]
    if (column, compare, value.lower()) == ("offload", "=", "any"):
        return ANY_OFFLOAD
    return Pin(text.strip(), column, compare, _value(text, column, compare, value, trainer))


def _value(text: str, column: str, compare: str, value: str, trainer: Trainer) -> int:
    choices = _CHOICES.get(column)
    if column == "order":
        choices = tuple("-".join(order) for order in trainer.orders)
    if choices is None:
        if not value.isascii() or not value.isdigit() or not 0 < int(value[:12]) <= 10**9:
            raise PlannerError.of("N02", f"pin '{text}': {value} is not a whole number from 1 up.")
        return int(value)
    if (
        column == "sharding"
        and value.isascii()
        and value.isdigit()
        and int(value[:3]) < len(choices)
    ):
        return int(value)
    word = value.lower()
    lowered = [choice.lower() for choice in choices]
    truth = {"true": "on", "1": "on", "yes": "on", "false": "off", "0": "off", "no": "off"}
    word = truth.get(word, word) if column == "sp" else word
    if word not in lowered:
        more = ("any",) if column == "offload" else ()
        raise PlannerError.of(
            "N02", f"pin '{text}': {value} is not one of {listed((*choices, *more))}."
        )
    if compare != "=" and column in ("sp", "order", "schedule", "offload"):
        raise PlannerError.of("N02", f"pin '{text}': only = makes sense for {column}.")
    return lowered.index(word)


def _contradictions(pins: list[Pin]) -> list[Fault]:
    """Two pins that fix one column to different values."""
    fixed: dict[str, Pin] = {}
    faults = []
    for pin in pins:
        if pin.compare != "=":
            continue
        first = fixed.setdefault(pin.column, pin)
        if first.value != pin.value:
            faults.append(
                Fault("N03", f"pins '{first.text}' and '{pin.text}' contradict each other.")
            )
    return faults
