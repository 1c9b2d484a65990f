"""What rules removed from the space, in one line or rule by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.plan.schema import Removed
from planner.report.tables import Line, flow, styled


def removed_by_family(removed: Sequence[Removed], width: int, more: str = "") -> list[Line]:
    """Families of rules and how many layouts each removed, most first."""
    counts: Counter[str] = Counter()
    for rule in removed:
        counts[rule.family] += rule.count
    ranked = sorted(((count, family) for family, count in counts.items() if count), reverse=True)
    if not ranked:
        return []
    pieces = [f"{count:,} {family}" for count, family in ranked]
    pieces[-1] += f".  {more}" if more else ""
    return styled(flow(pieces, " · ", width, "  Removed: ", 11))


def removed_by_rule(removed: Sequence[Removed], width: int) -> list[Line]:
    """Every rule with what it removed and what it demands."""
    lines: list[str] = []
    ranked = sorted(removed, key=lambda rule: (-rule.count, rule.rule))
    digits = max((len(f"{rule.count:,}") for rule in ranked), default=0)
    for rule in ranked:
        family = "" if rule.family == rule.rule else f" ({rule.family})"
        count = f"  {rule.count:>{digits},}  "
        lines += flow([f"{rule.rule}{family}"], " ", width, count, digits + 4)
        lines += flow([rule.sentence], " ", width, " " * (digits + 4), digits + 4)
    return styled(lines)
