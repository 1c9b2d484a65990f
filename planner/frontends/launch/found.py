"""What a trainer's configuration says, in our own words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import Fault, PlannerError, listed, nearest
from planner.graph.architecture import Architecture
from planner.units import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFile:
    """A configuration that was read. None where it leaves something open."""

    path: str
    program: str
    """The format that it was read as, such as ``megatron``."""
    trainer: str
    """The trainer that runs it, by our name."""
    layout: Mapping[str, int | str]
    """Degrees and settings by the words of pins; dp is left out where it follows from the chips."""
    architecture: Architecture | None = None
    model: str | None = None
    """The model by a name of the catalogue, where the file does not describe it."""
    chips: int | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    stages: tuple[int, ...] | None = None
    """Layers of every chunk in the order in which a token meets them; None where the trainer divides them equally."""
    notes: tuple[str, ...] = ()
    """What it says that prices do not know, and what it leaves to the trainer's defaults."""
    faults: tuple[Fault, ...] = ()
    """What the trainer takes without a word although it is wrong or does nothing (W04)."""

    @property
    def divided(self) -> Mapping[str, int | str]:
        """The layout with the layers of every chunk, where they are stated and all recompute alike."""
        if self.stages is None or self.layout.get("recompute") not in ("none", "selective", "full"):
            return self.layout
        return {**self.layout, "stage-layers": "+".join(map(str, self.stages))}


def in_part(
    chunks: Sequence[int], whole: Sequence[int], some: Sequence[int] = ()
) -> dict[str, int | str]:
    """Words of a layout in which only some layers of every chunk are computed again: as a whole, or some operators.

    >>> in_part((4, 3), (2, 2))
    {'stage-layers': '4+3', 'full-layers': '2+2'}
    """
    named = {"stage-layers": chunks, "full-layers": whole, "selective-layers": some}
    return {word: "+".join(map(str, counts)) for word, counts in named.items() if any(counts)}


def share_word(share: float) -> str:
    """The nearest share of optimizer states in host memory that has a word; at least a quarter.

    >>> share_word(0.4), share_word(1.0)
    ('optimizer-50%', 'optimizer')
    """
    percent = min(max(25 * round(4 * share), 25), 100)
    return "optimizer" if percent == 100 else f"optimizer-{percent}%"


@dataclass(slots=True)
class Reader:
    """Values of one configuration, asked for one by one; what nobody asked for is known at the end."""

    path: str
    values: Mapping[str, Json]
    asked: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    wrong: list[Fault] = field(default_factory=list)

    def get(self, *keys: str) -> Json:
        """The first of these keys that is given; None without any."""
        self.asked.update(keys)
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def number(self, *keys: str, default: int = 0) -> int:
        """A whole number; text is read as one."""
        value = self.get(*keys)
        if value is None:
            return default
        try:
            found = int(str(value).strip().strip("'\""))
        except ValueError:
            self.fault("W03", f"{keys[0]} is {str(value)[:40]!r}, no whole number.")
            return default
        if not -1 <= found <= 10**12:
            self.fault("W03", f"{keys[0]} is {found}, no size that a model or a cluster has.")
            return default
        return found

    def degree(self, *keys: str, default: int = 1) -> int:
        """A number from 1 up."""
        found = self.number(*keys, default=default)
        if found < 1:
            self.fault("W03", f"{keys[0]} is {found}; it can be 1 or more.")
            return default
        return found

    def flag(self, *keys: str) -> bool:
        """Whether a switch is on."""
        value = self.get(*keys)
        return value is not None and str(value).lower() not in ("false", "0", "none", "no")

    def text(self, *keys: str, default: str = "") -> str:
        value = self.get(*keys)
        return default if value is None else str(value).strip()

    def fault(self, code: str, what: str, *fix: str) -> None:
        """Something that keeps the file from being read."""
        self.wrong.append(Fault(code, what, fix, self.path))

    def silently(self, when: bool, what: str, fix: str) -> None:
        """Something that the trainer takes without a word although it is wrong."""
        if when:
            self.faults.append(Fault("W04", what, (fix,), self.path))

    def unknown(self, known: Iterable[str], place: str) -> None:
        """Notes keys that the trainer ignores because it does not know them."""
        names = set(known)
        for key in sorted(self.values.keys() - names):
            close = nearest(key, names, 2)
            self.silently(
                not key.startswith("_"),
                f"{place} has no key '{key}'; it is ignored.",
                f"Nearest: {listed(close)}.",
            )

    def done(self) -> None:
        """Ends reading.

        Raises:
            PlannerError: everything that could not be read (W03, M02).
        """
        if self.wrong:
            raise PlannerError(*self.wrong)


def table_of(data: Mapping[str, Json], key: str) -> dict[str, Json]:
    """The table below a key; empty where there is none, or something else."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def without_defaults(layout: Mapping[str, int | str]) -> dict[str, int | str]:
    """A layout without degrees of one, which everybody assumes.

    >>> without_defaults({"tp": 8, "cp": 1, "recompute": "none"})
    {'tp': 8, 'recompute': 'none'}
    """
    return {key: value for key, value in layout.items() if value != 1 or key in ("zero", "mbs")}
