"""What a stated layout left open, in words: what was chosen, and what the trainer's own defaults would give."""

from __future__ import annotations

from planner.plan.layout import DIVISION, layout_of
from planner.plan.schema import LeftOpen, Plan
from planner.report.degrees import layer_count
from planner.report.numbers import gib, percent
from planner.units import show_seconds


def left_open(plan: Plan) -> dict[str, list[str]]:
    """Pieces of a line for each label; none for a layout that is whole, or was not stated."""
    found = plan.left_open
    if found is None:
        return {}
    why = "the fastest that fits" if plan.fits else "nothing fits: this needs least memory"
    lines = {"Left open": _with(_chosen(plan, found), why)}
    if found.refused:
        lines["Defaults"] = [
            f"{plan.trainer} cannot run what it would take itself: {found.refused}"
        ]
    if (usual := found.usual) is not None:
        own, mine = layout_of(usual.degrees), found.chosen | {"recompute": plan.degrees.recompute}
        differ = [
            f"{key}={own[key]}" for key, value in mine.items() if own.get(key, value) != value
        ]
        lines["Defaults"] = [
            f"{show_seconds(usual.step)} a step",
            f"{percent(usual.mfu)} MFU",
            f"{gib(usual.memory)} of {gib(plan.memory_limit)} GiB: {'fits' if usual.fits else 'does not fit'}",
            f"({plan.trainer} by itself{': ' + ', '.join(differ) if differ else ''})",
        ]
    return lines


def _with(pieces: list[str], why: str) -> list[str]:
    """Pieces of a line with the reason behind the last."""
    return [*pieces[:-1], " ".join([*pieces[-1:], f"({why})"])]


def _chosen(plan: Plan, found: LeftOpen) -> list[str]:
    """What was chosen, but for the sums of how layers are divided."""
    mixed = "recompute" in found.chosen and plan.degrees.recompute == "mixed"
    hidden = (*DIVISION, "recompute") if mixed else DIVISION
    pieces = [f"{key}={value}" for key, value in found.chosen.items() if key not in hidden]
    if mixed:
        pieces.append("recompute layer by layer")
    layers = plan.degrees.layers
    if layers and plan.degrees.pp > 1 and DIVISION[0] in found.chosen:
        pieces.append(f"{layer_count(layers)} a chunk")
    return pieces


def counted(plan: Plan) -> str:
    """How many ways there were to fill in what was left open, and how many fit."""
    proof = plan.proof
    if not proof.fitting:
        return f"None of {proof.allowed:,} ways to fill in what was left open fits."
    if plan.cluster.pools:
        return f"Chosen among {proof.allowed:,} ways to fill in what was left open."
    return f"Of {proof.allowed:,} ways to fill in what was left open {proof.fitting:,} fit."
