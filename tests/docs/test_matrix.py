"""The page of formats: what each holds of five kinds of plans, what is proven of it, and what is refused and why."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docs.renewal import WRITE

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "export"))

from matrix import CELLS, FACTS, KINDS, LEFT, PLANS, cell, facts, refusal  # noqa: E402

from planner.errors import listed  # noqa: E402
from planner.export.targets import target  # noqa: E402
from planner.export.view import View, layout_words  # noqa: E402

PAGE = ROOT / "docs" / "formats.md"
HEAD = """# What formats hold

Five kinds of plans in every format, each planned for the trainer that runs it (`tests/export/matrix.py`).
✔ is written, and the trainer's own code derives from the files what is named at the end of the line, equal to the plan
(`tests/acceptance/test_matrix.py`); ○ is written and read back by `check`, where no package has the code that reads it;
✘ is refused, for the reason below. A test writes this page.

"""
MEANING = """
Degrees are those of all axes and the number of chunks; batches the micro-batch, their number, the global batch and the
length; stages the layers of every chunk; ranks the groups of a rank on a fake process group; parameters those that a
rank of every stage holds; shards the ranks over which states are cut, states what of them is and whether layers are
computed again; rules those of a `tp_plan`, each of which meets modules of the model; loss and gradients those of one
process, on processes that run the plan scaled down. What is not derived, and why:
"""


def page() -> str:
    """The page as it is now."""
    rows = [["format", *KINDS, "its own code derives"], ["---", *[":-:"] * len(KINDS), "---"]]
    for to in PLANS:
        held = "✔" if FACTS[to] else "○"
        marks = ["✘" if refusal(f"{to}/{kind}") else held for kind in KINDS]
        rows.append([f"`{to}`", *marks, _derived(to)])
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return (
        HEAD
        + table
        + MEANING
        + "".join(f"\n- `{to}` {words}." for to, words in LEFT.items())
        + "\n"
        + "\n## The plans\n\n"
        + _plans()
        + "\n## What is refused\n\n"
        + _refused()
    )


def _derived(to: str) -> str:
    known = f"{target(to).release}: {listed(FACTS[to], 'and')}" if FACTS[to] else (
        "on no package index"
    )  # fmt: skip
    others = [f"{kind} without {listed(set(FACTS[to]) - set(facts(f'{to}/{kind}')), 'and')}"
              for kind in KINDS if f"{to}/{kind}" in FACTS]  # fmt: skip
    return known + "".join(f"; {other}" for other in others)


def _plans() -> str:
    alike: dict[object, list[str]] = {}
    for to, rows in PLANS.items():
        alike.setdefault(rows, []).append(to)
    return "\n".join(f"{listed([f'`{to}`' for to in formats], 'and')}:\n\n" + "".join(
        f"- {kind}: {_plan(f'{formats[0]}/{kind}')}\n" for kind in KINDS) for formats in alike.values())  # fmt: skip


def _plan(name: str) -> str:
    made = cell(name)
    stages = View(made).stage_sizes
    cut = f", stages of {listed(stages, 'and')} layers" if len(set(stages)) > 1 else ""
    return f"{made.model.name}, {layout_words(made.degrees)}{cut}"


def _refused() -> str:
    first = {name: refusal(name)[0] for name in CELLS if refusal(name)}
    return "".join(
        f"- `{name}`: {fault.what} {' '.join(fault.fix)}\n" for name, fault in first.items()
    )


def test_the_page_of_formats_is_as_the_formats_are() -> None:
    now = page()
    if WRITE:
        PAGE.write_text(now, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == now


def test_every_refusal_names_what_is_nearest() -> None:
    faults = [fault for name in CELLS for fault in refusal(name)]
    assert faults
    assert all(fault.code == "W01" and "Nearest that it can: " in fault.fix[0] for fault in faults)
