"""What a plan on pools of different chips shows besides: where its stages stand, and the ways to use the pools."""

from __future__ import annotations

from itertools import groupby

from planner.plan.schema import Plan
from planner.report.numbers import TOLD, percent, slower
from planner.report.tables import INDENT, Column, Line, Style, flow, styled, table
from planner.units import show_seconds


def seated(plan: Plan) -> list[str]:
    """Which stages stand on which pool, in pieces of a sentence; nothing where all chips are alike."""
    if not plan.cluster.pools:
        return []
    pools = plan.degrees.pools
    if not pools:
        return ["every stage on chips of all pools"]
    found, first = [], 0
    for name, group in groupby(pools):
        last = first + len(list(group)) - 1
        stages = "the stage" if len(pools) == 1 else f"stages {first}-{last}"
        stages = f"stage {first}" if first == last and len(pools) > 1 else stages
        found.append(f"{stages} on {name}")
        first = last + 1
    return found


def ways(plan: Plan, width: int) -> list[Line]:
    """The ways to use the pools, fastest first."""
    if not plan.uses:
        return []
    styles: list[Style] = ["good" if use is plan.uses[0] else "" for use in plan.uses]
    return table(way_columns(plan), width, styles)


def way_columns(plan: Plan) -> list[Column]:
    """A row for each way to use the pools."""
    best = plan.step
    steps = [use.note if use.step is None else show_seconds(use.step) for use in plan.uses]
    shares = [
        "" if use.step in (None, best) else slower(use.step or best, best) for use in plan.uses
    ]
    return [
        Column(
            heading="  Ways to use the pools",
            cells=[f"  {use.text}" for use in plan.uses],
            left=True,
        ),
        Column(heading="chips", cells=[f"{use.chips:,}" for use in plan.uses]),
        Column(heading="step", cells=steps),
        Column(heading="slower", cells=shares, drop=2),
        Column(
            heading="gap",
            cells=["" if use.gap is None else percent(use.gap) for use in plan.uses],
            drop=1,
        ),
    ]


def searched_pools(plan: Plan, width: int) -> list[Line]:
    """How much was searched, and what that proves."""
    proof = plan.proof
    counts = (
        f"Searched {proof.searched:,} layouts on one pool, on all alike and with stages on several."
    )
    if proof.optimal:
        bound = "None is faster in this cost model."
        if proof.cut_gap >= TOLD:
            bound = f"{bound[:-1]}; other stages of this one gain at most {percent(proof.cut_gap)}."
    else:
        bound = (
            f"Nothing can be faster than {show_seconds(proof.bound)} (gap {percent(proof.gap)})."
        )
        bound = f"Stopped early. {bound}" if proof.stopped else bound
    caution: Style = "" if proof.optimal else "caution"
    return styled(flow([counts, bound], " ", width, "  ", INDENT), caution)
