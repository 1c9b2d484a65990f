"""The whole report: a template filled with what a plan says. Nothing is computed here; drawings place what is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from planner.plan.basis import WORDS, bases
from planner.plan.figures import Figures
from planner.plan.findings import Comparison, Largest, Sizing
from planner.plan.schema import Plan
from planner.report.compare import price_words
from planner.report.degrees import alternative_columns, computed_again, described, row_notes
from planner.report.html import bars, findings, landscape, layer, mesh, timeline, treemap
from planner.report.html import study as studies
from planner.report.html.commands import price_command
from planner.report.html.tables import (
    as_on_pages,
    axes,
    communication,
    levels,
    operators,
    used_axes,
)
from planner.report.left_open import left_open
from planner.report.numbers import dollars, gib, percent
from planner.report.pools import way_columns
from planner.units import TERA, show_count, show_seconds, three_digits

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True)
class Tab:
    """How one trainer is told to run the plan."""

    name: str
    """Of the trainer."""
    files: tuple[tuple[str, str], ...]
    """Names and contents."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A trainer that cannot hold the plan."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Tile:
    """One number at the head of the report."""

    value: str
    unit: str
    label: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report."""

    id: str
    title: str
    finding: str


def render_html(
    plan: Plan,
    tabs: Sequence[Tab] = (),
    refused: Sequence[Refusal] = (),
    study: Comparison | Sizing | Largest | None = None,
) -> str:
    """The report as one file that needs nothing else.

    Args:
        plan: with its figures.
        tabs: files of trainers that can run it.
        refused: trainers that cannot.
        study: clusters or sizes among which the plan is the best, shown among the what-ifs.

    Raises:
        ValueError: the plan was made without figures.
    """
    figures = plan.figures
    if figures is None:
        raise ValueError("a report needs a plan with figures")
    own = Tab(
        "shardwright",
        (("price it again", price_command(plan)),),
        "Prices this layout again, or a variation of it.",
    )
    return environment().get_template("page.html").render(
        plan=plan,
        figures=figures,
        sections=_sections(plan, figures),
        tiles=_tiles(plan),
        layout=", ".join(described(plan.degrees, computed_again(plan))),
        left_open=left_open(plan),
        charts=_charts(plan, figures),
        tables=_tables(plan, figures),
        bases=[(word, WORDS[word]) for word in bases(plan)],
        by_price=_by_price(plan, figures),
        study=None if study is None else studies.study(study, plan),
        tabs=(*tabs, own),
        refused=refused,
        facts=_facts(plan),
        layer=layer.representative(plan),
        style=template("style.css"),
        script=template("script.js"),
        data=embedded(plan),
    )  # fmt: skip


def embedded(plan: Plan) -> Markup:
    """The plan's JSON as it stands inside a script element; it reads back to an equal plan."""
    text = json.dumps(
        plan.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"), sort_keys=True
    )
    return Markup(text.replace("<", "\\u003c"))


def _sections(plan: Plan, figures: Figures) -> dict[str, Section]:
    found = (
        Section("verdict", "Verdict", findings.verdict(plan)),
        Section("step", "Where a step goes", findings.step(plan, figures)),
        Section("memory", "Memory", findings.memory(plan)),
        Section("timeline", "Timeline", findings.timeline(plan, figures)),
        Section("cut", "How the model is cut", findings.cut(plan, figures)),
        Section("operators", "Operators", findings.operators(plan)),
        Section("communication", "Communication", findings.communication(plan, figures)),
        Section("alternatives", "Alternatives", findings.alternatives(plan)),
        Section("removed", "What was ruled out", findings.removed(plan, figures)),
        Section("whatif", "What if", findings.sensitivities(plan, figures)),
        Section(
            "run", "How to run it", "The same plan in the words of the programs that can run it."
        ),
        Section("provenance", "Provenance", findings.provenance(plan)),
    )
    return {section.id: section for section in found}


def _tiles(plan: Plan) -> list[Tile]:
    step, unit = show_seconds(plan.step).split()
    found = [
        Tile(step, unit, "a step"),
        Tile(three_digits(plan.tokens_per_second_per_chip), "", "tokens/s a chip"),
        Tile(percent(plan.mfu).removesuffix(" %"), "%", "MFU"),
    ]
    if plan.price_per_million_tokens is not None:
        found.append(Tile(dollars(plan.price_per_million_tokens), "", "per million tokens"))
    label = f"of {gib(plan.memory_limit)} on the fullest chip"
    return [*found, Tile(gib(plan.memory), "GiB", label)]


def _charts(plan: Plan, figures: Figures) -> dict[str, object]:
    space = figures.landscape
    return {
        "step": bars.waterfall(plan, figures),
        "memory": bars.memory(plan),
        "timeline": timeline.draw(figures.timeline),
        "kinds": timeline.legend(figures.timeline),
        "mesh": mesh.draw(plan, figures),
        "layer": layer.draw(layer.representative(plan), used_axes(figures)),
        "treemap": treemap.draw(plan),
        "landscape": landscape.draw(plan, space) if space is not None else None,
        "removed": bars.funnel(plan, figures),
        "whatif": bars.tornado(plan, figures),
    }


def _tables(plan: Plan, figures: Figures) -> dict[str, object]:
    return {
        "axes": axes(plan, figures),
        "operators": operators(plan, used_axes(figures)),
        "communication": communication(plan, figures),
        "alternatives": as_on_pages(
            alternative_columns(plan.alternatives, reasons=True, front=plan.proof.front > 0), 0
        )
        if len(plan.alternatives) > 1
        else None,
        "legend": row_notes(plan.alternatives),
        "ways": as_on_pages(way_columns(plan), 0) if plan.uses else None,
        "levels": levels(plan),
    }


def _by_price(plan: Plan, figures: Figures) -> str:
    price = plan.price_per_million_tokens
    known = price is not None and figures.sensitivities
    return price_words(price or 0.0, figures.sensitivities[0].share) if known else ""


def _facts(plan: Plan) -> list[tuple[str, str]]:
    model, cluster, recipe = plan.model, plan.cluster, plan.recipe
    peak = f"{three_digits(cluster.peak / TERA)} TFLOP/s in {recipe.precision}"
    batch = f"{recipe.global_batch:,} sequences of {recipe.seq:,} tokens"
    size = f"{show_count(model.num_params)} parameters, {model.num_layers} layers"
    return [
        ("model", f"{model.name}, {size}"),
        ("model source", model.source or "not stated"),
        ("cluster", f"{cluster.name}, {cluster.num_chips:,} × {cluster.chip}"),
        ("chip", f"{peak}, {gib(cluster.memory)} GiB usable"),
        ("recipe", f"{batch}, {recipe.precision}, {recipe.optimizer}"),
        ("trainer", f"{plan.trainer}, {plan.trainer_release}"),
        *([("beyond measured runs", ", ".join(plan.extrapolated))] if plan.extrapolated else []),
        *((f"{name} fingerprint", value) for name, value in plan.fingerprints),
    ]


def template(name: str) -> Markup:
    """A template that nothing is filled into."""
    text = (files("planner.report.html") / "templates" / name).read_text(encoding="utf-8")
    return Markup(text)


@cache
def environment() -> Environment:
    """What fills templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("planner.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
