"""Rows that ran on chips of several kinds: which chips, how many of each, and which stages stood on which.

Rows say so in their own words: several chips in ``chip`` or ``chip_key``, joined by a plus, a comma or an "and", or as
a list, with counts of chips or of nodes before or behind their names; or ``pools``, a list of hardware like the row's
own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from planner.calibrate.runs import HardwareFacts, Run
from planner.calibrate.shapes import NotPricedError
from planner.frontends.catalog import entries


@dataclass(frozen=True, slots=True)
class Instance:
    """A node that a cloud offers under a name."""

    chip: str
    chips: int
    network: str
    """Its network card, as rows write it."""


INSTANCES: dict[str, Instance] = {
    "p3.8xlarge": Instance("v100-sxm-16gb", 4, "10 Gb/s per node"),
    "p3.16xlarge": Instance("v100-sxm-16gb", 8, "25 Gb/s per node"),
    "p3dn.24xlarge": Instance("v100-sxm-32gb", 8, "100 Gb/s per node"),
    "g4dn.12xlarge": Instance("t4", 4, "50 Gb/s per node"),
    "g4dn.metal": Instance("t4", 8, "100 Gb/s per node"),
    "p4d.24xlarge": Instance("a100-sxm-40gb", 8, "400 Gb/s per node"),
    "p4de.24xlarge": Instance("a100-sxm-80gb", 8, "400 Gb/s per node"),
    "g5.48xlarge": Instance("a10g", 8, "100 Gb/s per node"),
}
"""Source: AWS instance tables."""
KNOWN: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = (
    (r"\bAMP\b.*het_cluster", (("p3.8xlarge", 3), ("g4dn.12xlarge", 1))),
)
"""Clusters of sources that a row may only name, as nodes in the order of ranks. Source: AMP, src/het_cluster.py."""
_JOINED = tuple(
    re.compile(rf"(?:{separator})(?![^()]*\))")
    for separator in (
        r"\s*;\s*",
        r"\s+/\s+|(?<=\w)/(?=[a-z]\d|[a-z]{2})",
        r"\s*\+\s*",
        r"\s+and\s+|\s*&\s*",
        r"\s*,\s*",
    )
)
"""What stands between chips, outside of parentheses."""
_NODES = re.compile(
    r"(\d+)\s*(?:nodes?|hosts?|machines?|instances?)(?:\s*(?:of|x|×|with)\s*(\d+))?"
)
_BEFORE = re.compile(r"^\W*(\d+)\s*(?:[x×*]\s*(?:(\d+)\s*[x×*]?\s*)?|\s)(?=[a-z])")
_BEHIND = re.compile(
    r"(?:[:x×*(]\s*)(\d+)\s*(?:[x×*]\s*(\d+))?\s*(?:gpus?|chips?|cards?)?\s*\)?\s*$"
)


def parts_of(run: Run) -> tuple[tuple[HardwareFacts, ...], tuple[str, ...]]:
    """The hardware of a row by kind of chip, in the order of the ranks; none where it names one kind only.

    Returns:
        For each kind what a row of its own would state, and what had to be assumed.

    Raises:
        NotPricedError: several kinds of chips, and no way to tell how many there are of each.
    """
    facts = run.hardware
    stated = facts.other("pools")
    if isinstance(stated, list) and len(stated) > 1:
        pools = [HardwareFacts.model_validate(pool) for pool in stated]
        return tuple(pools), ()
    key = facts.chip_key or ""
    named = [found for text in (facts.chip, key) if (found := _named(text))]
    if named:
        more = (facts.intra or "", facts.inter or "", *run.remarks.split(". "))
        named += [found for text in more if (found := _named(text))]
    sizes = [(found, _sizes(found, run)) for found in named]
    counted = next(((found, each) for found, each in sizes if each), None)
    if counted is not None:
        chips = [chip for chip, _ in counted[0]]
        return _with_networks(list(zip(chips, counted[1], strict=True)), run), ()
    nodes = next((nodes for pattern, nodes in KNOWN if re.search(pattern, _origin(run))), None)
    if nodes is not None:
        told = " + ".join(f"{count} {name}" for name, count in nodes)
        sized = [(INSTANCES[name].chip, INSTANCES[name].chips * count) for name, count in nodes]
        networks = [INSTANCES[name].network for name, _ in nodes]
        return _with_networks(sized, run, networks), (f"cluster {told}",)
    if not named or (not _named(key) and _chip(key)):
        return (), ()
    return _halved([chip for chip, _ in named[0]], run)


def _origin(run: Run) -> str:
    return f"{run.source} {run.other('url') or ''} {run.id}"


def _named(text: str) -> list[tuple[str, str]]:
    """Chips of different kinds that a text names, each with its part of the text; none where it is no list."""
    for pattern in _JOINED:
        parts = pattern.split(text.strip())
        if len(parts) < 2:
            continue
        found = [(chip, part) for part in parts if (chip := _chip(part))]
        if len(found) == len(parts) == len({chip for chip, _ in found}):
            return found
    return []


@lru_cache(maxsize=4096)
def _chip(text: str) -> str | None:
    """The chip of ours that a part of a text names: by the longest of its names, or by the node that has it."""
    words = text.lower().replace("_", "-").replace(" ", "-")
    for name, instance in INSTANCES.items():
        if name in words:
            return instance.chip
    spelled = [(alias, e.name) for e in entries("chip") for alias in (e.name, *e.aliases)]
    hits = [
        (len(alias), name)
        for alias, name in spelled
        if re.search(rf"(?<![a-z0-9]){re.escape(alias)}(?![0-9])", words)
    ]
    return max(hits)[1] if hits else None


def _sizes(named: Sequence[tuple[str, str]], run: Run) -> list[int]:
    """Chips of each kind as a text counts them, in chips or in nodes; none where it does not, or counts others."""
    total, per = run.hardware.num_chips, run.hardware.chips_per_node
    counts = [_count(part) for _, part in named]
    sizes = [count[0] * (count[1] or 1) for count in counts if count]
    if len(sizes) < len(named):
        return []
    if total and per and sum(sizes) != total and sum(sizes) * per == total:
        sizes = [size * per for size in sizes]
    return sizes if total in (None, sum(sizes)) else []


def _halved(chips: Sequence[str], run: Run) -> tuple[tuple[HardwareFacts, ...], tuple[str, ...]]:
    """As many nodes of each kind, where nobody says how many there are."""
    total, per = run.hardware.num_chips, run.hardware.chips_per_node
    if total is None or total % (len(chips) * (per or 1)):
        raise NotPricedError("missing fact: number of chips of each kind")
    size = total // len(chips)
    return _with_networks([(chip, size) for chip in chips], run), (f"{size} chips of each kind",)


def _count(text: str) -> tuple[int, int | None] | None:
    """Chips, or nodes and chips in each, that a part of a text counts."""
    words = text.strip().lower()
    for pattern in (_NODES, _BEFORE, _BEHIND):
        match = pattern.search(words)
        if match:
            return int(match[1]), int(match[2]) if match[2] else _per_node(words)
    return (1, _per_node(words)) if _per_node(words) else None


def _per_node(words: str) -> int | None:
    return next((one.chips for name, one in INSTANCES.items() if name in words), None)


def _with_networks(
    found: Sequence[tuple[str, int]], run: Run, known: Sequence[str] = ()
) -> tuple[HardwareFacts, ...]:
    """Each kind with its own part of what the row says about networks, or what is known of its nodes."""
    facts = run.hardware
    chips = [chip for chip, _ in found]
    intra, inter = _shared(facts.intra, chips), _shared(facts.inter, chips)
    if known and len(set(inter)) < len(known):
        inter = list(known)
    return tuple(
        facts.model_copy(
            update={
                "chip": chip,
                "chip_key": chip,
                "num_chips": count,
                "intra": inside,
                "inter": between or _network(chip, run),
            }
        )
        for (chip, count), inside, between in zip(found, intra, inter, strict=True)
    )


def _shared(text: str | None, chips: Sequence[str]) -> list[str | None]:
    """What a text says for each chip: its own part where there is one a chip, else all of it."""
    if not text:
        return [None] * len(chips)
    for pattern in _JOINED:
        parts = pattern.split(text)
        if len(parts) == len(chips):
            own = {_chip(part): part for part in parts}
            return [own.get(chip, part) for chip, part in zip(chips, parts, strict=True)]
    return [text] * len(chips)


def _network(chip: str, run: Run) -> str | None:
    """The network card of the node that a row names for a chip, where it gives no rate."""
    words = f"{run.hardware.chip} {run.hardware.intra} {run.remarks}".lower()
    named = next(
        (one for name, one in INSTANCES.items() if one.chip == chip and name in words), None
    )
    return named.network if named else None
