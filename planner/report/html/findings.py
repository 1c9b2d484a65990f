"""One sentence for each section of the report: what its picture shows."""

from __future__ import annotations

from planner.plan.figures import AxisPlace, Figures
from planner.plan.removed import everything_removed
from planner.plan.schema import Alternative, Degrees, Plan
from planner.report.left_open import counted
from planner.report.numbers import dollars, gib, percent, slower
from planner.report.text import in_host
from planner.units import show_bytes, show_seconds


def verdict(plan: Plan) -> str:
    """Fits or not, and how fast."""
    rate = f"{show_seconds(plan.step)} a step, {percent(plan.mfu)} MFU"
    if plan.price_per_million_tokens is not None:
        rate += f", {dollars(plan.price_per_million_tokens)} per million tokens"
    if not plan.fits:
        return f"Does not fit: {gib(plan.memory)} of {gib(plan.memory_limit)} GiB. Were there room: {rate}."
    return f"Fits. {rate}."


def step(plan: Plan, figures: Figures) -> str:
    """The two largest parts, and what is hidden."""
    first, *others = sorted(plan.time, key=lambda term: -term.value)
    text = f"Of {show_seconds(plan.step)} a step, {first.label} accounts for {_share(first.value, plan.step)}"
    if others and others[0].value > 0:
        text += f" and {others[0].label} for {_share(others[0].value, plan.step)}"
    hidden = sum(term.hidden for term in plan.time)
    if hidden > 0.0005 * plan.step:
        text += f"; another {show_seconds(hidden)} of communication stay hidden behind other work"
    text += f". At the data sheet's peak the model's FLOPs alone would take {show_seconds(figures.roofline)}."
    return text


def memory(plan: Plan) -> str:
    """The fullest stage and its largest part."""
    stage = plan.stages[plan.memory_stage]
    largest = max(stage.memory, key=lambda term: term.value)
    where = (
        "The chips hold" if len(plan.stages) == 1 else f"Stage {stage.index} is the fullest with"
    )
    return (
        f"{where} {gib(plan.memory)} of {gib(plan.memory_limit)} GiB; "
        f"{_share(largest.value, stage.memory_total)} of it is {largest.label}. "
        f"Nine of ten runs stay under {gib(plan.memory_upper)} GiB."
        + (f" {in_host(plan)} are used." if plan.host_memory else "")
    )


def timeline(plan: Plan, figures: Figures) -> str:
    """Stages, micro-batches, and what waiting costs."""
    d = plan.degrees
    if d.pp == 1:
        turns = " one after another" if d.num_micro_batches > 1 else ""
        return f"There is no pipeline: each chip takes its {_micro_batches(d)}{turns}."
    bubble = next((term.value for term in plan.time if term.name == "step.bubble"), 0.0)
    text = f"{d.pp} stages take {_micro_batches(d)}"
    text += f", in {d.vpp} chunks each" if d.vpp > 1 else ""
    text += f"; the busiest stage waits {show_seconds(bubble)}, {_share(bubble, plan.step)} of the step."
    if figures.timeline.left_out:
        text += f" {figures.timeline.left_out:,} micro-batches of the steady middle are left out of the picture."
    return text


def cut(plan: Plan, figures: Figures) -> str:
    """Which axes stay inside the innermost level, and which cross it."""
    used = [a for a in figures.axes if a.size > 1 and a.axis in plan.degrees.order]
    if not used:
        return "One chip does everything."
    inner = plan.cluster.levels[0].name
    inside = [a.axis for a in used if a.members[0] == a.size]
    across = [_crossing(a) for a in used if a.members[0] != a.size]
    parts = []
    if inside:
        parts.append(f"{_and(inside)} {'stays' if len(inside) == 1 else 'stay'} inside a {inner}")
    if across:
        borders = "its borders" if inside else f"the borders of a {inner}"
        parts.append(f"{_and(across)} {'crosses' if len(across) == 1 else 'cross'} {borders}")
    return "; ".join(parts) + "."


def _crossing(place: AxisPlace) -> str:
    return (
        f"{place.axis} ({place.members[0]} of {place.size} inside)"
        if place.members[0] > 1
        else place.axis
    )


def operators(plan: Plan) -> str:
    """The most expensive operator, and how far from its roofline it is."""
    timed = [
        (b.count * (op.forward + op.backward), b, op) for b in plan.blocks for op in b.operators
    ]
    whole = sum(seconds for seconds, _, _ in timed)
    seconds, block, op = max(timed, key=lambda t: t[0])
    text = (
        f"{op.name} of the {block.name} layers takes {_share(seconds, whole)} of all operator time"
    )
    if op.forward:
        text += f", at {percent(op.roofline / op.forward, 0)} of its roofline forwards"
    return text + "."


def communication(plan: Plan, figures: Figures) -> str:
    """The traffic that costs most."""
    if not figures.traffic:
        return "The chips do not talk to one another."
    exposed = sorted((t for t in figures.traffic if t.exposed > 0), key=lambda t: -t.exposed)
    first = exposed[0] if exposed else figures.traffic[0]
    text = (
        f"{first.phase.capitalize()} {first.kind}s over {first.axis} cost most: {show_bytes(first.bytes)} in "
        f"{first.calls:,} calls for one {first.each}, {show_seconds(first.seconds)}"
    )
    if not exposed:
        return f"{text}, all of it hidden."
    whole = first.exposed >= first.seconds * (1 - 5e-4)
    return f"{text}, {'all' if whole else show_seconds(first.exposed)} of it exposed."


def alternatives(plan: Plan) -> str:
    """The runner-up, how many are as good, and the user's own layout."""
    rows = [row for row in plan.alternatives[1:] if row.rank]
    if plan.proof.front and rows:
        least = rows[-1]
        return (
            f"{plan.proof.front:,} layouts are each the fastest in so little memory; the last of them takes "
            f"{gib(least.memory)} GiB and is {_slower(least, plan)}."
        )
    own = next((row for row in plan.alternatives[1:] if row.own), None)
    parts = []
    if rows:
        parts.append(f"The next best layout is {_slower(rows[0], plan)}: {rows[0].reason}.")
    if equal := sum(row.within_noise for row in rows):
        what = "One of the rows below" if equal == 1 else f"{equal} of the rows below"
        parts.append(
            f"{what} may be as fast as the plan: they differ by less than predictions scatter."
        )
    if own is not None:
        parts.append(f"Yours is {_slower(own, plan)}: {own.reason}.")
    others = [use for use in plan.uses[1:] if use.step is not None]
    if others and others[0].step is not None:
        by = slower(others[0].step, plan.step).lstrip("+ ")
        parts.append(f"Of the ways to use the pools the next is {others[0].text}, {by} slower.")
    return " ".join(parts) or "Only this layout was priced; nothing was compared with it."


def _slower(row: Alternative, plan: Plan) -> str:
    """How much slower than the plan, in words."""
    by = slower(row.step, plan.step).lstrip("+ ")
    return "as fast" if by == "same" else f"{by} slower"


def removed(plan: Plan, figures: Figures) -> str:
    """How many layouts were left, which rule removed most, and which costs most."""
    if plan.proof.searched <= 1:
        return "Nothing was searched, so nothing was ruled out."
    if plan.left_open is not None:
        return counted(plan)
    rules = everything_removed(plan)
    if plan.uses and not rules:
        where = "on one pool, on all alike and with stages on several"
        return f"{plan.proof.searched:,} layouts that rules allow were looked at, {where}."
    text = f"Of {plan.proof.searched:,} layouts {plan.proof.fitting:,} may run and fit"
    if rules:
        first = max(rules, key=lambda rule: rule.count)
        share = _share(first.count, plan.proof.searched)
        text += f"; the rule {first.rule!r} removed most, {share}"
    costs = [(cost.best, cost.rule) for cost in figures.rules if cost.best is not None]
    if costs and min(costs)[0] < plan.step * (1 - 5e-4):
        best, rule = min(costs)
        text += f". Without {rule!r} a step could take {show_seconds(best)}"
    return text + "."


def sensitivities(plan: Plan, figures: Figures) -> str:
    """The number that the step depends on most."""
    if not figures.sensitivities:
        return "Nothing was varied."
    first = figures.sensitivities[0]
    share = f"{100 * first.share:.0f} %"
    if first.low is None:
        return f"With {share} less {first.label} nothing would fit."
    low, high = first.low - plan.step, (first.high or plan.step) - plan.step
    worse = f"{share} less {first.label}" if low > high else f"{share} more {first.label}"
    by = max(low, high) / plan.step
    text = f"The step depends most on one number: {worse} would cost {percent(by)}"
    if len(figures.sensitivities) > 1:
        text += "; all others matter less"
    return text + "."


def provenance(plan: Plan) -> str:
    """Who made it, for what."""
    return f"Made by {plan.made_by} for {plan.trainer_release}; the plan itself is in this file."


def _share(part: float, whole: float) -> str:
    share = part / whole if whole else 0.0
    return f"{100 * share:.0f} %" if share >= 0.0095 else "under 1 %"


def _micro_batches(degrees: Degrees) -> str:
    return "one micro-batch" if (n := degrees.num_micro_batches) == 1 else f"{n:,} micro-batches"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
